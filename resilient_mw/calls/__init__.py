"""F1: outgoing calls, as pure decisions: when to try, when to try again, when not to ask at all."""
