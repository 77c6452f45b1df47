"""Settings of a hypercorn that ends each connection after a few streams, and closes an idle one soon."""

keep_alive_max_requests = 5
keep_alive_timeout = 0.3
graceful_timeout = 0
loglevel = "critical"
