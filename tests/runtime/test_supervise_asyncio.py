"""How supervision gets on with what a handler builds from asyncio: groups, timeouts, threads, foreign cancels."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import random
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime import survey as survey_module
from resilient_mw.runtime.context import current
from tests.runtime.small_shell import (
    DEADLINE,
    Exchange,
    Held,
    Outcome,
    Shell,
    expired,
    http_scope,
    nothing_left,
    plain,
    run,
    run_held,
    serve,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


class Log:
    """What the parts of a handler did."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.clean: list[str] = []
        self.cancels = 0

    async def work(self, name: str, clean_up: float = 0.03) -> None:
        """Wait long; when cancelled, clean up with several awaits, which one more cancel would break."""
        self.begun.append(name)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            self.cancels += 1
            for _ in range(3):
                await asyncio.sleep(clean_up / 3)
            self.clean.append(name)
            raise


async def _group(log: Log) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(log.work("a"))
        group.create_task(log.work("b", 0.06))


async def _group_body(log: Log) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(log.work("a"))
        await log.work("b", 0.06)


async def _gather(log: Log) -> None:
    await asyncio.gather(log.work("a"), log.work("b", 0.03))


async def _gather_exceptions(log: Log) -> None:
    await asyncio.gather(log.work("a"), log.work("b", 0.06), return_exceptions=True)
    log.clean.append("the parent went on")


async def _wait_for(log: Log) -> None:
    await asyncio.wait_for(log.work("a"), 3)


async def _timeout(log: Log) -> None:
    async with asyncio.timeout(3):
        await log.work("a")


async def _task(log: Log) -> None:
    await asyncio.create_task(log.work("a"))


async def _deep(log: Log) -> None:
    async with asyncio.timeout(3), asyncio.TaskGroup() as group:
        group.create_task(_gather(log))
        group.create_task(_wait_for(log))


async def _generator(log: Log) -> None:
    async def numbers() -> AsyncIterator[int]:
        await log.work("a")
        yield 1

    async for _ in numbers():
        pass


async def _context_manager(log: Log) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        try:
            yield
        finally:
            for _ in range(3):
                await asyncio.sleep(0.01)
            log.clean.append("resource")

    async with resource():
        await log.work("a")


SHAPES = [
    _group, _group_body, _gather, _gather_exceptions, _wait_for, _timeout, _task, _deep, _generator, _context_manager,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_part_is_cancelled_once_and_cleans_up(shape: Callable[[Log], Awaitable[None]]) -> None:
    log = Log()
    async with nothing_left():
        outcome = await run(plain(lambda: shape(log)))
    expired(outcome)
    assert set(log.begun) <= set(log.clean)
    assert log.cancels == len(log.begun)
    assert "the parent went on" not in log.clean
    assert outcome.late == 0


async def test_shielded_work_is_not_cancelled() -> None:
    log = []
    release = asyncio.Event()

    async def shared() -> None:
        await release.wait()
        log.append("shared")

    task = asyncio.create_task(shared())

    async def handler() -> None:
        await asyncio.shield(task)

    outcome = await run(plain(handler))
    expired(outcome)
    assert outcome.releases == 1
    release.set()
    await task
    assert log == ["shared"]


@pytest.mark.in_real_time
async def test_a_bare_wait_leaves_its_tasks_alone_as_without_us() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(release.wait())

    async def handler() -> None:
        await asyncio.wait([task])

    expired(await run(plain(handler)))
    assert not task.done()
    release.set()
    await task


# -- threads -----------------------------------------------------------------------------------------------------------


async def _to_thread(held: Held) -> None:
    await asyncio.to_thread(held.work)


async def _executor(held: Held) -> None:
    await asyncio.get_running_loop().run_in_executor(None, held.work)


async def _thread_in_gather(held: Held) -> None:
    await asyncio.gather(asyncio.to_thread(held.work), asyncio.sleep(5))


async def _futures_in_gather(held: Held) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*(loop.run_in_executor(None, held.work) for _ in range(2)))


