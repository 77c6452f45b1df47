"""Starting, running, stopping: what readiness says, and a drain that a signal handler may begin."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from resilient_mw import CancelReason, RequestCancelled, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.protection import Protection
from resilient_mw.runtime.supervise import Supervisor
from resilient_mw.runtime.thread_context import ThreadContext
from tests.asgi.driver import Request, hello
from tests.runtime.virtual_time import Bench


def _reasons(bench: Bench) -> tuple[str, ...]:
    return bench.guard.readiness().reasons


def test_the_service_starts_until_one_application_has() -> None:
    bench = Bench()
    assert _reasons(bench) == ()  # nothing is known to be started
    bench.policy.owner.append(bench.guard)
    first, second = Protection(bench.policy, {}), Protection(bench.policy, {})
    assert _reasons(bench) == ("starting",)
    second.start([])
    assert (first.started, second.started) == (False, True)
    assert _reasons(bench) == ()


async def test_a_policy_is_not_ready_before_the_first_request_of_its_middleware() -> None:
    policy = ServerPolicy()
    middleware = ResilienceMiddleware(hello, policy)
    assert policy.readiness().reasons == ("starting",)
    await Request(middleware).run()
    assert policy.readiness().ready


def test_a_lifespan_that_has_begun_and_is_not_complete_is_a_start() -> None:
    bench, span, other = Bench(), object(), object()
    lifecycle = bench.guard.lifecycle
    lifecycle.begins(span)
    assert _reasons(bench) == ("starting",)
    lifecycle.started(span)
    assert _reasons(bench) == ()
    lifecycle.begins(other)
    assert _reasons(bench) == ("starting",)
    lifecycle.ends(other)  # it failed
    assert _reasons(bench) == ()


def test_the_last_lifespan_to_stop_is_the_end_of_the_service() -> None:
    bench, first, second = Bench(), object(), object()
    lifecycle = bench.guard.lifecycle
    for span in (first, second):
        lifecycle.begins(span)
        lifecycle.started(span)
    assert not lifecycle.stopping(first)
    assert lifecycle.stopping(second)
    lifecycle.drain_for_lifespans(0.0, 5.0)
    lifecycle.ends(first)
    assert _reasons(bench) == ("draining",)
    lifecycle.ends(second)
    assert _reasons(bench) == ()
    assert lifecycle.stop_at == float("inf")
    bench.admit()


def test_a_drain_by_hand_outlives_the_lifespans() -> None:
    bench, span = Bench(), object()
    bench.guard.lifecycle.begins(span)
    bench.guard.drain()
    bench.guard.lifecycle.stopping(span)
    bench.guard.lifecycle.drain_for_lifespans(0.0, 5.0)
    bench.guard.lifecycle.ends(span)
    assert _reasons(bench) == ("draining",)


def test_delay_and_timeout_are_the_policys_unless_said() -> None:
    bench = Bench(drain_delay=3.0, drain_timeout=10.0)
    bench.guard.drain()
    assert (bench.guard.controller.refuse_from, bench.guard.lifecycle.stop_at) == (3.0, 13.0)
    bench.guard.drain(delay=1.0, timeout=2.0)
    assert (bench.guard.controller.refuse_from, bench.guard.lifecycle.stop_at) == (1.0, 3.0)


@pytest.mark.parametrize("wrong", [{"delay": -1.0}, {"timeout": -1.0}, {"delay": float("nan")}])
def test_wrong_numbers_are_named(wrong: dict[str, float]) -> None:
    policy = ServerPolicy()
    guard_of(policy)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        policy.drain(**wrong)
    assert not guard_of(policy).controller.draining


def test_a_drain_takes_no_lock() -> None:
    """A signal handler interrupts its thread anywhere, also where that thread holds the locks."""
    bench = Bench()
    done = threading.Event()

    def handle() -> None:
        bench.guard.drain()
        done.set()

    with bench.guard._lock, ALARM._changed:
        threading.Thread(target=handle, daemon=True).start()
        assert done.wait(5)


def test_a_thread_learns_of_the_end() -> None:
    bench = Bench()
    context = ThreadContext(1000.0, bench.clock, bench.guard)
    bench.guard.drain(delay=1.0, timeout=2.0)
    bench.clock.move_to(2.9)
    context.check()
    bench.clock.move_to(3.0)
    with pytest.raises(RequestCancelled) as raised:
        context.check()
    assert raised.value.reason is CancelReason.SHUTDOWN


def test_a_threads_callbacks_run_at_the_end() -> None:
    policy = ServerPolicy()
    guard = guard_of(policy)
    context = ThreadContext(guard.clock.now() + 60.0, guard.clock, guard)
    called: list[CancelReason] = []
    told = threading.Event()
    context.on_cancel(called.append)
    context.on_cancel(lambda _: told.set())
    time.sleep(0.05)  # it sleeps until the deadline by now
    policy.drain(timeout=0.1)
    assert told.wait(5)
    assert called == [context.reason] == [CancelReason.SHUTDOWN]
    context.end()


def test_a_threads_section_holds_the_end_back() -> None:
    policy = ServerPolicy()
    guard = guard_of(policy)
    context = ThreadContext(guard.clock.now() + 60.0, guard.clock, guard)
    called: list[CancelReason] = []
    context.on_cancel(called.append)
    with context.shield(5.0) as section:
        policy.drain(timeout=0.05)
        time.sleep(0.3)
        section.check()
        assert not called
    assert context.cancel_reason is CancelReason.SHUTDOWN
    context.end()
    assert called in ([], [CancelReason.SHUTDOWN])  # the work ended by itself, or the alarm was sooner


def test_a_thread_whose_request_is_complete_is_told_of_no_end() -> None:
    bench = Bench()
    context = ThreadContext(1000.0, bench.clock, bench.guard)
    context.complete(started=True)
    bench.guard.drain(delay=0.0, timeout=0.0)
    assert context.cancel_reason is None


async def test_a_loop_that_stands_still_is_seen_from_another_thread_and_forgotten_afterwards() -> None:
    policy = ServerPolicy(blocked_after=0.2)
    seen: list[tuple[str, ...]] = []

    def look() -> None:
        time.sleep(0.5)
        seen.append(policy.readiness().reasons)

    async def blocking(scope: object, receive: object, send: object) -> None:
        await asyncio.sleep(0.06)
        watcher = threading.Thread(target=look)
        watcher.start()
        time.sleep(1.0)  # noqa: ASYNC251  that is the point
        watcher.join()

    await Request(ResilienceMiddleware(blocking, policy)).run()
    assert seen == [("blocked",)]
    await asyncio.sleep(0.2)
    assert policy.readiness().ready


def test_a_loop_that_does_not_run_is_not_blocked() -> None:
    loop = asyncio.new_event_loop()
    bench = Bench()
    supervisor = Supervisor(loop, bench.clock, None, bench.guard.lifecycle)
    supervisor._horizon = 1.0
    supervisor._thread = 0  # asked from another one
    assert supervisor.behind(100.0) == 0.0
    loop.close()


async def test_asked_on_the_loop_itself_only_lasting_lag_counts() -> None:
    bench = Bench()
    supervisor = Supervisor(asyncio.get_running_loop(), bench.clock, None, bench.guard.lifecycle)
    supervisor._horizon = 1.0
    bench.clock.move_to(100.0)
    assert _reasons(bench) == ()
    supervisor.lag = 1.5
    assert _reasons(bench) == ("blocked",)
