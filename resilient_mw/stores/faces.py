"""The async face of a blocking store: a few threads, and nothing left behind by who is cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from resilient_mw.core.checks import require_integer
from resilient_mw.core.ports import process_clock
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import (
    TIMEOUT,
    AsyncIdempotencyStore,
    IdempotencyStore,
    StoreUnavailable,
)
from resilient_mw.idempotency.record import Begun, Claim, Ending, Outcome, Record, State
from resilient_mw.stores.forks import after_fork

T = TypeVar("T")

THREADS: Final = 4


def async_face(
    store: IdempotencyStore | AsyncIdempotencyStore, *, threads: int = THREADS
) -> AsyncIdempotencyStore:
    """Return a store as an event loop can use it: itself if it is async already.

    Args:
        store: of either kind.
        threads: of a blocking one.
    """
    if inspect.iscoroutinefunction(store.begin):
        return store  # type: ignore[return-value]  # told apart by what begin() is
    return ThreadedIdempotencyStore(store, threads=threads)  # type: ignore[arg-type]


class ThreadedIdempotencyStore:
    """An `AsyncIdempotencyStore` made of a blocking one. One that never blocks is called on the spot.

    As many questions as it has threads are with the store at one time; the others wait, within their `timeout`. Who is cancelled
    goes at once; a `begin` that succeeds after that is abandoned.

    Args:
        store: any number of these may share it.
        threads: at most so many, made when they are needed.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    def __init__(self, store: IdempotencyStore, *, threads: int = THREADS) -> None:
        self._store = store
        self._threads = require_integer("ThreadedIdempotencyStore.threads", threads, low=1, high=256)
        self._clock = process_clock()
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        after_fork(self)

    @property
    def shared(self) -> str:
        """As of `IdempotencyStore`."""
        return self._store.shared

    @property
    def blocking_store(self) -> IdempotencyStore:
        """The store itself."""
        return self._store

    def forked(self) -> None:
        """Begin anew in a forked child, where the threads are not."""
        self._pool = None
        self._lock = threading.Lock()

    async def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        if not self._store.blocking:
            return self._store.begin(claim, timeout=timeout)
        call = self._submit(self._store.begin, claim, timeout=timeout)
        try:
            return await self._answer(call, timeout)
        except BaseException:
            if not call.cancel():
                call.add_done_callback(lambda done: self._undo(claim, done, timeout))
            raise

    async def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.renew, claim, timeout=timeout)

    async def complete(
        self,
        claim: Claim,
        answer: StoredAnswer,
        *,
        fingerprint: str | None = None,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> bool:
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.complete, claim, answer, fingerprint=fingerprint, timeout=timeout)

    async def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.abandon, claim, ending, timeout=timeout)

    async def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.look, record, timeout=timeout)

    async def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.release, record, running=running, timeout=timeout)

    async def records(
        self,
        *,
        state: State | None = None,
        after: str = "",
        limit: int = 100,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Sequence[Record]:
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.records, state=state, after=after, limit=limit, timeout=timeout)

    async def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._store.purge, limit, timeout=timeout)

    async def create(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        await self._ask(self._store.create, timeout=timeout)

    async def ping(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        await self._ask(self._store.ping, timeout=timeout)

    async def close(self) -> None:
        """As of `AsyncIdempotencyStore`. Closes the store itself, after what is under way."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.to_thread(pool.shutdown)
        self._store.close()

    async def _ask(self, method: Callable[..., T], *args: Any, timeout: float, **facts: Any) -> T:  # noqa: ASYNC109
        if not self._store.blocking:
            return method(*args, timeout=timeout, **facts)
        call = self._submit(method, *args, timeout=timeout, **facts)
        # Of who is cancelled here the store does what was asked: an answer that was to be recorded is.
        return await self._answer(call, timeout)

    def _submit(self, method: Callable[..., T], *args: Any, timeout: float, **facts: Any) -> Future[T]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, "idempotency-store")
            pool = self._pool
        until = self._clock.now() + timeout

        def in_thread() -> T:
            # What it has waited for a thread is gone.
            return method(*args, timeout=max(0.0, until - self._clock.now()), **facts)

        return pool.submit(in_thread)

    async def _answer(self, call: Future[T], timeout: float) -> T:  # noqa: ASYNC109
        waiter = asyncio.wrap_future(call)
        waiter.add_done_callback(_seen)
        done, _ = await asyncio.wait({waiter}, timeout=timeout + 0.1)
        if done:
            return waiter.result()
        raise StoreUnavailable(f"the store did not answer within {timeout:g} s")

    def _undo(self, claim: Claim, done: Future[Outcome], timeout: float) -> None:
        """Give up what a `begin` got that nobody waits for any more. If that fails, its lease ends by itself."""
        if done.cancelled() or done.exception() is not None:
            return
        outcome = done.result()
        if isinstance(outcome, Begun):
            ending: Ending = "unknown" if outcome.unknown else "forget"
            self._submit(self._store.abandon, claim, ending, timeout=timeout)


def _seen(waiter: asyncio.Future[Any]) -> None:
    """Have asyncio not complain of an error that came after its caller had gone."""
    if not waiter.cancelled():
        waiter.exception()