async def _thread_in_group(held: Held) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(held.work))


async def _thread_in_group_with_a_busy_body(held: Held) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(held.work))
        await asyncio.sleep(5)


async def _thread_in_wait_for(held: Held) -> None:
    await asyncio.wait_for(asyncio.to_thread(held.work), 3)


async def _thread_in_task(held: Held) -> None:
    await asyncio.create_task(asyncio.to_thread(held.work))


async def _thread_in_wait(held: Held) -> None:
    await asyncio.wait([asyncio.create_task(asyncio.to_thread(held.work))])


async def _thread_in_shield(held: Held) -> None:
    await asyncio.shield(asyncio.to_thread(held.work))


async def _thread_below_own_timeout(held: Held) -> None:
    async with asyncio.timeout(3):
        await asyncio.to_thread(held.work)


async def _thread_behind_a_context_manager(held: Held) -> None:
    @asynccontextmanager
    async def resource() -> AsyncIterator[None]:
        await asyncio.to_thread(held.work)
        yield

    async with resource():
        pass


async def _thread_in_a_generator(held: Held) -> None:
    async def numbers() -> AsyncIterator[int]:
        await asyncio.to_thread(held.work)
        yield 1

    async for _ in numbers():
        pass


THREADS = [
    _to_thread, _executor, _thread_in_gather, _futures_in_gather, _thread_in_group, _thread_in_group_with_a_busy_body,
    _thread_in_wait_for, _thread_in_task, _thread_in_wait, _thread_in_shield, _thread_below_own_timeout,
    _thread_behind_a_context_manager, _thread_in_a_generator,
]  # fmt: skip


@pytest.mark.parametrize("shape", THREADS)
@pytest.mark.in_real_time
async def test_b17_the_504_leaves_on_time_and_the_slot_is_held_until_the_thread_ends(
    shape: Callable[[Held], Awaitable[None]],
) -> None:
    """B17: the caller is answered at the deadline, the slot does not lie about the thread."""
    held = Held()
    async with nothing_left():
        outcome = await run_held(plain(lambda: shape(held)), held, late=True)
        assert held.ended
        assert 0 <= outcome.freed_after(max(held.ended)) < 2.0
    expired(outcome)
    assert outcome.late == 1


@pytest.mark.in_real_time
async def test_a_handler_whose_thread_is_back_ends_by_itself_or_is_cancelled_after_50_ms() -> None:
    log: list[str] = []
    held = Held()

    async def quick() -> None:
        await asyncio.to_thread(held.work)
        await asyncio.sleep(0)
        log.append("ended by itself")

    async def slow() -> None:
        await asyncio.to_thread(held.work)
        await asyncio.sleep(5)

    outcome = await run_held(plain(quick), held)
    expired(outcome)
    assert outcome.dropped == 2
    assert log == ["ended by itself"]
    held = Held()
    outcome = await run_held(plain(slow), held)
    expired(outcome)
    assert 0.045 <= outcome.freed_after(held.ended[0]) < 2.0


@pytest.mark.in_real_time
async def test_a_handler_that_is_cancelled_after_its_thread_has_its_whole_time_from_then_on() -> None:
    log: list[str] = []
    held = Held()

    async def handler() -> None:
        await asyncio.to_thread(held.work)
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.05)
            log.append("clean")

    outcome = await run_held(plain(handler), held, late=True)
    expired(outcome)
    assert log == ["clean"]
    assert outcome.late == 1


@pytest.mark.in_real_time
async def test_the_next_thread_that_a_handler_starts_in_its_grace_holds_the_slot_as_well() -> None:
    first, second = Held(), Held()

    async def handler() -> None:
        await asyncio.to_thread(first.work)
        asyncio.get_running_loop().call_later(0.2, second.release.set)
        await asyncio.to_thread(second.work)
        await asyncio.sleep(5)

    outcome = await run_held(plain(handler), first)
    expired(outcome)
    assert outcome.freed_after(second.ended[0]) >= 0


