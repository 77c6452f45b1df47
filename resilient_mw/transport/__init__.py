"""F3: the transports of the client half, for httpx and its forks, without importing any of them."""
