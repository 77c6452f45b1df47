"""The one owner of a policy's open streams and their lock. Several middlewares share it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry, Waiter
from resilient_mw.admission.streams import OpenStreams
from resilient_mw.core.snapshot import StreamSnapshot


class Streams:
    """Owns the open streams of one policy. Safe to use from any thread and any event loop.

    Its lock is apart from that of the slots, and nothing else is done while it is held.

    Args:
        limit: most that are open at once.
    """

    __slots__ = ("_lock", "_streams")

    def __init__(self, limit: int) -> None:
        self._streams = OpenStreams(limit)
        self._lock = threading.Lock()

    def resize(self, limit: int) -> None:
        """Let another number be open at once; those that are open stay."""
        with self._lock:
            self._streams.limit = limit

    def arrive(self, decide: Callable[[], Decision]) -> Decision | None:
        """Have it decided about a request that may become a stream; None: there is no place for it."""
        with self._lock:
            if not self._streams.take():
                return None
        decision: Decision | None = None
        try:
            decision = decide()
        finally:
            with self._lock:
                self._streams.placed(decision)
        return decision

    def left(self, waiter: Waiter) -> None:
        """Give back the place of a waiter that was let in at the instant its caller left; see `OpenStreams.left`."""
        with self._lock:
            self._streams.left(waiter)

    def open(self, entry: RouteEntry) -> None:
        """Count a request whose head has been sent and whose slot comes back; see `OpenStreams.open`."""
        with self._lock:
            self._streams.open(entry)

    def end(self, entry: RouteEntry, outcome: str | None) -> None:
        """Give a place back, exactly once; see `OpenStreams.end`."""
        with self._lock:
            self._streams.end(entry, outcome)

    def snapshot(self) -> StreamSnapshot:
        """Return the figures of this instant."""
        with self._lock:
            return self._streams.snapshot()
