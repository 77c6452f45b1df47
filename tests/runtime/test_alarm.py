"""The helper thread that runs `on_cancel` callbacks under WSGI."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest

from resilient_mw import CancelReason, ResilienceWarning, ServerPolicy, current
from resilient_mw.runtime import alarm
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import RequestContext
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def until(true: Callable[[], bool]) -> None:
    """Wait for another thread, five seconds at most."""
    pause = threading.Event()
    for _ in range(5000):
        if true():
            return
        pause.wait(0.001)
    raise AssertionError("it did not happen")


def asleep() -> bool:
    """Whether the helper thread sleeps until the next deadline."""
    waiting: object = ALARM._changed._waiters  # type: ignore[attr-defined]
    return bool(waiting)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    until(lambda: not ALARM.running)
    yield
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "resilient_mw alarm"])
    assert not ALARM.running
    assert not ALARM._watched


class Calls(list[CancelReason]):
    """A callback that records its calls and in which thread they came."""

    def __init__(self) -> None:
        super().__init__()
        self.thread = ""
        self.called = threading.Event()

    def __call__(self, reason: CancelReason) -> None:
        self.append(reason)
        self.thread = threading.current_thread().name
        self.called.set()


def test_a_callback_runs_at_the_deadline_in_the_helper_thread() -> None:
    context = ThreadContext(MONOTONIC.now() + 0.05, MONOTONIC)
    calls = Calls()
    context.on_cancel(calls)
    assert ALARM.running
    assert calls == []
    assert calls.called.wait(5)
    assert calls == [CancelReason.DEADLINE]
    assert calls.thread == "resilient_mw alarm"
    assert context.reason is CancelReason.DEADLINE
    context.end()


def test_the_earliest_deadline_comes_first_whatever_the_order_of_registration() -> None:
    clock = ManualClock()
    order: list[str] = []
    contexts = {name: ThreadContext(at, clock) for name, at in [("c", 3.0), ("a", 1.0), ("b", 2.0)]}
    for name, context in contexts.items():
        context.on_cancel(lambda reason, name=name: order.append(name))  # type: ignore[misc]
    clock.advance(1.0)
    until(lambda: order == ["a"])
    clock.advance(5.0)
    until(lambda: order == ["a", "b", "c"])
    for context in contexts.values():
        context.end()


def test_a_later_request_with_an_earlier_deadline_wakes_the_sleeping_thread() -> None:
    far = ThreadContext(MONOTONIC.now() + 3600, MONOTONIC)
    far.on_cancel(Calls())
    until(asleep)
    near = ThreadContext(MONOTONIC.now() + 0.02, MONOTONIC)
    calls = Calls()
    near.on_cancel(calls)
    assert calls.called.wait(5)
    near.end()
    assert ALARM.running
    far.end()


def test_work_that_ends_by_itself_calls_nothing_and_the_thread_ends() -> None:
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    calls = Calls()
    context.on_cancel(calls)
    until(asleep)
    context.end()
    until(lambda: not ALARM.running)
    clock.advance(2.0)
    context.on_cancel(calls)
    assert not ALARM.running
    assert calls == []
    # The next request starts it anew.
    again = ThreadContext(3.0, clock)
    again.on_cancel(calls)
    assert ALARM.running
    again.end()
    until(lambda: not ALARM.running)
    assert calls == []


def test_without_callbacks_there_is_no_thread() -> None:
    context = ThreadContext(MONOTONIC.now() + 0.01, MONOTONIC)
    context.end()
    assert not ALARM.running


def test_no_deadline_no_alarm() -> None:
    context = ThreadContext(float("inf"), MONOTONIC)
    calls = Calls()
    context.on_cancel(calls)
    until(asleep)
    context.cancel(CancelReason.CLIENT_DISCONNECT)
    context.end()
    assert calls == [CancelReason.CLIENT_DISCONNECT]
    assert calls.thread == "resilient_mw alarm"  # not the server's thread: a callback may block
    until(lambda: not ALARM.running)


def test_a_callback_runs_once_and_at_once_when_it_is_over_already() -> None:
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    clock.advance(1.0)
    calls = Calls()
    context.on_cancel(calls)  # the deadline has passed: nobody has to notice that first
    assert calls == [CancelReason.DEADLINE]
    context.cancel(CancelReason.CLIENT_DISCONNECT)
    context.on_cancel(calls)
    assert calls == [CancelReason.DEADLINE, CancelReason.CLIENT_DISCONNECT]
    context.cancel(CancelReason.SHUTDOWN)
    assert context.reason is CancelReason.CLIENT_DISCONNECT
    context.end()


def test_a_callback_that_fails_keeps_no_other_from_running(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    context = ThreadContext(1.0, clock)

    def broken(reason: CancelReason) -> None:
        raise ValueError("theirs")

    calls = Calls()
    context.on_cancel(broken)
    context.on_cancel(calls)
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        clock.advance(1.0)
        assert calls.called.wait(5)
    assert "an on_cancel callback failed" in caplog.text
    assert "theirs" in caplog.text
    context.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_ends_the_thread_does_not_end_the_service() -> None:
    clock = ManualClock()
    first, second = ThreadContext(1.0, clock), ThreadContext(2.0, clock)

    def leave(reason: CancelReason) -> None:
        raise SystemExit

    calls = Calls()
    first.on_cancel(leave)
    second.on_cancel(calls)
    clock.advance(1.0)
    until(lambda: first.reason is not None and not first.firing)
    clock.advance(1.0)
    assert calls.called.wait(5)
    for context in (first, second):
        context.end()


def test_a_callback_that_hangs_keeps_nobody_elses_from_running() -> None:
    clock = ManualClock()
    first, second = ThreadContext(1.0, clock), ThreadContext(2.0, clock)
    let_go, calls = threading.Event(), Calls()
    first.on_cancel(lambda reason: let_go.wait(5))  # type: ignore[arg-type,return-value]
    second.on_cancel(calls)
    clock.advance(1.0)
    until(lambda: first.firing)
    clock.advance(1.0)
    try:
        assert calls.called.wait(3)
        assert first.firing
    finally:
        let_go.set()
    for context in (first, second):
        context.end()


def test_what_hangs_in_a_callback_holds_the_end_of_a_cancelled_request_for_its_second_only() -> None:
    context = ThreadContext(float("inf"), MONOTONIC)
    let_go = threading.Event()
    context.on_cancel(lambda reason: let_go.wait(10))  # type: ignore[arg-type,return-value]
    began = MONOTONIC.now()
    context.cancel(CancelReason.CLIENT_DISCONNECT)
    context.end()
    took = MONOTONIC.now() - began
    let_go.set()
    assert 0.99 <= took < 5


def test_what_a_callback_raises_is_counted() -> None:
    def broken(reason: CancelReason) -> None:
        raise ValueError("theirs")

    def view(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().on_cancel(broken)
        clock.advance(3.0)
        start_response("200 OK", [])
        return [b"late"]

    clock = ManualClock()
    policy = ServerPolicy(deadline_default=2.0)
    use_clock(policy, clock)
    assert ScriptedWSGI(ResilienceMiddleware(view, policy)).run().status == "504 Gateway Timeout"
    assert guard_of(policy).snapshot().guard_errors == 1


def test_an_awaitable_is_ignored_with_a_warning() -> None:
    context = ThreadContext(float("inf"), MONOTONIC)

    async def coroutine(reason: CancelReason) -> None:
        await asyncio.sleep(0)

    context.on_cancel(coroutine)

    def cancelled() -> None:
        context.cancel(CancelReason.DEADLINE)
        context.end()

    with pytest.warns(ResilienceWarning, match="awaitable"):
        cancelled()


def test_a_callback_sees_the_context_variables_of_its_registration() -> None:
    variable = ContextVar("variable", default="nothing")
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    seen: list[str] = []
    token = variable.set("mine")
    context.on_cancel(lambda reason: seen.append(variable.get()))
    variable.reset(token)
    clock.advance(1.0)
    until(lambda: bool(seen))
    assert seen == ["mine"]
    context.end()


def test_the_end_of_a_request_waits_for_its_running_callbacks() -> None:
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    running, go_on = threading.Event(), threading.Event()
    steps: list[str] = []

    def slow(reason: CancelReason) -> None:
        running.set()
        go_on.wait(5)
        steps.append("callback")

    context.on_cancel(slow)
    clock.advance(1.0)
    assert running.wait(5)

    def end() -> None:
        context.end()
        steps.append("end")

    thread = threading.Thread(target=end)
    thread.start()
    thread.join(0.05)
    assert steps == []
    go_on.set()
    thread.join(5)
    assert steps == ["callback", "end"]


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm, "CALLBACKS_WITHIN", 0.02)
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    running, go_on = threading.Event(), threading.Event()

    def stuck(reason: CancelReason) -> None:
        running.set()
        go_on.wait(5)

    context.on_cancel(stuck)
    clock.advance(1.0)
    assert running.wait(5)
    context.end()
    go_on.set()


def test_many_threads_register_and_end_at_once() -> None:
    clock = ManualClock()
    calls: list[bool] = []
    ended: list[int] = []
    barrier = threading.Barrier(17)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(20):
            due = turn % 2 == 0
            context = ThreadContext(1.0 if due else 1e6, clock)
            context.on_cancel(lambda reason, due=due: calls.append(due))  # type: ignore[misc]
            context.end()
            ended.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    barrier.wait()
    clock.advance(2.0)
    for thread in threads:
        thread.join(10)
    assert len(ended) == 16 * 20
    assert all(calls)
    assert len(calls) <= 16 * 10


def test_a_thread_that_cannot_start_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    context = ThreadContext(float("inf"), MONOTONIC)
    calls = Calls()
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Thread", NoThread)
        with pytest.warns(ResilienceWarning, match="did not start"):
            context.on_cancel(calls)
    assert not ALARM.running
    context.cancel(CancelReason.CLIENT_DISCONNECT)
    assert calls == [CancelReason.CLIENT_DISCONNECT]
    context.end()


# -- one request inside another ----------------------------------------------------------------------------------------


def test_the_end_of_the_request_around_it_is_its_end() -> None:
    outer = RequestContext(float("inf"))
    inner = ThreadContext(MONOTONIC.now() + 60, MONOTONIC, outer=outer)
    calls = Calls()
    inner.on_cancel(calls)
    assert not inner.cancelled
    outer.reason = CancelReason.CLIENT_DISCONNECT
    assert inner.cancelled
    assert inner.cancel_reason is CancelReason.CLIENT_DISCONNECT
    for callback in outer.take_callbacks():  # what the code that cancels the outer one does
        callback(CancelReason.CLIENT_DISCONNECT)
    inner.cancel(CancelReason.DEADLINE)
    assert calls == [CancelReason.CLIENT_DISCONNECT]
    inner.end()


def test_an_inner_request_that_has_ended_is_not_called_by_the_outer_one() -> None:
    outer = RequestContext(float("inf"))
    inner = ThreadContext(MONOTONIC.now() + 60, MONOTONIC, outer=outer)
    calls = Calls()
    inner.on_cancel(calls)
    inner.end()
    for callback in outer.take_callbacks():
        callback(CancelReason.CLIENT_DISCONNECT)
    assert calls == []


# -- with the middleware -----------------------------------------------------------------------------------------------


def test_callbacks_of_a_request() -> None:
    clock = ManualClock()
    policy = ServerPolicy(deadline_default=1.0)
    use_clock(policy, clock)
    done, ended = Calls(), Calls()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        calls = done if environ["PATH_INFO"] == "/slow" else ended
        current().on_cancel(calls)
        if calls is done:
            clock.advance(1.0)
            assert calls.called.wait(5)  # what this thread is busy with is cut off from outside
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"x"]

    middleware = ResilienceMiddleware(app, policy)
    assert ScriptedWSGI(middleware, path="/slow").run().status == "504 Gateway Timeout"
    assert done == [CancelReason.DEADLINE]
    assert ScriptedWSGI(middleware, path="/fast").run().status == "200 OK"
    until(lambda: not ALARM.running)
    assert ended == []


def test_a_caller_who_leaves_runs_the_callbacks_of_a_stream() -> None:
    calls = Calls()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        current().on_cancel(calls)
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"one"
        yield b"two"

    server = ScriptedWSGI(ResilienceMiddleware(app)).call()
    server.read(1)
    server.close()
    assert calls == [CancelReason.CLIENT_DISCONNECT]


def test_a_complete_response_runs_none_when_its_peer_reads_slowly() -> None:
    clock = ManualClock()
    policy = ServerPolicy(deadline_default=1.0)
    use_clock(policy, clock)
    calls = Calls()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        current().on_cancel(calls)
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield b"one"

    server = ScriptedWSGI(ResilienceMiddleware(app, policy)).call()
    server.read()
    until(lambda: not ALARM.running)
    clock.advance(5.0)
    server.close()
    assert calls == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_starts_its_own_thread() -> None:
    parents = ThreadContext(MONOTONIC.now() + 3600, MONOTONIC)
    parents.on_cancel(Calls())
    assert ALARM.running
    reading, writing = os.pipe()
    with ALARM._changed:  # taken while the process forks: the child must not wait for it
        child = os.fork()
        if child == 0:
            # Nothing of pytest may run in here, and a child that hangs has to end by itself.
            try:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                context = ThreadContext(MONOTONIC.now() + 0.02, MONOTONIC)
                calls = Calls()
                before = ALARM._thread
                context.on_cancel(calls)
                called = calls.called.wait(5)
                context.end()
                os.write(writing, b"y" if called and before is None else b"n")
            finally:
                os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"y"
    os.close(reading)
    os.waitpid(child, 0)
    parents.end()
