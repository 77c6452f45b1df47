"""Sections that must complete: what ends a request waits for them, within the time that they were promised."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread
import pytest

from resilient_mw import CancelReason, DeadlineExceeded, RequestCancelled, current
from resilient_mw.runtime import supervised
from resilient_mw.runtime.context import NO_REQUEST, RequestContext
from resilient_mw.runtime.shield import Shield
from tests.runtime.small_shell import (
    DEADLINE,
    Outcome,
    Shell,
    expired,
    nothing_left,
    plain,
    run,
    serve,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")

HELD = 0.25
"""Seconds that a section takes which the deadline finds in the middle."""


@asynccontextmanager
async def asynchronous(section: Shield) -> AsyncIterator[RequestContext]:
    async with section as context:
        yield context


@asynccontextmanager
async def synchronous(section: Shield) -> AsyncIterator[RequestContext]:
    with section as context:
        yield context


FORMS = pytest.mark.parametrize("form", [asynchronous, synchronous], ids=["async with", "with"])
Form = Callable[[Shield], Any]


# -- the request's end waits -------------------------------------------------------------------------------------------


@FORMS
async def test_a_section_completes_while_the_caller_has_his_504_on_time_and_the_cancel_follows(
    form: Form,
) -> None:
    log: list[object] = []
    left_at = 0.0

    async def handler() -> None:
        nonlocal left_at
        try:
            async with form(current().shield(2.0)):
                await asyncio.sleep(HELD)
                log.append("committed")
                left_at = time.monotonic()
            await asyncio.sleep(5)
            log.append("went on")
        except asyncio.CancelledError:
            log.append((current().cancel_reason, time.monotonic() - left_at < 0.1))
            raise

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["committed", (CancelReason.DEADLINE, True)]
    assert outcome.released_at is not None
    assert HELD <= outcome.released_at < HELD + 0.2


async def test_the_cancel_that_was_held_back_is_delivered_before_the_block_is_behind() -> None:
    log = []

    async def handler() -> None:
        async with current().shield(2.0):
            await asyncio.sleep(HELD)
        log.append("went on")

    expired(await run(plain(handler)))
    assert log == []


@FORMS
async def test_a_disconnect_waits_as_well(form: Form) -> None:
    log: list[object] = []

    async def handler() -> None:
        async with form(current().shield(2.0)):
            asyncio.get_running_loop().call_later(0.02, outcome.disconnect)
            await asyncio.sleep(0.1)
            log.append((outcome.exchange is not None and outcome.exchange.reason, current().cancel_reason))
        await asyncio.sleep(5)

    outcome = Outcome()
    await serve(Shell(plain(handler), deadline=5.0), outcome=outcome)
    assert outcome.status is None
    assert log == [(CancelReason.CLIENT_DISCONNECT, None)]
    assert outcome.returned_at is not None
    assert 0.1 <= outcome.returned_at < 0.3


async def test_inside_only_the_sections_own_time_counts_and_outside_the_requests() -> None:
    seen: list[object] = []
    around: list[RequestContext] = []

    async def handler() -> None:
        around.append(current())
        async with current().shield(0.5) as inside:
            assert current() is inside
            seen.append(0.4 < inside.remaining() <= 0.5)
            await asyncio.sleep(HELD)
            inside.check()
            seen.append(0.05 < inside.remaining() <= 0.25)
            seen.append((inside.cancelled, inside.cancel_reason, around[0].cancel_reason))
            with pytest.raises(DeadlineExceeded):
                around[0].check()
            with pytest.raises(DeadlineExceeded):
                async with inside.within(0.01):
                    await asyncio.sleep(1)

    expired(await run(plain(handler)))
    assert seen == [True, True, (False, None, CancelReason.DEADLINE)]


async def test_a_section_shortens_what_the_request_has_left_to_its_own_time() -> None:
    async def handler() -> None:
        with current().shield(0.05) as inside:
            assert inside.remaining() <= 0.05
            await asyncio.sleep(0.1)
            assert inside.cancel_reason is CancelReason.DEADLINE
            with pytest.raises(DeadlineExceeded):
                inside.check()
        assert 4 < current().remaining() <= 5
        current().check()
        with pytest.raises(DeadlineExceeded, match=r"shielded section was not finished within 0\.05 s"):
            async with current().shield(0.05):
                await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    outcome = await run(plain(handler), deadline=5.0)
    assert (outcome.status, outcome.raised) == (200, None)
    assert outcome.returned_at is not None
    assert outcome.returned_at < 0.4


@FORMS
async def test_a_section_that_takes_longer_than_its_time_is_cancelled_then_and_once(form: Form) -> None:
    cancels: list[Any] = []

    async def handler() -> None:
        began = time.monotonic()
        try:
            async with form(current().shield(0.2)):
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    cancels.append(time.monotonic() - began)
                    await asyncio.sleep(0.1)  # a clean-up that a second cancel would hit
                    cancels.append(current().cancel_reason)
                    raise
        finally:
            cancels.append("end")

    outcome = await run(plain(handler))
    expired(outcome)
    assert 0.19 <= cancels[0] < 0.35
    assert cancels[1:] == [CancelReason.DEADLINE, "end"]
    assert outcome.released_at is not None
    assert outcome.released_at < 0.6


async def test_what_a_section_waits_for_is_cancelled_once_when_its_time_is_over() -> None:
    cancels = []

    async def part() -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            cancels.append(task.cancelling())
            raise

    async def handler() -> None:
        async with current().shield(0.2):
            await asyncio.gather(part(), part())

    async with nothing_left():
        expired(await run(plain(handler)))
    assert cancels == [1, 1]


@pytest.mark.in_real_time
async def test_what_the_request_was_cancelled_for_is_told_when_the_time_of_the_section_is_over() -> None:
    raised: list[object] = []

    def work() -> None:
        with current().shield(0.15) as inside:
            time.sleep(0.1)
            inside.check()
            time.sleep(0.1)
            try:
                inside.check()
            except RequestCancelled as error:
                raised.append(error.reason)

    async def handler() -> None:
        asyncio.get_running_loop().call_later(0.02, outcome.disconnect)
        await asyncio.to_thread(work)

    outcome = Outcome()
    await serve(Shell(plain(handler), deadline=5.0), outcome=outcome)
    assert raised == [CancelReason.CLIENT_DISCONNECT]


# -- callbacks and the slot --------------------------------------------------------------------------------------------


@FORMS
async def test_no_callback_closes_the_connection_under_a_commit(form: Form) -> None:
    log: list[object] = []

    async def close(reason: CancelReason) -> None:
        await asyncio.sleep(0.05)
        log.append(reason)

    async def handler() -> None:
        current().on_cancel(close)
        async with form(current().shield(2.0)) as inside:
            await asyncio.sleep(HELD)
            inside.on_cancel(lambda reason: log.append("registered inside"))
            await asyncio.sleep(0.01)
            log.append("committed")

    outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["committed", "registered inside", CancelReason.DEADLINE]
    assert outcome.released_at is not None
    assert HELD + 0.05 <= outcome.released_at < HELD + 0.3


async def test_a_section_that_nobody_waits_for_holds_the_slot_and_has_its_time() -> None:
    log: list[object] = []
    keep = []

    async def commit() -> None:
        async with current().shield(2.0):
            await asyncio.sleep(HELD)
            log.append("committed")

    async def handler() -> None:
        current().on_cancel(log.append)
        keep.append(asyncio.create_task(commit()))
        await asyncio.sleep(5)

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["committed", CancelReason.DEADLINE]
    assert outcome.released_at is not None
    assert HELD <= outcome.released_at < HELD + 0.2


async def test_a_section_that_nobody_waits_for_is_cancelled_when_its_time_is_over() -> None:
    ended: list[object] = []
    keep = []

    async def hangs() -> None:
        try:
            async with current().shield(0.2):
                await asyncio.sleep(5)
        except DeadlineExceeded:
            ended.append("over")

    async def handler() -> None:
        keep.append(asyncio.create_task(hangs()))
        await asyncio.sleep(5)

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert ended == ["over"]
    assert outcome.released_at is not None
    assert outcome.released_at < 0.8


async def test_the_work_beside_a_section_waits_with_it() -> None:
    """Whoever was cancelled beside it would take the group down, and the section with it."""
    log = []

    async def commit() -> None:
        async with current().shield(2.0):
            await asyncio.sleep(HELD)
            log.append("committed")

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(commit())
            group.create_task(asyncio.sleep(5))

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["committed"]
    assert outcome.released_at is not None
    assert outcome.released_at < HELD + 0.2


async def test_a_section_below_an_anyio_group_and_its_own_children() -> None:
    log = []

    async def part() -> None:
        await anyio.sleep(HELD)
        log.append("part")

    async def commit() -> None:
        async with current().shield(2.0):
            async with anyio.create_task_group() as inner:
                inner.start_soon(part)
                inner.start_soon(part)
            log.append("committed")
        log.append("went on")

    async def handler() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(commit)
            group.start_soon(anyio.sleep, 5)

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["part", "part", "committed"]


@pytest.mark.parametrize("to_thread", [asyncio.to_thread, anyio.to_thread.run_sync])
@pytest.mark.in_real_time
async def test_a_section_in_a_worker_thread(to_thread: Callable[..., Awaitable[object]]) -> None:
    log: list[object] = []

    def commit() -> None:
        current().on_cancel(log.append)
        with current().shield(2.0) as inside:
            time.sleep(HELD)
            inside.check()
            log.append("committed")
        time.sleep(0.1)  # the callback comes now
        try:
            current().check()
        except DeadlineExceeded:
            log.append("checked")
            raise

    async def handler() -> None:
        await to_thread(commit)

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["committed", CancelReason.DEADLINE, "checked"]
    assert outcome.released_at is not None
    assert outcome.released_at >= HELD + 0.1


async def test_a_clean_up_after_the_cancel_can_have_its_own_section_and_no_nudge_disturbs_it() -> None:
    log: list[object] = []

    async def part() -> None:
        await asyncio.sleep(0.4)  # the nudge is due after 250 ms
        log.append("rolled back")

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            async with current().shield(2.0) as inside:
                log.append(inside.remaining() > 1.9)
                await asyncio.gather(part(), part())
            raise

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert log == [True, "rolled back", "rolled back"]


async def test_a_clean_up_leaves_its_section_without_a_wait() -> None:
    took = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            for _ in range(5):
                began = time.monotonic()
                async with current().shield(2.0):
                    pass
                took.append(time.monotonic() - began)
            raise

    expired(await run(plain(handler)))
    assert len(took) == 5
    assert min(took) < 0.1


async def test_a_clean_up_that_hangs_in_its_section_is_cancelled_when_its_time_is_over() -> None:
    log = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            try:
                async with current().shield(0.4):
                    await asyncio.sleep(5)
            except DeadlineExceeded:
                log.append("over")
            raise

    outcome = await run(plain(handler))
    expired(outcome)
    assert log == ["over"]
    assert outcome.released_at is not None
    assert 0.5 <= outcome.released_at < 0.8


async def test_a_section_of_a_clean_up_whose_sibling_ends_meanwhile() -> None:
    """The end of one task has the next step taken, which must not cancel what the section has begun."""
    log = []

    async def part() -> None:
        await asyncio.sleep(0.1)
        log.append("rolled back")

    async def cleans_up() -> None:
        try:
            await anyio.sleep(5)
        except asyncio.CancelledError:
            with current().shield(2.0):
                await asyncio.create_task(part())
            raise

    async def ends_later() -> None:
        try:
            await anyio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    async def handler() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(cleans_up)
            group.start_soon(ends_later)

    async with nothing_left():
        expired(await run(plain(handler)))
    assert log == ["rolled back"]


async def test_a_clean_up_has_its_patience_after_its_section_too() -> None:
    log = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            async with current().shield(2.0):
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.1)  # without the section it has 250 ms
            log.append("clean")
            raise

    expired(await run(plain(handler)))
    assert log == ["clean"]


# -- what others do ----------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("cancel_after", [0.03, 0.15])
async def test_a_foreign_cancel_is_not_held_back(form: Form, cancel_after: float) -> None:
    """Before the deadline, and after it while ours is held back."""
    inside: list[float] = []

    async def handler() -> None:
        async with form(current().shield(2.0)):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                inside.append(time.monotonic())
                raise

    shell = Shell(plain(handler))
    outcome = Outcome()

    async def server() -> None:
        await shell({"type": "http"}, outcome)

    began = time.monotonic()
    task = asyncio.create_task(server())
    asyncio.get_running_loop().call_later(cancel_after, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(inside) == 1
    assert inside[0] - began < cancel_after + 0.1
    await until(lambda: shell.taken == 0)
    assert outcome.releases == 1


async def test_a_failing_group_cancels_the_section_of_its_sibling() -> None:
    ended = []

    async def fails() -> None:
        await asyncio.sleep(0.02)
        raise LookupError

    async def commit() -> None:
        try:
            async with current().shield(2.0):
                await asyncio.sleep(1)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def handler() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(commit())
                group.create_task(fails())
        except* LookupError:
            ended.append("failed")

    assert (await run(plain(handler), deadline=5.0)).status == 200
    assert ended == ["cancelled", "failed"]


async def test_an_own_timeout_around_a_section_is_told_from_ours() -> None:
    async def handler() -> None:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.02), current().shield(2.0):
                await asyncio.sleep(1)
        assert not isinstance(caught.value, DeadlineExceeded)
        with pytest.raises(TimeoutError) as caught:
            async with current().shield(2.0):
                raise TimeoutError("somebody else's")
        assert not isinstance(caught.value, DeadlineExceeded)

    assert (await run(plain(handler), deadline=5.0)).status == 200


async def test_an_error_of_the_section_passes_and_the_cancel_comes_at_the_next_wait() -> None:
    log: list[object] = []

    async def handler() -> None:
        try:
            async with current().shield(2.0):
                await asyncio.sleep(HELD)
                raise LookupError("the commit failed")
        except LookupError as error:
            log.append(str(error))
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    expired(await run(plain(handler)))
    assert log == ["the commit failed", "cancelled"]


# -- in each other -----------------------------------------------------------------------------------------------------


async def test_a_section_inside_a_section_ends_with_it_at_the_latest() -> None:
    async def handler() -> None:
        with current().shield(0.3) as outer, current().shield(2.0) as inner:
            assert inner.remaining() <= 0.3
            with inner.shield(0.1) as innermost:
                assert innermost.remaining() <= 0.1
            with outer.within(0.05) as less, less.shield(2.0) as restored:
                assert less.remaining() <= 0.05
                assert 0.1 < restored.remaining() <= 0.3

    outcome = await run(plain(handler), deadline=5.0)
    assert (outcome.status, outcome.raised) == (200, None)


async def test_the_inner_section_of_two_gives_the_cancel_to_the_outer_one() -> None:
    log = []

    async def handler() -> None:
        async with current().shield(2.0):
            async with current().shield(1.0):
                await asyncio.sleep(HELD)
            await asyncio.sleep(0.05)
            log.append("outer")
        log.append("went on")

    expired(await run(plain(handler)))
    assert log == ["outer"]


async def test_of_two_sections_at_once_the_later_one_ends_the_wait() -> None:
    log = []

    async def commit(seconds: float) -> None:
        async with current().shield(2.0):
            await asyncio.sleep(seconds)
            log.append(seconds)

    async def handler() -> None:
        await asyncio.gather(commit(0.15), commit(0.3))
        await asyncio.sleep(5)

    outcome = await run(plain(handler))
    expired(outcome)
    assert log == [0.15, 0.3]
    assert outcome.released_at is not None
    assert outcome.released_at < 0.5


@FORMS
async def test_a_section_holds_a_scope_around_it_back_and_no_longer_than_it_takes(form: Form) -> None:
    log = []
    task = asyncio.current_task()
    assert task is not None
    began = time.monotonic()

    async def work() -> None:
        async with form(current().shield(1.0)) as inside:
            await asyncio.sleep(0.15)
            inside.check()
            log.append("committed")
        await asyncio.sleep(5)

    with pytest.raises(DeadlineExceeded, match=r"within 0\.05"):
        async with current().within(0.05):
            await work()
    assert log == ["committed"]
    assert time.monotonic() - began < 0.4
    assert task.cancelling() == 0


@FORMS
async def test_a_scope_around_a_section_ends_it_when_its_time_is_over(form: Form) -> None:
    task = asyncio.current_task()
    assert task is not None
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"within 0\.02"):
        async with current().within(0.02), form(current().shield(0.15)):
            await asyncio.sleep(5)
    assert 0.14 <= time.monotonic() - began < 0.4
    assert task.cancelling() == 0


@pytest.mark.in_real_time
async def test_a_scope_whose_child_is_in_a_section_waits_for_it() -> None:
    log = []

    async def commit() -> None:
        async with current().shield(1.0):
            await asyncio.sleep(0.15)
            log.append("committed")
        await asyncio.sleep(5)

    async def in_a_thread() -> None:
        await asyncio.to_thread(sync_commit)

    def sync_commit() -> None:
        with current().shield(1.0):
            time.sleep(0.15)
            log.append("committed")

    with pytest.raises(DeadlineExceeded):
        async with current().within(0.05):
            await asyncio.gather(commit(), in_a_thread())
    assert log == ["committed", "committed"]


async def test_a_scope_that_is_left_before_the_section_of_its_task_does_not_matter() -> None:
    async def commit() -> None:
        async with current().shield(1.0):
            await asyncio.sleep(0.05)

    async with current().within(0.5):
        task = asyncio.create_task(commit())
        await asyncio.sleep(0.01)
    await task


async def test_within_a_section_a_scope_shrinks() -> None:
    async def handler() -> None:
        async with current().shield(2.0):
            await asyncio.sleep(DEADLINE + 0.05)
            async with current().within(10) as same:
                assert 1 < same.remaining() <= 2
            with pytest.raises(DeadlineExceeded, match=r"within 0\.02"):
                async with current().within(0.02):
                    await asyncio.sleep(5)
            log.append("committed")

    log: list[str] = []
    expired(await run(plain(handler)))
    assert log == ["committed"]


async def test_a_task_that_goes_on_after_its_section_is_told_of_the_request_again() -> None:
    seen: list[object] = []
    tasks = []

    async def goes_on() -> None:
        await asyncio.sleep(0.12)
        seen.append((current().cancel_reason, current().remaining()))
        with current().shield(1.0) as inside:
            seen.append(inside.remaining() > 0.5)

    async def handler() -> None:
        async with current().shield(2.0):
            tasks.append(asyncio.create_task(goes_on()))
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.wait(tasks)

    expired(await run(plain(handler)))
    assert seen == [(CancelReason.DEADLINE, 0.0), True]


# -- edges -------------------------------------------------------------------------------------------------------------


async def test_outside_a_request_it_is_a_bound_and_nothing_else() -> None:
    assert current() is NO_REQUEST
    with current().shield(0.5) as inside:
        assert 0.4 < inside.remaining() <= 0.5
        assert inside.cancel_reason is None
    with current().shield() as inside:
        assert 0.9 < inside.remaining() <= 1.0
    with pytest.raises(DeadlineExceeded):
        async with current().shield(0.02):
            await asyncio.sleep(5)
    assert current() is NO_REQUEST


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), 61, "1", True])
def test_a_section_has_a_bound(seconds: Any) -> None:
    with pytest.raises(ValueError, match=r"seconds=.* is not allowed: it must be a number from 0 to 60"):
        current().shield(seconds)


async def test_a_section_is_entered_once() -> None:
    section = current().shield(1.0)
    with section:
        pass
    with pytest.raises(RuntimeError, match="entered once"), section:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        async with section:
            pass


async def test_a_forgotten_section_is_closed_by_the_collector_and_gives_the_slot_back() -> None:
    def generator() -> Any:
        with current().shield(30.0):
            yield

    async def handler() -> None:
        cycle: list[object] = [forgotten := generator()]
        cycle.append(cycle)
        next(forgotten)
        del forgotten, cycle
        gc.collect()

    outcome = await run(plain(handler), deadline=5.0)
    assert outcome.status == 200
    assert outcome.released_at is not None
    assert outcome.released_at < 1.0


@pytest.mark.parametrize("over", [False, True])
async def test_the_collector_waits_for_no_lock(monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    """It may end a forgotten section while this very thread holds the lock."""
    taken: list[str] = []

    class Watched:
        def __enter__(self) -> None:
            taken.append("taken")

        def __exit__(self, *_: object) -> None:
            pass

    def generator() -> Any:
        with current().shield(30.0):
            yield

    async def handler() -> None:
        forgotten = generator()
        next(forgotten)
        if over:
            await asyncio.sleep(0.15)
        with monkeypatch.context() as patched:
            patched.setattr(supervised, "_lock", Watched())
            del forgotten
        if over:
            await asyncio.sleep(5)

    outcome = await run(plain(handler), deadline=0.1 if over else 5.0)
    assert (outcome.status, outcome.raised) == (504 if over else 200, None)
    assert taken == []
    assert outcome.releases == 1


async def test_sections_at_random_instants_always_complete_and_leave_no_trace() -> None:
    """200 requests whose section begins and ends around the deadline: before, after, across."""
    done = []

    async def one(number: int) -> None:
        async def handler() -> None:
            await asyncio.sleep(0.0006 * number)
            async with current().shield(1.0):
                began.add(number)
                await asyncio.sleep(0.02)
                done.append(number)
            await asyncio.sleep(0.5)

        outcome = await serve(Shell(plain(handler), deadline=0.07))
        assert (outcome.status, outcome.raised, outcome.cancelling) == (504, None, 0)

    began: set[int] = set()
    async with nothing_left():
        await asyncio.gather(*(one(number) for number in range(200)))
    assert sorted(done) == sorted(began)
    assert 20 < len(done) < 200
