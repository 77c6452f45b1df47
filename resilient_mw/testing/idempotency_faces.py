"""Runs an async store under the suite of blocking ones, and tests what async stores promise beside that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import TIMEOUT, AsyncIdempotencyStore
from resilient_mw.idempotency.record import Claim, Ending, Outcome, Record, State

T = TypeVar("T")


def blocking_face(store: AsyncIdempotencyStore) -> BlockingIdempotencyStore:
    """Return an async store as a blocking one, with an event loop of its own in a thread; call its `stop` at the end.

    Args:
        store: one that was not used on another loop yet.
    """
    return BlockingIdempotencyStore(store)


class BlockingIdempotencyStore:
    """An `IdempotencyStore` made of an async one. Made by `blocking_face`."""

    blocking: Final = True

    def __init__(self, store: AsyncIdempotencyStore) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-face", daemon=True)
        self._thread.start()

    @property
    def shared(self) -> str:
        """As of `IdempotencyStore`."""
        return self._store.shared

    def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:
        """As of `IdempotencyStore`."""
        return self._run(self._store.begin(claim, timeout=timeout))

    def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._run(self._store.renew(claim, timeout=timeout))

    def complete(
        self, claim: Claim, answer: StoredAnswer, *, fingerprint: str | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """As of `IdempotencyStore`."""
        return self._run(self._store.complete(claim, answer, fingerprint=fingerprint, timeout=timeout))

    def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._run(self._store.abandon(claim, ending, timeout=timeout))

    def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:
        """As of `IdempotencyStore`."""
        return self._run(self._store.look(record, timeout=timeout))

    def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._run(self._store.release(record, running=running, timeout=timeout))

    def records(
        self, *, state: State | None = None, after: str = "", limit: int = 100, timeout: float = TIMEOUT
    ) -> Sequence[Record]:
        """As of `IdempotencyStore`."""
        return self._run(self._store.records(state=state, after=after, limit=limit, timeout=timeout))

    def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:
        """As of `IdempotencyStore`."""
        return self._run(self._store.purge(limit, timeout=timeout))

    def create(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        self._run(self._store.create(timeout=timeout))

    def ping(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        self._run(self._store.ping(timeout=timeout))

    def close(self) -> None:
        """As of `IdempotencyStore`."""
        self._run(self._store.close())

    def stop(self) -> None:
        """End the event loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(question, self._loop).result()


async def cancelled_begins_leave_nothing(
    store: AsyncIdempotencyStore, claims: Sequence[Claim], *, settle: float = 0.5, within: float = 10.0
) -> None:
    """Test that a `begin` whose caller is cancelled leaves no record, wherever the cancellation hits it.

    Args:
        store: ready to be used.
        claims: of different keys; each is cancelled one step of the event loop later than the one before.
        settle: seconds after which what was under way at the cancellation has happened.
        within: seconds after that in which the store must have given up what it got.

    Raises:
        AssertionError: a record is still there.
    """
    begins = []
    for steps, claim in enumerate(claims):
        begin = asyncio.ensure_future(store.begin(claim))
        for _ in range(steps):
            await asyncio.sleep(0)
        begins.append((claim, begin))
        begin.cancel()
    await asyncio.wait([begin for _, begin in begins])
    await asyncio.sleep(settle)
    until = asyncio.get_running_loop().time() + within
    for claim, begin in begins:
        if not begin.cancelled():
            continue  # it had its answer before it was cancelled
        while await store.look(claim.record) is not None:
            if asyncio.get_running_loop().time() > until:
                raise AssertionError(f"a cancelled begin has left a record: {claim!r}")
            await asyncio.sleep(0.01)
