"""F2: the shells' common ground: the one clock, the request context, gates and supervision."""
