"""Supervision without any library: when things fire, what is undone, when the slot comes back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from typing import Any

import pytest

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime import stopping
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, current
from resilient_mw.runtime.supervise import Supervised, Supervisor
from tests.runtime.small_shell import (
    DEADLINE,
    ON_TIME,
    Exchange,
    Held,
    Outcome,
    Shell,
    expired,
    nothing_left,
    plain,
    run,
    serve,
    until,
)


def bare(loop: asyncio.AbstractEventLoop, supervisor: Supervisor, deadline: float = 10.0) -> Exchange:
    task = asyncio.current_task()
    assert task is not None
    return Exchange(supervisor, deadline, Outcome(), time.monotonic())


async def test_a_fast_request_makes_no_task_and_no_timer_beyond_the_tick() -> None:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(loop)
    timers = tasks = 0
    call_later, create_task = loop.call_later, loop.create_task

    def counted_timer(*args: Any, **more: Any) -> Any:
        nonlocal timers
        timers += 1
        return call_later(*args, **more)

    def counted_task(*args: Any, **more: Any) -> Any:
        nonlocal tasks
        tasks += 1
        return create_task(*args, **more)

    loop.call_later, loop.create_task = counted_timer, counted_task  # type: ignore[assignment,method-assign]
    released = 0

    def release() -> None:
        nonlocal released
        released += 1

    try:
        for _ in range(200):
            record = bare(loop, supervisor)
            supervisor.enter(record)
            supervisor.leave(record, release)
    finally:
        loop.call_later, loop.create_task = call_later, create_task  # type: ignore[method-assign]
    assert (timers, tasks, released) == (1, 0, 200)
    assert not supervisor.in_flight


async def test_a_record_is_freed_without_the_garbage_collector() -> None:
    supervisor = Supervisor(asyncio.get_running_loop())
    record = bare(asyncio.get_running_loop(), supervisor)
    gone = weakref.ref(record)
    gc.disable()
    try:
        supervisor.enter(record)
        supervisor.leave(record, lambda: None)
        del record
        assert gone() is None
    finally:
        gc.enable()


async def test_an_ended_record_is_freed_without_the_garbage_collector_too() -> None:
    shell = Shell(plain(lambda: asyncio.sleep(5)), deadline=0.03)
    outcome = await serve(shell)
    gone = weakref.ref(outcome.exchange)
    gc.disable()
    try:
        outcome.exchange = shell.exchange = None
        await asyncio.sleep(0.3)  # until the timers of its end have run
        assert gone() is None
    finally:
        gc.enable()


pytestmark = pytest.mark.usefixtures("own_time")


async def test_the_tick_lives_only_while_something_is_in_flight() -> None:
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(loop)
    ticks = 0
    call_later = loop.call_later

    def counted(delay: float, *args: Any, **more: Any) -> Any:
        nonlocal ticks
        ticks += getattr(args[0], "__name__", "") == "_tick"
        return call_later(delay, *args, **more)

    loop.call_later = counted  # type: ignore[assignment,method-assign]
    try:
        record = bare(loop, supervisor)
        supervisor.enter(record)
        await asyncio.sleep(0.22)
        supervisor.leave(record, lambda: None)
        assert 3 <= ticks <= 5
        await asyncio.sleep(0.12)
        ended = ticks
        await asyncio.sleep(0.15)
        assert ticks == ended
        supervisor.enter(bare(loop, supervisor))
        assert ticks == ended + 1
    finally:
        loop.call_later = call_later  # type: ignore[method-assign]


@pytest.mark.parametrize("budget", [0.0, 0.003, 0.02, 0.051, 0.076, 0.13])
@pytest.mark.parametrize("phase", [0.0, 0.03])
async def test_no_deadline_is_missed_by_the_phase_of_the_tick(budget: float, phase: float) -> None:
    shell = Shell(plain(lambda: asyncio.sleep(1)))
    other = asyncio.create_task(serve(shell, deadline=0.2))
    await asyncio.sleep(phase)
    outcome = await serve(shell, deadline=budget)
    assert outcome.status == 504
    assert outcome.answered_at is not None
    assert budget <= outcome.answered_at < budget + 0.04
    assert (await other).status == 504


async def test_a_timer_that_fires_early_is_armed_again_and_does_not_spin() -> None:
    class SlowClock:
        """Half as fast as the loop's clock: every timer is early."""

        def __init__(self) -> None:
            self.start = time.monotonic()

        def now(self) -> float:
            return self.start + (time.monotonic() - self.start) / 2

    class Record(Supervised):
        fired_at = 0.0

        def on_expired(self) -> None:
            self.fired_at = clock.now()

    clock = SlowClock()
    loop = asyncio.get_running_loop()
    supervisor = Supervisor(loop, clock)
    task = asyncio.create_task(asyncio.sleep(0.4))
    record = Record(task, clock.now() + 0.05, clock.now(), clock)
    armed = 0
    call_later = loop.call_later

    def counted(delay: float, *args: Any, **more: Any) -> Any:
        nonlocal armed
        armed += getattr(args[0], "__name__", "") == "_due"
        return call_later(delay, *args, **more)

    loop.call_later = counted  # type: ignore[assignment,method-assign]
    try:
        supervisor.enter(record)
        await asyncio.sleep(0.2)
    finally:
        loop.call_later = call_later  # type: ignore[method-assign]
    assert record.reason is CancelReason.DEADLINE
    assert record.fired_at >= record.deadline_at
    assert 2 <= armed <= 40
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_watching_starts_at_50_ms_and_never_for_a_short_request() -> None:
    shell = Shell(plain(lambda: asyncio.sleep(0.2)), deadline=5)
    await serve(shell)
    assert shell.exchange is not None
    assert shell.exchange.watched_at is not None
    assert 0.05 <= shell.exchange.watched_at < 0.14
    shell = Shell(plain(lambda: asyncio.sleep(0.01)), deadline=5)
    await serve(shell)
    await asyncio.sleep(0.1)
    assert shell.exchange is not None
    assert shell.exchange.watched_at is None


