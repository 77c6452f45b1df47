"""The two faces of a store that asks a server over the network: one that blocks, and one for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from resilient_mw.core.ports import process_clock
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.protocol import TIMEOUT, StoreUnavailable
from resilient_mw.idempotency.record import Begun, Claim, Ending, Outcome, Record, State
from resilient_mw_integrations._store_questions import Question, Questions

T = TypeVar("T")

GRACE: Final = 0.1
"""Seconds that the line itself may take longer than it was told: its own errors say more than ours."""


class Line(Protocol):
    """The way to a server. Safe to use from any thread."""

    def send(self, payload: Any, timeout: float) -> Any:
        """Return what comes back, within so many seconds, or raise `StoreUnavailable`."""
        ...

    def close(self) -> None:
        """Let go of what this line has opened itself."""
        ...


class AsyncLine(Protocol):
    """The same for an event loop."""

    async def send(self, payload: Any, timeout: float) -> Any:  # noqa: ASYNC109
        """As of `Line`."""
        ...

    async def close(self) -> None:
        """As of `Line`."""
        ...


class BlockingFace:
    """An `IdempotencyStore` made of questions and a line."""

    blocking: Final = True
    shared: Literal["network"] = "network"

    def __init__(self, questions: Questions, line: Line) -> None:
        self._questions = questions
        self._line = line
        self._clock = process_clock()
        self._closed = False

    def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.begin(claim), timeout)

    def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.renew(claim), timeout)

    def complete(
        self, claim: Claim, answer: StoredAnswer, *, fingerprint: str | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.complete(claim, answer, fingerprint), timeout)

    def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.abandon(claim, ending), timeout)

    def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.look(record), timeout)

    def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.release(record, running), timeout)

    def records(
        self, *, state: State | None = None, after: str = "", limit: int = 100, timeout: float = TIMEOUT
    ) -> Sequence[Record]:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.records(state, after, limit), timeout)

    def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:
        """As of `IdempotencyStore`."""
        return self._ask(self._questions.purge(limit), timeout)

    def create(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        self._ask(self._questions.create(), timeout)

    def ping(self, *, timeout: float = TIMEOUT) -> None:
        """As of `IdempotencyStore`."""
        self._ask(self._questions.ping(), timeout)

    def close(self) -> None:
        """As of `IdempotencyStore`. A client or pool that was given stays open."""
        self._closed = True
        self._line.close()

    def _ask(self, question: Question[T], timeout: float) -> T:
        until = self._clock.now() + timeout
        while True:
            left = _left(self._closed, until - self._clock.now(), timeout)
            value = _read(question, self._line.send(question.payload, left))
            if not isinstance(value, Question):
                return value
            question = value


class AsyncFace:
    """An `AsyncIdempotencyStore` made of questions and a line.

    Each question is asked in a task of its own: who is cancelled goes at once, also from a cancel scope that cancels again
    and again, and what was under way still ends as it should. A `begin` that succeeds after that is abandoned.
    """

    shared: Literal["network"] = "network"

    def __init__(self, questions: Questions, line: AsyncLine) -> None:
        self._questions = questions
        self._line = line
        self._clock = process_clock()
        self._asked: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        asked = self._start(self._questions.begin(claim), timeout)
        try:
            return await self._answer(asked, timeout)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda done: self._undo(claim, done, timeout))
            raise

    async def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.renew(claim), timeout)

    async def complete(
        self,
        claim: Claim,
        answer: StoredAnswer,
        *,
        fingerprint: str | None = None,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> bool:
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.complete(claim, answer, fingerprint), timeout)

    async def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.abandon(claim, ending), timeout)

    async def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.look(record), timeout)

    async def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.release(record, running), timeout)

    async def records(
        self,
        *,
        state: State | None = None,
        after: str = "",
        limit: int = 100,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Sequence[Record]:
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.records(state, after, limit), timeout)

    async def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        return await self._ask(self._questions.purge(limit), timeout)

    async def create(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        await self._ask(self._questions.create(), timeout)

    async def ping(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `AsyncIdempotencyStore`."""
        await self._ask(self._questions.ping(), timeout)

    async def close(self) -> None:
        """As of `AsyncIdempotencyStore`, after what is under way. A client or pool that was given stays open."""
        while self._here():
            await asyncio.wait(self._here())
        self._closed = True
        await self._line.close()

    def _here(self) -> set[asyncio.Task[Any]]:
        loop = asyncio.get_running_loop()
        return {each for each in self._asked if each.get_loop() is loop}

    async def _ask(self, question: Question[T], timeout: float) -> T:  # noqa: ASYNC109
        return await self._answer(self._start(question, timeout), timeout)

    def _start(self, question: Question[T], timeout: float) -> asyncio.Task[T]:
        asked = asyncio.get_running_loop().create_task(self._exchange(question, timeout))
        self._asked.add(asked)
        asked.add_done_callback(self._seen)
        return asked

    async def _exchange(self, question: Question[T], timeout: float) -> T:  # noqa: ASYNC109
        until = self._clock.now() + timeout
        while True:
            left = _left(self._closed, until - self._clock.now(), timeout)
            value = _read(question, await self._line.send(question.payload, left))
            if not isinstance(value, Question):
                return value
            question = value

    async def _answer(self, asked: asyncio.Task[T], timeout: float) -> T:  # noqa: ASYNC109
        done, _ = await asyncio.wait({asked}, timeout=timeout + GRACE)
        if done:
            return asked.result()
        asked.cancel()
        raise _late(timeout)

    def _seen(self, asked: asyncio.Task[Any]) -> None:
        """Have asyncio not complain of an error that came after its caller had gone."""
        self._asked.discard(asked)
        if not asked.cancelled():
            asked.exception()

    def _undo(self, claim: Claim, done: asyncio.Task[Outcome], timeout: float) -> None:
        """Give up what a `begin` got that nobody waits for any more. If that fails, its lease ends by itself."""
        if done.cancelled() or done.exception() is not None:
            return
        outcome = done.result()
        if isinstance(outcome, Begun):
            ending: Ending = "unknown" if outcome.unknown else "forget"
            self._start(self._questions.abandon(claim, ending), timeout)


def _left(closed: bool, left: float, timeout: float) -> float:
    if closed:
        raise StoreUnavailable("the store is closed")
    if left <= 0:
        raise _late(timeout)
    return left


def _late(timeout: float) -> StoreUnavailable:
    return StoreUnavailable(f"the store did not answer within {timeout:g} s")


def _read(question: Question[T], raw: Any) -> T | Question[T]:
    try:
        return question.read(raw)
    except ValueError as error:  # an answer in the format of a later version
        raise StoreUnavailable(str(error)) from error
