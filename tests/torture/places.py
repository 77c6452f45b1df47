"""The stores under torture: how a server process opens one, and how it is stopped and started."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Protocol

from resilient_mw.idempotency import AsyncIdempotencyStore, IdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore


def opened(place: str) -> IdempotencyStore | AsyncIdempotencyStore:
    """Open the store at a place, in a server process.

    Args:
        place: its name, a blank, and where it is.
    """
    kind, _, where = place.partition(" ")
    if kind == "sqlite":
        # What outlives the death of a process: nobody pulls the plug here.
        return SQLiteIdempotencyStore(where, durable=False)
    raise ValueError(f"there is no store {place!r}")


class Place(Protocol):
    """Where the records are."""

    name: str

    @property
    def where(self) -> str:
        """What a server process needs to find it."""
        ...

    def start(self) -> None:
        """Have it there."""
        ...

    def interrupt(self, seconds: float) -> None:
        """Have it away for so many seconds, and return when it is back."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class SQLitePlace:
    """A file. It is away while somebody else has its only lock for writing."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "keys.sqlite"

    @property
    def where(self) -> str:
        """As of `Place`."""
        return str(self._path)

    def start(self) -> None:
        """As of `Place`."""
        SQLiteIdempotencyStore(self._path).create()

    def interrupt(self, seconds: float) -> None:
        """As of `Place`."""
        with closing(sqlite3.connect(self._path, timeout=10.0, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    def close(self) -> None:
        """As of `Place`: nothing runs."""


PLACES: Final[dict[str, Callable[[Path], Place]]] = {"sqlite": SQLitePlace}