async def test_an_expired_handler_is_cancelled_once_and_the_server_sees_no_error() -> None:
    seen: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append("cancelled")
            for _ in range(3):
                await asyncio.sleep(0.01)
            seen.append("clean")
            raise

    async with nothing_left():
        outcome = await run(plain(handler))
    expired(outcome)
    assert seen == ["cancelled", "clean"]
    assert outcome.late == 0
    assert outcome.released_at is not None
    assert outcome.released_at < 0.2


async def test_nothing_happens_after_a_complete_response() -> None:
    done = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        await asyncio.sleep(0.3)  # a background task
        done.append(True)

    shell = Shell(app)
    request = asyncio.create_task(serve(shell))
    await asyncio.sleep(0.05)
    assert shell.exchange is not None
    shell.exchange.disconnect()
    outcome = await request
    assert done == [True]
    assert outcome.status == 200
    assert outcome.releases == 1
    assert shell.exchange.reason is None


async def test_a_disconnect_cancels_without_a_504() -> None:
    shell = Shell(plain(lambda: asyncio.sleep(5)), deadline=5)
    request = asyncio.create_task(serve(shell))
    await asyncio.sleep(0.05)
    assert shell.exchange is not None
    shell.exchange.disconnect()
    outcome = await asyncio.wait_for(request, 0.2)
    assert outcome.messages == []
    assert outcome.raised is None
    assert outcome.releases == 1
    assert shell.exchange.reason is CancelReason.CLIENT_DISCONNECT


async def test_fire_within_the_handlers_own_step_waits_for_the_next_turn() -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        record = current()
        assert isinstance(record, Exchange)
        record.supervisor.fire(record, CancelReason.SHUTDOWN)
        seen.append(record.reason)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append(record.reason)
            raise

    outcome = await run(app, deadline=5)
    assert seen == [None, CancelReason.SHUTDOWN]
    assert outcome.cancelling == 0


async def test_a_begun_response_is_cut_and_never_answered_twice() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.01)

    outcome = await run(app)
    assert outcome.status == 200
    assert not outcome.finished
    assert outcome.raised is None
    assert outcome.returned_at is not None
    assert outcome.returned_at < 0.19


async def test_a_swallowed_cancel_is_noticed_and_the_handler_nudged_once() -> None:
    seen: list[str] = []

    async def handler() -> None:
        for _ in range(3):
            try:
                await asyncio.sleep(0.8)
                seen.append("slept")
                return
            except asyncio.CancelledError:
                seen.append("swallowed")

    outcome = await run(plain(handler))
    expired(outcome)
    assert seen == ["swallowed", "swallowed", "slept"]
    assert outcome.late == 1
    assert outcome.dropped == 2
    assert outcome.released_at is not None
    assert outcome.released_at == pytest.approx(0.1 + 0.25 + 0.8, abs=0.1)


async def test_clean_up_within_the_grace_is_not_disturbed() -> None:
    seen: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(stopping.SLICE * stopping.LATE_SLICES - 0.05)
            seen.append("clean")

    outcome = await run(plain(handler))
    expired(outcome)
    assert seen == ["clean"]
    assert outcome.late == 0


async def test_a_loop_that_stands_still_uses_up_no_grace() -> None:
    seen: list[str] = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            asyncio.get_running_loop().call_later(0.01, time.sleep, 0.3)
            for _ in range(5):
                await asyncio.sleep(0.02)
            seen.append("clean")

    outcome = await run(plain(handler))
    expired(outcome)
    assert seen == ["clean"]
    assert outcome.late == 0


