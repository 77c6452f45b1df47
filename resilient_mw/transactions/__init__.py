"""F3: the work of an idempotency key in one transaction with the key, and commits that a request which is over cannot make."""