@pytest.mark.in_real_time
async def test_a_begun_response_is_closed_at_once_although_a_thread_runs() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.to_thread(held.work)

    held = Held()
    shell = Shell(app)
    outcome = await serve(shell)
    assert outcome.status == 200
    assert outcome.releases == 0
    held.release.set()
    await until(lambda: shell.taken == 0)
    assert 0 <= outcome.freed_after(held.ended[0]) < 2.0


@pytest.mark.in_real_time
async def test_work_that_still_queues_for_a_thread_never_runs() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    held = Held()
    blocked = pool.submit(held.work)
    ran: list[str] = []

    async def direct() -> None:
        await loop.run_in_executor(pool, ran.append, "direct")

    async def gathered() -> None:
        await asyncio.gather(*(loop.run_in_executor(pool, ran.append, "gathered") for _ in range(3)))

    async def in_tasks() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(direct())

    async with nothing_left():
        outcomes = await asyncio.gather(*(run(plain(handler)) for handler in (direct, gathered, in_tasks)))
        for outcome in outcomes:
            expired(outcome)
        assert not blocked.done()
        held.release.set()
        await asyncio.wrap_future(blocked)
        await loop.run_in_executor(pool, int)
    assert ran == []
    pool.shutdown()


@pytest.mark.in_real_time
async def test_what_queues_behind_running_calls_of_one_gather_never_runs() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    ran: list[int] = []
    held = Held()

    def call(number: int) -> None:
        held.work()
        ran.append(number)

    async def handler() -> None:
        await asyncio.gather(*(loop.run_in_executor(pool, call, number) for number in range(5)))

    outcome = await run_held(plain(handler), held)
    expired(outcome)
    await loop.run_in_executor(pool, int)
    assert ran == [0]
    assert outcome.freed_after(held.ended[0]) >= 0
    pool.shutdown()


@pytest.mark.in_real_time
async def test_a_call_that_leaves_its_queue_in_spite_of_the_cancel_holds_the_slot() -> None:
    """The queue is left between the look at it and the cancel that reaches it one turn later."""
    entered = threading.Event()
    go = threading.Event()
    ended: list[float] = []

    class Late(concurrent.futures.ThreadPoolExecutor):
        """Gives its call to a thread at the very moment when the request is looked at."""

        def submit(self, *args: Any, **more: Any) -> Any:
            go.clear()
            blocker = super().submit(go.wait)
            future = super().submit(*args, **more)
            assert not blocker.done()
            return future

    pool = Late(1)

    def call() -> None:
        entered.set()
        time.sleep(0.3)
        ended.append(time.monotonic())

    async def handler() -> None:
        await asyncio.get_running_loop().run_in_executor(pool, call)

    looked = survey_module.survey

    def look_and_let_go(task: asyncio.Task[Any]) -> survey_module.Survey:
        found = looked(task)
        if found.queued:
            go.set()
            assert entered.wait(2)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resilient_mw.runtime.stopping.survey", look_and_let_go)
        outcome = await run(plain(handler))
    expired(outcome)
    assert outcome.freed_after(ended[0]) >= 0
    pool.shutdown()


@pytest.mark.in_real_time
async def test_a_pool_of_2_and_a_limit_of_2_never_has_more_than_2_threads_at_work() -> None:
    pool = concurrent.futures.ThreadPoolExecutor(8)
    loop = asyncio.get_running_loop()
    lock = threading.Lock()
    at_work = most = 0

    def call(exchange: Exchange) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        while exchange.reason is None:
            time.sleep(0.005)
        time.sleep(0.09)
        with lock:
            at_work -= 1

    async def handler() -> None:
        exchange = current()
        assert isinstance(exchange, Exchange)
        await loop.run_in_executor(pool, call, exchange)

    shell = Shell(plain(handler), deadline=0.03)
    outcomes = []
    door = asyncio.Lock()

    async def client() -> None:
        async with door:  # in place of admission
            await until(lambda: shell.taken < 2)
            request = asyncio.create_task(serve(shell))
            await asyncio.sleep(0.001)
        outcomes.append(await request)

    async with nothing_left():
        await asyncio.gather(*(client() for _ in range(20)))
        await until(lambda: shell.taken == 0)
    assert [outcome.status for outcome in outcomes] == [504] * 20
    assert all(outcome.releases == 1 for outcome in outcomes)
    assert most == 2
    pool.shutdown()