async def test_an_exception_in_answer_to_the_cancel_is_not_the_servers_business() -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise RuntimeError("no") from None

    expired(await run(plain(handler)))


@pytest.mark.parametrize("error", [GeneratorExit(), BaseExceptionGroup("x", [GeneratorExit()])])
async def test_what_ends_the_process_passes(error: BaseException) -> None:
    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise error from None

    outcome = await run(plain(handler))
    assert outcome.status == 504
    assert outcome.raised is error
    assert outcome.releases == 1


async def test_without_a_reason_every_exception_passes_untouched() -> None:
    error = ValueError("mine")

    async def handler() -> None:
        raise error

    outcome = await run(plain(handler))
    assert outcome.raised is error
    assert outcome.releases == 1


@pytest.mark.in_real_time
async def test_the_context_is_current_inside_and_gone_outside() -> None:
    seen: list[object] = []

    async def handler() -> None:
        seen.append(current())
        await asyncio.gather(asyncio.to_thread(lambda: seen.append(current())))
        await asyncio.sleep(5)

    shell = Shell(plain(handler))
    outer = asyncio.create_task(serve(shell))
    await outer
    assert seen == [shell.exchange, shell.exchange]
    assert CURRENT.get() is NO_REQUEST


async def test_the_timers_of_one_request_keep_no_context_of_another_alive() -> None:
    """The tick is started by some request; what it starts later belongs to nobody."""
    seen = []

    class Record(Supervised):
        def start_watching(self) -> None:
            seen.append(current())

    task = asyncio.current_task()
    assert task is not None
    supervisor = Supervisor(asyncio.get_running_loop())
    first, second = Record(task), Record(task)
    token = CURRENT.set(first)
    supervisor.enter(first)
    CURRENT.reset(token)
    supervisor.enter(second)
    await asyncio.sleep(0.15)
    supervisor.leave(first, lambda: None)
    supervisor.leave(second, lambda: None)
    assert seen == [NO_REQUEST, NO_REQUEST]


async def test_a_hook_may_end_requests_while_the_tick_looks_at_all() -> None:
    class Record(Supervised):
        def start_watching(self) -> None:
            for other in [each for each in supervisor.in_flight if each is not self]:
                supervisor.leave(other, lambda: released.append(True))

    task = asyncio.current_task()
    assert task is not None
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    released: list[bool] = []
    supervisor = Supervisor(loop)
    for _ in range(50):
        supervisor.enter(Record(task))
    await asyncio.sleep(0.12)
    assert complaints == []
    assert len(released) >= 49


async def test_what_has_just_come_is_not_taken_away() -> None:
    """A cancel at the instant of the resume would lose the value of a slow `__enter__`, and nobody would close it."""
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[str] = loop.create_future()
    log: list[str] = []

    async def handler() -> None:
        resource = await coming
        try:
            log.append(f"{resource} opened")
            await asyncio.sleep(5)
        finally:
            log.append(f"{resource} closed")

    shell = Shell(plain(handler), deadline=5)
    outcome = Outcome()
    request = asyncio.create_task(serve(shell, outcome=outcome))
    await asyncio.sleep(0.02)

    def at_the_same_turn() -> None:
        assert outcome.exchange is not None
        coming.set_result("resource")
        shell.supervisor.fire(outcome.exchange, CancelReason.SHUTDOWN)

    loop.call_soon(at_the_same_turn)
    await asyncio.wait_for(request, 1)
    assert log == ["resource opened", "resource closed"]
    assert outcome.late == 0


async def test_who_still_listens_at_the_end_hears_of_a_disconnect() -> None:
    heard: list[Any] = []
    keep: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

        async def listen() -> None:
            heard.append(await receive())

        keep.append(asyncio.create_task(listen()))  # an orphan
        await asyncio.sleep(5)

    async with nothing_left():
        expired(await run(app))
    assert heard == [{"type": "http.disconnect"}]


# -- on_cancel ---------------------------------------------------------------------------------------------------------


async def test_b22_cancel_callbacks_run_before_the_slot_is_given_on() -> None:
    """B22: what has to be discarded is discarded before the next request may use it."""
    log: list[object] = []

    async def hook(reason: CancelReason) -> None:
        log.append((reason, current()))
        await asyncio.sleep(0.15)
        log.append("hook")

    async def handler() -> None:
        current().on_cancel(lambda reason: log.append("sync"))
        current().on_cancel(hook)
        await asyncio.sleep(5)

    async with nothing_left():
        shell = Shell(plain(handler))
        outcome = await serve(shell)
        expired_at = outcome.answered_at
        await until(lambda: shell.taken == 0)
    expired(outcome)
    assert log == ["sync", (CancelReason.DEADLINE, shell.exchange), "hook"]
    assert expired_at is not None
    assert outcome.released_at is not None
    assert outcome.released_at >= expired_at + 0.14


