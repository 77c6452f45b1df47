"""F0: values and vocabulary. Nothing in here reads a clock, a socket or a random number."""