@pytest.mark.in_real_time
async def test_many_threads_left_behind_at_once_each_free_their_own_slot() -> None:
    shell = Shell(
        plain(lambda: asyncio.gather(asyncio.to_thread(time.sleep, 0.3), asyncio.sleep(5))), deadline=0.05
    )
    async with nothing_left():
        outcomes = await asyncio.gather(*(serve(shell) for _ in range(4)))
        assert shell.taken == 4
        await until(lambda: shell.taken == 0)
    assert all(outcome.releases == 1 for outcome in outcomes)


# -- more than one cause at once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", range(21))
@pytest.mark.parametrize("in_group", [False, True])
async def test_b19_a_foreign_cancel_around_the_deadline_always_ends_in_cancelled_error(
    step: int, in_group: bool
) -> None:
    """B19: 21 offsets of 0.2 ms around the deadline."""
    offset = (step - 10) * 0.0002
    log = Log()
    shape = _group if in_group else _task
    shell = Shell(plain(lambda: shape(log)), deadline=0.03)
    outcome = Outcome()

    async def connection() -> None:
        try:
            await shell(http_scope(), outcome)
        finally:
            task = asyncio.current_task()
            assert task is not None
            outcome.cancelling = task.cancelling()

    async with nothing_left():
        task = asyncio.create_task(connection())
        asyncio.get_running_loop().call_later(0.03 + offset, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: shell.taken == 0)
    assert task.cancelled()
    assert outcome.cancelling == 1  # the foreign one stays, ours has been undone
    assert outcome.releases == 1


@pytest.mark.parametrize("step", range(21))
async def test_an_own_timeout_around_the_deadline_is_told_from_ours(step: int) -> None:
    offset = (step - 10) * 0.0002
    seen: list[str] = []

    async def handler() -> None:
        try:
            async with asyncio.timeout(0.03 + offset):
                await asyncio.sleep(5)
        except TimeoutError:
            seen.append("timeout")
            await asyncio.sleep(5)

    outcome = await run(plain(handler), deadline=0.03)
    assert outcome.status == 504
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert outcome.returned_at is not None
    assert outcome.returned_at < 2.0


@pytest.mark.parametrize("deadline", [0.02, 0.029, 0.03, 0.0305, 0.031, 0.04])
async def test_a_failing_group_at_the_deadline_leaves_no_count_of_ours(deadline: float) -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(0.03)
        finally:
            raise ValueError("child")

    async def handler() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(asyncio.sleep(5))

    outcome = await run(plain(handler), deadline=deadline)
    if outcome.status == 504 and outcome.raised is None:
        assert outcome.cancelling == 0
    else:
        # Before Python 3.13 a group whose child fails while the group is being left forgets to uncancel its task.
        # That count cannot be told from a foreign cancel.
        assert outcome.cancelling == (1 if sys.version_info < (3, 13) else 0)
        assert outcome.status is None or isinstance(outcome.raised, asyncio.CancelledError)