async def test_b22_a_hook_that_hangs_holds_the_slot_for_one_second_only() -> None:
    """B22: the hook itself hanging for 60 s must not hold the slot for ever."""
    cancelled = []

    async def hook(reason: CancelReason) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def handler() -> None:
        current().on_cancel(hook)
        await asyncio.sleep(5)

    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    outcome = await run(plain(handler))
    expired(outcome)
    assert outcome.released_at is not None
    assert 1.0 <= outcome.released_at < 1.4
    await asyncio.sleep(0.01)
    assert cancelled == [True]
    assert complaints == ["An on_cancel callback took longer than one second"]


async def test_callbacks_that_fail_stop_nothing() -> None:
    log = []
    complaints: list[object] = []

    def fails(reason: CancelReason) -> None:
        raise asyncio.CancelledError

    async def fails_later(reason: CancelReason) -> None:
        raise ValueError("hook")

    async def handler() -> None:
        for callback in (fails, fails_later, lambda reason: log.append("last")):
            current().on_cancel(callback)
        await asyncio.sleep(5)

    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: complaints.append(context["exception"])
    )
    expired(await run(plain(handler)))
    assert log == ["last"]
    assert [type(each) for each in complaints] == [asyncio.CancelledError, ValueError]


@pytest.mark.in_real_time
async def test_a_callback_registered_too_late_is_called_soon_and_one_of_work_that_ended_never() -> None:
    log: list[str] = []

    async def late_hook(reason: CancelReason) -> None:
        log.append("awaited")

    def in_thread() -> None:
        time.sleep(0.2)
        current().on_cancel(late_hook)
        time.sleep(0.05)

    expired(await run(plain(lambda: asyncio.to_thread(in_thread))))
    assert log == ["awaited"]

    async def quick() -> None:
        current().on_cancel(lambda reason: log.append("never"))

    outcome = await run(plain(quick))
    await asyncio.sleep(0.15)
    assert outcome.status == 200
    assert log == ["awaited"]


@pytest.mark.in_real_time
async def test_callbacks_registered_by_many_threads_at_the_end_are_all_called() -> None:
    called: list[int] = []

    def register(number: int) -> None:
        context = current()
        while not context.cancelled:
            time.sleep(0)
        for _ in range(50):
            context.on_cancel(lambda reason: called.append(number))
        time.sleep(0.1)  # a thread may see the end before the loop does, which must not find it gone

    async def handler() -> None:
        await asyncio.gather(*(asyncio.to_thread(register, number) for number in range(4)))

    expired(await run(plain(handler)))
    assert len(called) == 200


# -- hold --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline", [DEADLINE, 5.0])
@pytest.mark.in_real_time
async def test_hold_keeps_the_slot_for_work_that_nobody_awaits(deadline: float) -> None:
    pool = concurrent.futures.ThreadPoolExecutor(1)
    held = Held()

    async def handler() -> None:
        record = current()
        assert isinstance(record, Supervised)
        record.hold(pool.submit(held.work))
        if deadline == DEADLINE:
            await asyncio.sleep(5)

    shell = Shell(plain(handler), deadline)
    outcome = await serve(shell)
    assert outcome.returned_at is not None
    assert outcome.returned_at < ON_TIME
    if deadline == DEADLINE:
        await until(lambda: outcome.late == 1)
    assert outcome.releases == 0
    held.release.set()
    await until(lambda: shell.taken == 0)
    assert outcome.releases == 1
    assert 0 <= outcome.freed_after(held.ended[0]) < 2.0
    assert outcome.late == (1 if deadline == DEADLINE else 0)
    pool.shutdown()


@pytest.mark.in_real_time
async def test_hold_from_a_thread_and_for_a_task() -> None:
    keep: list[object] = []

    async def side() -> None:
        await asyncio.sleep(0.3)

    async def handler() -> None:
        record = current()
        assert isinstance(record, Supervised)
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        threading.Timer(0.2, done.set_result, [None]).start()
        await asyncio.to_thread(record.hold, done)
        task = asyncio.create_task(side())
        keep.append(task)
        record.hold(task)

    outcome = await run(plain(handler), deadline=5)
    assert outcome.status == 200
    assert outcome.released_at is not None
    assert 0.29 <= outcome.released_at < 2.0


async def test_hold_of_something_done_holds_nothing() -> None:
    async def handler() -> None:
        record = current()
        assert isinstance(record, Supervised)
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_result(None)
        record.hold(done)
        await asyncio.sleep(0.01)

    outcome = await run(plain(handler), deadline=5)
    assert outcome.released_at is not None
    assert outcome.released_at < 0.1
