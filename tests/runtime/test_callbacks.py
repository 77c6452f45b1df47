"""Where `on_cancel` callbacks of a request in an event loop run, how long they hold its slot, and who is told of errors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.events import Cancelled, Event, GuardFailed
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.supervise import Supervised
from tests.asgi.driver import Request, answer, budget, http_scope, until
from tests.runtime.small_shell import Shell, expired, nothing_left, plain, run, serve

pytestmark = pytest.mark.usefixtures("own_time")


def over() -> None:
    """Wait in a thread until its request is over."""
    request = current()
    while request.cancel_reason is None:
        time.sleep(0.005)
    time.sleep(0.05)


@pytest.mark.in_real_time
async def test_what_was_registered_in_a_worker_thread_may_block_and_the_loop_goes_on() -> None:
    seen: list[object] = []
    turns = 0

    def blocks(reason: CancelReason) -> None:
        time.sleep(0.3)
        seen.append((reason, current().cancel_reason, threading.current_thread().name))

    def work() -> None:
        current().on_cancel(blocks)
        over()

    async def handler() -> None:
        await asyncio.to_thread(work)

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    beside = asyncio.create_task(others())
    outcome = await run(plain(handler))
    beside.cancel()
    expired(outcome)
    assert seen == [(CancelReason.DEADLINE, CancelReason.DEADLINE, "resilient_mw on_cancel")]
    assert outcome.released_at is not None
    assert outcome.released_at >= 0.39  # not before the callback had ended
    assert turns > 5


@pytest.mark.in_real_time
async def test_a_thread_that_hangs_in_a_callback_holds_the_slot_for_one_second_only() -> None:
    let_go = threading.Event()
    complaints: list[str] = []

    def work() -> None:
        current().on_cancel(lambda reason: let_go.wait(20))  # type: ignore[arg-type,return-value]
        over()

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    try:
        outcome = await run(plain(lambda: asyncio.to_thread(work)))
    finally:
        let_go.set()
    expired(outcome)
    assert outcome.released_at is not None
    assert 1.0 <= outcome.released_at < 10.0
    assert complaints == ["An on_cancel callback took longer than one second"]


@pytest.mark.parametrize("kind", ["function", "coroutine function", "returns an awaitable"])
@pytest.mark.in_real_time
async def test_whatever_a_worker_thread_registers_is_called_once_and_awaited_in_the_loop(kind: str) -> None:
    seen: list[object] = []

    async def awaited(reason: CancelReason) -> None:
        await asyncio.sleep(0)
        seen.append((reason, threading.current_thread() is threading.main_thread()))

    def function(reason: CancelReason) -> None:
        seen.append((reason, threading.current_thread() is threading.main_thread()))

    callback: Any = {"function": function, "coroutine function": awaited}.get(kind, partial(awaited))

    def work() -> None:
        current().on_cancel(callback)
        over()

    async with nothing_left():
        expired(await run(plain(lambda: asyncio.to_thread(work))))
    assert seen == [(CancelReason.DEADLINE, kind != "function")]


async def test_a_callback_that_keeps_the_loop_is_reported() -> None:
    complaints: list[str] = []

    async def handler() -> None:
        current().on_cancel(lambda reason: time.sleep(0.15))
        await asyncio.sleep(5)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    await run(plain(handler))
    assert [each[:46] for each in complaints] == ["An on_cancel callback kept the event loop for "]


async def test_one_that_swallows_its_cancel_holds_the_slot_no_longer_than_the_others() -> None:
    async def stubborn(reason: CancelReason) -> None:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                pass

    async def handler() -> None:
        current().on_cancel(stubborn)
        await asyncio.sleep(5)

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    outcome = await run(plain(handler))
    expired(outcome)
    assert outcome.released_at is not None
    assert 1.0 <= outcome.released_at < 1.8


def _fails(reason: CancelReason) -> None:
    raise ValueError("theirs")


async def _fails_later(reason: CancelReason) -> None:
    raise ValueError("theirs")


async def _takes_long(reason: CancelReason) -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize("callback", [_fails, _fails_later, _takes_long])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.in_real_time
async def test_errors_of_callbacks_are_counted_and_the_slot_comes_back(
    callback: Callable[[CancelReason], Any], in_thread: bool
) -> None:
    events: list[Event] = []
    policy = ServerPolicy(listeners=[events.append])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if in_thread:
            await asyncio.to_thread(current().on_cancel, callback)
        else:
            current().on_cancel(callback)
        await asyncio.sleep(5)

    request = await Request(ResilienceMiddleware(app, policy), http_scope(headers=[budget(60)])).run()
    assert request.status == 504
    await until(lambda: guard_of(policy).snapshot().guard_errors == 1)
    await until(lambda: not sum(each.slots for each in guard_of(policy).snapshot().classes))
    assert [each.reason for each in events if isinstance(each, Cancelled)] == [CancelReason.DEADLINE]
    assert not [each for each in events if isinstance(each, GuardFailed)]


async def test_callbacks_are_called_too_when_the_application_notices_the_deadline_before_we_do() -> None:
    called: list[object] = []
    free_at_the_end = []
    policy = ServerPolicy()

    async def close(reason: CancelReason) -> None:
        await asyncio.sleep(0.05)
        free_at_the_end.append(sum(each.slots for each in guard_of(policy).snapshot().classes))
        called.append(reason)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(close)
        time.sleep(0.08)  # noqa: ASYNC251  the loop cannot come round to its timer
        current().check()

    request = await Request(ResilienceMiddleware(app, policy), http_scope(headers=[budget(50)])).run()
    assert request.status == 504
    await until(lambda: bool(called))
    assert called == [CancelReason.DEADLINE]
    assert free_at_the_end == [1]
    await until(lambda: not sum(each.slots for each in guard_of(policy).snapshot().classes))


async def test_one_reason_everywhere() -> None:
    """In the context, in the callback, in the error of `check()`, and in the event."""
    events: list[Event] = []
    seen: list[object] = []
    policy = ServerPolicy(listeners=[events.append])

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(seen.append)
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            seen.append(current().cancel_reason)
            try:
                current().check()
            except Exception as error:  # noqa: BLE001
                seen.append(getattr(error, "reason", None))
            raise

    request = Request(ResilienceMiddleware(app, policy)).start()
    await asyncio.sleep(0.08)
    request.disconnect()
    await request.end()
    await until(lambda: bool(events))
    assert seen == [CancelReason.CLIENT_DISCONNECT] * 3
    assert [each.reason for each in events if isinstance(each, Cancelled)] == [CancelReason.CLIENT_DISCONNECT]


async def test_an_error_of_check_says_that_it_was_the_deadline() -> None:
    seen: list[object] = []

    async def handler() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            with pytest.raises(DeadlineExceeded) as caught:
                current().check()
            seen.append(caught.value.reason)
            raise

    expired(await run(plain(handler)))
    assert [str(each) for each in seen] == ["deadline_exceeded"]


# -- after the response ------------------------------------------------------------------------------------------------


async def test_after_a_complete_response_nothing_is_worthless() -> None:
    """Work that goes on in the background has no deadline, and whether the caller has gone says nothing to it."""
    seen: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        context = current()
        context.on_cancel(seen.append)
        with context.within(10) as scope_around:
            await answer(send)
            await asyncio.sleep(0.15)
            for each in (context, scope_around):
                each.check()
                seen.append((each.cancelled, each.cancel_reason))
            seen.append((context.remaining(), context.deadline.at, 9 < scope_around.remaining() <= 10))
            with context.within(0.5) as less:
                seen.append(0.4 < less.remaining() <= 0.5)

    policy = ServerPolicy()
    request = Request(ResilienceMiddleware(app, policy), http_scope(headers=[budget(60)])).start()
    await until(lambda: len(request.messages) == 2)
    request.disconnect()
    await request.end()
    assert (request.status, request.raised) == (200, None)
    assert seen == [
        (False, None),
        (False, None),
        (float("inf"), float("inf"), True),
        True,
    ]


async def test_work_that_a_request_has_left_behind_when_it_ended_by_itself_has_no_deadline() -> None:
    seen: list[object] = []
    tasks = []

    async def side() -> None:
        await asyncio.sleep(0.2)
        seen.append((current().cancel_reason, current().remaining()))

    async def handler() -> None:
        assert isinstance(current(), Supervised)
        tasks.append(asyncio.create_task(side()))

    outcome = await serve(Shell(plain(handler)))
    await asyncio.wait(tasks)
    assert outcome.status == 200
    assert seen == [(None, float("inf"))]
