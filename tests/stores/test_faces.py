"""The async face of a blocking store: cancellation leaves nothing, time is kept, a store that never blocks needs no thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.idempotency import (
    AsyncIdempotencyStore,
    Begun,
    Claim,
    Outcome,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.stores.faces import ThreadedIdempotencyStore, async_face
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.testing import ManualClock
from resilient_mw.testing.idempotency_checks import StoreTests
from resilient_mw.testing.idempotency_faces import cancelled_begins_leave_nothing

TESTS = StoreTests()


class Slow(MemoryIdempotencyStore):
    """One whose `begin` waits in its thread until it is let go."""

    blocking = True  # type: ignore[misc]

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__(clock=clock)
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()
        self.fails = False

    def begin(self, claim: Claim, *, timeout: float = 5.0) -> Outcome:
        self.inside.release()
        assert self.go.wait(30)
        if self.fails:
            raise StoreUnavailable("it is away")
        return super().begin(claim, timeout=timeout)


def noted_abandons(slow: Slow) -> list[Any]:
    """Return what is given up from now on, after it has been."""
    given_up: list[Any] = []
    abandon = slow.abandon

    def noted(*args: Any, **facts: Any) -> bool:
        done = abandon(*args, **facts)
        given_up.append(args)
        return done

    slow.abandon = noted  # type: ignore[method-assign]
    return given_up


async def until(holds: Any) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def test_who_is_cancelled_goes_at_once_and_leaves_nothing() -> None:
    """The thread is in the middle of it: what it gets is given up."""
    slow = Slow()
    face = ThreadedIdempotencyStore(slow)
    claim = TESTS.claim()
    begin = asyncio.create_task(face.begin(claim))
    assert await asyncio.to_thread(slow.inside.acquire, timeout=30)
    begin.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begin
    given_up = noted_abandons(slow)
    slow.go.set()
    await until(lambda: given_up)
    await until(lambda: slow.look(claim.record) is None)
    assert given_up == [(claim, "forget")]
    await face.close()


async def test_what_was_unknown_stays_unknown_when_its_taker_is_cancelled() -> None:
    """An earlier attempt may have done the work: nobody may say that it did not."""
    slow = Slow()
    face = ThreadedIdempotencyStore(slow)
    old = TESTS.claim()
    slow.go.set()
    await face.begin(old)
    await face.abandon(old, "unknown")
    slow.inside.acquire()
    slow.go.clear()
    begin = asyncio.create_task(face.begin(TESTS.again(old, take_unknown=True)))
    assert await asyncio.to_thread(slow.inside.acquire, timeout=30)
    begin.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begin
    given_up = noted_abandons(slow)
    slow.go.set()
    await until(lambda: given_up)
    record = slow.look(old.record)
    assert record is not None
    assert record.state is State.UNKNOWN
    await face.close()


async def test_who_is_cancelled_before_a_thread_was_free_is_never_begun() -> None:
    slow = Slow()
    face = ThreadedIdempotencyStore(slow, threads=1)
    first, second = TESTS.claim(), TESTS.claim()
    begins = [asyncio.create_task(face.begin(claim)) for claim in (first, second)]
    assert await asyncio.to_thread(slow.inside.acquire, timeout=30)
    begins[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await begins[1]
    slow.go.set()
    assert isinstance(await begins[0], Begun)
    await face.close()
    assert not slow.inside.acquire(blocking=False), "the second one was never asked"


async def test_a_store_that_does_not_answer_in_time() -> None:
    """Its caller is told, and what the store does afterwards is given up."""
    slow = Slow()
    face = ThreadedIdempotencyStore(slow)
    claim = TESTS.claim()
    with pytest.raises(StoreUnavailable, match="did not answer within"):
        await face.begin(claim, timeout=0.01)
    slow.go.set()
    await face.close()
    with pytest.raises(StoreUnavailable):
        slow.look(claim.record)


async def test_an_error_after_the_caller_has_gone_is_nobodys() -> None:
    """No complaint of asyncio about an exception that was never retrieved: warnings are errors here."""
    slow = Slow()
    slow.fails = True
    face = ThreadedIdempotencyStore(slow)
    begin = asyncio.create_task(face.begin(TESTS.claim()))
    assert await asyncio.to_thread(slow.inside.acquire, timeout=30)
    begin.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begin
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    slow.go.set()
    await face.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert complaints == []


async def test_a_cancelled_complete_is_recorded_all_the_same(tmp_path: Path) -> None:
    face = async_face(SQLiteIdempotencyStore(tmp_path / "keys.db", durable=False))
    claim = TESTS.claim()
    await face.begin(claim)
    complete = asyncio.create_task(face.complete(claim, StoredAnswer(200)))
    await asyncio.sleep(0)
    complete.cancel()
    await asyncio.wait([complete])
    for _ in range(2000):
        record = await face.look(claim.record)
        if record is not None and record.state is State.COMPLETED:
            break
        await asyncio.sleep(0.005)
    else:
        raise AssertionError("the answer is lost")
    await face.close()


async def test_cancelled_begins_leave_nothing(tmp_path: Path) -> None:
    """Wherever it hits them; on the store that works on the spot as well."""
    for store in (
        SQLiteIdempotencyStore(tmp_path / "keys.db", durable=False),
        MemoryIdempotencyStore(),
    ):
        face = async_face(store)
        await cancelled_begins_leave_nothing(face, [TESTS.claim() for _ in range(40)])
        await face.close()


async def test_the_suite_notices_a_begin_that_is_left_behind() -> None:
    class Leaks(ThreadedIdempotencyStore):
        def _undo(self, *_: Any) -> None:
            pass

    slow = Slow()
    face = Leaks(slow)
    asyncio.get_running_loop().call_later(0.05, slow.go.set)
    with pytest.raises(AssertionError, match="has left a record"):
        await cancelled_begins_leave_nothing(face, [TESTS.claim() for _ in range(4)], within=0.2)
    await face.close()


async def test_a_store_that_never_blocks_is_called_on_the_spot() -> None:
    face = async_face(MemoryIdempotencyStore())
    before = threading.active_count()
    assert isinstance(await face.begin(TESTS.claim()), Begun)
    assert threading.active_count() == before
    await face.close()


async def test_an_async_store_is_its_own_face() -> None:
    face: AsyncIdempotencyStore = async_face(MemoryIdempotencyStore())
    assert async_face(face) is face
    assert face.shared == "process"


def test_one_face_for_several_loops(tmp_path: Path) -> None:
    face = async_face(SQLiteIdempotencyStore(tmp_path / "keys.db", durable=False))

    async def begins() -> Outcome:
        return await face.begin(TESTS.claim())

    assert isinstance(asyncio.run(begins()), Begun)
    assert isinstance(asyncio.run(begins()), Begun)
    asyncio.run(face.close())


def test_a_wrong_number_of_threads() -> None:
    with pytest.raises(ValueError, match=r"ThreadedIdempotencyStore.threads=0 .* from 1 to 256"):
        ThreadedIdempotencyStore(MemoryIdempotencyStore(), threads=0)