async def test_b19_five_hundred_random_races_settle_right() -> None:
    """B19: whatever comes first, a foreign cancel ends in CancelledError and ours never does."""
    rng = random.Random(19)
    foreigners: list[bool] = []
    shell = Shell(plain(lambda: asyncio.sleep(5)), deadline=0.02)

    async def one() -> None:
        foreign = False
        outcome = Outcome()

        def cancel() -> None:
            nonlocal foreign
            foreign = task.cancel()  # False when the request has ended already

        task = asyncio.create_task(shell(http_scope(), outcome, 0.02))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        if rng.random() < 0.5:
            loop.call_later(0.02 + rng.uniform(-0.001, 0.001), cancel)
        if rng.random() < 0.5:
            loop.call_later(0.02 + rng.uniform(-0.001, 0.001), outcome.disconnect)
        await asyncio.wait([task])
        assert task.cancelled() is foreign
        if not foreign:
            assert task.exception() is None
        foreigners.append(foreign)
        assert outcome.releases == 1
        assert task.cancelling() == (1 if foreign else 0)

    async with nothing_left():
        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(50)))
    assert shell.taken == 0
    assert not shell.supervisor.in_flight
    assert 50 < sum(foreigners) < 450


async def test_b23_afterwards_the_task_can_time_out_and_group_again() -> None:
    """B23: what we cancelled we also uncancel, so that later scopes in the same task work."""
    shell = Shell(plain(lambda: asyncio.sleep(5)), deadline=0.03)
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        outcome = Outcome()
        await shell(http_scope(), outcome)
        assert outcome.status == 504
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            child = group.create_task(asyncio.sleep(0.001, "ok"))
        assert child.result() == "ok"
        with pytest.raises(ExceptionGroup):
            await _failing_group()
    assert task.cancelling() == 0


async def _failing_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raise())
        await asyncio.sleep(1)


async def _raise() -> None:
    raise ValueError("child")


@pytest.mark.parametrize(("inner", "outer"), [(0.03, 0.2), (0.2, 0.03), (0.03, 0.03), (0.03, 0.035)])
async def test_b23_ours_in_ours(inner: float, outer: float) -> None:
    """B23: nested, the shorter one first or last, or both at once."""
    log = Log()
    inside = Shell(plain(lambda: log.work("a", 0.01)), deadline=inner)
    inner_outcome = Outcome()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inside(scope, inner_outcome)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with nothing_left():
        outcome = await run(app, deadline=outer)
    assert outcome.cancelling == 0
    assert outcome.raised is None
    assert inner_outcome.releases == 1
    if outer > inner + 0.1:
        assert (inner_outcome.status, outcome.status) == (504, 200)
    elif inner > outer:
        assert (inner_outcome.status, outcome.status) == (None, 504)
    else:
        assert outcome.status in {200, 504}


async def test_b23_the_outer_one_expires_during_the_clean_up_of_the_innermost_of_three() -> None:
    """B23: three levels."""
    log = Log()
    outcomes = [Outcome(), Outcome()]
    innermost = Shell(plain(lambda: log.work("a", 0.09)), deadline=0.03)

    async def middle_app(scope: Any, receive: Any, send: Any) -> None:
        await innermost(scope, outcomes[0])
        await asyncio.sleep(5)

    middle = Shell(middle_app, deadline=0.5)

    async def outer_app(scope: Any, receive: Any, send: Any) -> None:
        await middle(scope, outcomes[1])

    async with nothing_left():
        outcome = await run(outer_app, deadline=0.06)
    assert outcome.status == 504
    assert outcome.cancelling == 0
    assert [each.releases for each in outcomes] == [1, 1]


@pytest.mark.in_real_time
async def test_b20_two_hundred_requests_leave_no_connection_checked_out() -> None:
    """B20: the clean-up awaits three times; half of the callers leave, half expire."""

    class Pool:
        def __init__(self) -> None:
            self.out = 0

        @asynccontextmanager
        async def connection(self) -> AsyncIterator[None]:
            self.out += 1
            try:
                yield
            finally:
                for _ in range(3):
                    await asyncio.sleep(0.001)
                self.out -= 1

    pool = Pool()

    async def handler() -> None:
        async with pool.connection():
            await asyncio.sleep(5)

    shell = Shell(plain(handler), deadline=0.1)

    async def one(leaves: bool) -> Outcome:
        outcome = Outcome()
        if leaves:
            asyncio.get_running_loop().call_later(0.05, outcome.disconnect)
        return await serve(shell, outcome=outcome)

    async with nothing_left():
        outcomes = await asyncio.gather(*(one(number % 2 == 0) for number in range(200)))
    assert pool.out == 0
    assert shell.taken == 0
    assert [outcome.status for outcome in outcomes] == [None, 504] * 100


