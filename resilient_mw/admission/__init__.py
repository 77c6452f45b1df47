"""F1: admission, as pure decisions: who may run now, who waits, who is refused and why."""
