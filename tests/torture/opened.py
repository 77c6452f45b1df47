"""How a server process opens the store under torture. It loads no more than that, since it is started often."""

from __future__ import annotations

from resilient_mw.idempotency import AsyncIdempotencyStore, IdempotencyStore


def opened(place: str) -> IdempotencyStore | AsyncIdempotencyStore:
    """Open the store at a place.

    Args:
        place: its name, a blank, and where it is.
    """
    kind, _, where = place.partition(" ")
    if kind == "sqlite":
        from resilient_mw.stores.sqlite import SQLiteIdempotencyStore

        # What outlives the death of a process: nobody pulls the plug here.
        return SQLiteIdempotencyStore(where, durable=False)
    if kind == "postgres":
        from resilient_mw_integrations.postgres import AsyncPostgresIdempotencyStore

        return AsyncPostgresIdempotencyStore(where)
    if kind == "redis":
        from resilient_mw_integrations.redis import AsyncRedisIdempotencyStore

        return AsyncRedisIdempotencyStore(where)
    raise ValueError(f"there is no store {place!r}")