async def test_b14_an_abandoned_generator_causes_no_complaint() -> None:
    """B14: context managers, generators and groups open at the disconnect close in their own task."""
    log: list[str] = []

    @asynccontextmanager
    async def dependency() -> AsyncIterator[asyncio.Task[Any] | None]:
        entered = asyncio.current_task()
        async with asyncio.timeout(5):
            try:
                yield entered
            finally:
                assert asyncio.current_task() is entered
                await asyncio.sleep(0.01)
                log.append("closed")

    async def numbers() -> AsyncGenerator[int, None]:
        async with dependency():
            yield 1
            yield 2

    async def handler() -> None:
        async with dependency():
            stream = numbers()
            async with contextlib.aclosing(stream):
                await anext(stream)
                await asyncio.gather(asyncio.sleep(5), asyncio.sleep(5))

    shell = Shell(plain(handler), deadline=5)
    async with nothing_left():
        request = asyncio.create_task(serve(shell))
        await asyncio.sleep(0.05)
        assert shell.exchange is not None
        shell.exchange.disconnect()
        outcome = await request
    gc.collect()
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert log == ["closed", "closed"]


@pytest.mark.in_real_time
async def test_b13_the_same_deadline_everywhere_and_no_value_of_another_request() -> None:
    """B13: handler, child task, thread and nested coroutine see their own request, 50 at once."""
    wrong: list[object] = []

    async def handler() -> None:
        mine = current()

        async def check() -> None:
            for _ in range(5):
                await asyncio.sleep(0.002)
                if current() is not mine:
                    wrong.append(current())

        await asyncio.gather(asyncio.create_task(check()), check(), asyncio.to_thread(lambda: None))
        if await asyncio.to_thread(current) is not mine:
            wrong.append("thread")

    shell = Shell(plain(handler), deadline=5)
    await asyncio.gather(*(serve(shell) for _ in range(50)))
    assert wrong == []


async def test_shutdown_ends_everything_in_flight() -> None:
    log = Log()
    shell = Shell(plain(lambda: log.work("a")), deadline=5)
    requests = [asyncio.create_task(serve(shell)) for _ in range(20)]
    await asyncio.sleep(0.02)
    for record in tuple(shell.supervisor.in_flight):
        shell.supervisor.fire_soon(record, CancelReason.SHUTDOWN)
    outcomes = await asyncio.gather(*requests)
    assert len(log.clean) == 20
    assert all(outcome.raised is None and outcome.releases == 1 for outcome in outcomes)


async def test_a_foreign_cancel_while_the_504_is_written_passes_and_ends_it() -> None:
    written = asyncio.Event()

    class Stuck(Exchange):
        async def _expired(self) -> None:
            written.set()
            await asyncio.sleep(60)

    outcome = Outcome()
    shell = Shell(plain(lambda: asyncio.sleep(5)), deadline=0.03)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.runtime.small_shell.Exchange", Stuck)
        async with nothing_left():
            task = asyncio.create_task(shell(http_scope(), outcome))
            await written.wait()
            await until(lambda: shell.taken == 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outcome = Outcome()
            start = time.monotonic()
            await shell(http_scope(), outcome)
            assert 1.0 <= time.monotonic() - start < 10.0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
@pytest.mark.parametrize("shape", [*SHAPES])
async def test_eager_tasks(shape: Callable[[Log], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    log = Log()
    outcome = await run(plain(lambda: shape(log)))
    expired(outcome)
    assert set(log.begun) <= set(log.clean)
    assert log.cancels == len(log.begun)
    assert outcome.cancelling == 0
    assert (outcome.answered_at or 0) >= DEADLINE
