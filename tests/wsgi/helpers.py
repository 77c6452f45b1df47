"""What the tests of the WSGI middleware share: figures of a policy, and applications that count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from resilient_mw import ServerPolicy
from resilient_mw.runtime.guard import guard_of

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

TEXT = [("Content-Type", "text/plain")]


def slots_taken(policy: ServerPolicy) -> int:
    """Slots in use, exempt requests included."""
    return sum(each.slots for each in guard_of(policy).snapshot().classes)


def queued(policy: ServerPolicy) -> int:
    """Requests that wait for a slot."""
    return sum(each.queued for each in guard_of(policy).snapshot().classes)


def outcomes(policy: ServerPolicy, without: str = "") -> dict[str, int]:
    """Ended runs by outcome, all routes together, without those of one class."""
    found: dict[str, int] = {}
    for route in guard_of(policy).snapshot().routes:
        for outcome, count in route.outcomes.items() if route.priority != without else ():
            found[outcome] = found.get(outcome, 0) + count
    return found


def late(policy: ServerPolicy) -> int:
    """Runs that went on for too long after their deadline."""
    return sum(route.late for route in guard_of(policy).snapshot().routes)


def refused(policy: ServerPolicy) -> dict[str, int]:
    """Refusals by reason, all routes together."""
    found: dict[str, int] = {}
    for route in guard_of(policy).snapshot().routes:
        for reason, count in route.refused.items():
            found[reason] = found.get(reason, 0) + count
    return found


def hello(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    """The simplest application."""
    start_response("200 OK", [*TEXT, ("Content-Length", "5")])
    return [b"hello"]


class Chunks:
    """An iterable body that counts its closings, and fails where it is told to."""

    def __init__(
        self,
        chunks: list[bytes],
        *,
        fail_at: int | None = None,
        fail_close: bool = False,
        on_chunk: Callable[[int], object] | None = None,
    ) -> None:
        self.chunks = chunks
        self.fail_at = fail_at
        self.fail_close = fail_close
        self.on_chunk = on_chunk
        self.closed = 0
        self.given = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self.given == self.fail_at:
            raise LookupError("chunk")
        if self.given >= len(self.chunks):
            raise StopIteration
        self.given += 1
        if self.on_chunk is not None:
            self.on_chunk(self.given)
        return self.chunks[self.given - 1]

    def close(self) -> None:
        self.closed += 1
        if self.fail_close:
            raise LookupError("close")


def serving(body: Any, status: str = "200 OK") -> WSGIApplication:
    """An application that answers with a given body."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response(status, list(TEXT))
        return body

    return app


class Blocking:
    """An application that holds its requests until it is told to let go."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let_go = threading.Event()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        self.entered.release()
        assert self.let_go.wait(10)
        return hello(environ, start_response)


def in_thread(call: Callable[[], object]) -> threading.Thread:
    """Start a thread for one call."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
