"""Nested deadlines: they shrink, they never grow, and whoever awaits inside one is cancelled by exactly one of them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_mw import DeadlineExceeded, RequestContext, ServerPolicy, budget, current
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.shield import Shield
from resilient_mw.runtime.thread_context import ThreadContext, has_ended
from resilient_mw.runtime.within import Within
from resilient_mw.testing import ManualClock, ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.runtime.small_shell import expired, plain, run
from tests.wsgi.helpers import hello

STEPS = st.lists(
    st.tuples(st.sampled_from(["within", "shield", "wait"]), st.integers(0, 20)), min_size=1, max_size=8
)


pytestmark = pytest.mark.usefixtures("own_time")


@settings(max_examples=200, deadline=None)
@given(deadline=st.integers(0, 20) | st.just(float("inf")), steps=STEPS)
def test_a_scope_never_grows_and_a_section_has_its_own_time_at_most(
    deadline: float, steps: list[tuple[str, int]]
) -> None:
    clock = ManualClock()
    request = context = ThreadContext(clock.now() + deadline, clock)
    inside: RequestContext = context
    left: list[Within | Shield] = []
    section_until = float("inf")
    for kind, seconds in steps:
        before = inside.remaining()
        if kind == "wait":
            clock.advance(seconds)
            assert inside.remaining() <= before
            continue
        scope = inside.within(seconds) if kind == "within" else inside.shield(seconds)
        inside = scope.__enter__()
        left.append(scope)
        assert inside.remaining() <= seconds
        if kind == "within":
            assert inside.remaining() <= before
        else:
            section_until = min(section_until, clock.now() + seconds)
        assert inside.remaining() <= max(0.0, section_until - clock.now())
        assert (inside.cancel_reason is None) is (inside.remaining() > 0)
    for scope in reversed(left):
        scope.__exit__(None, None, None)
    assert request.remaining() == max(0.0, request.deadline_at - clock.now())
    request.end()


async def test_a_scope_that_is_longer_than_the_plain_one_around_it_is_cancelled_with_that() -> None:
    task = asyncio.current_task()
    assert task is not None
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded), current().within(0.05):
        async with current().within(10):
            await asyncio.sleep(5)
    assert time.monotonic() - began < 1
    assert task.cancelling() == 0


async def test_a_scope_that_is_longer_than_the_request_leaves_the_end_to_that() -> None:
    cancels = []

    async def handler() -> None:
        try:
            async with current().within(10), budget(20) as inner:
                assert inner.remaining() <= 0.1
                try:
                    await asyncio.sleep(5)
                except asyncio.CancelledError:
                    cancels.append(inner.cancel_reason)
                    await asyncio.sleep(0.05)  # a second cancel would come here
                    cancels.append(inner.cancel_reason)
                    raise
        except DeadlineExceeded:
            cancels.append(None)

    expired(await run(plain(handler)))
    assert [str(each) for each in cancels] == ["deadline", "deadline"]


def test_a_thread_that_was_started_in_a_scope_of_a_request_that_has_ended_does_not_belong_to_it() -> None:
    policy = ServerPolicy(deadline_default=0.5)
    middleware = ResilienceMiddleware(hello, policy)
    contexts: list[contextvars.Context] = []
    outer = ThreadContext(ManualClock().now() + 1.0, ManualClock(), guard_of(policy))
    token = CURRENT.set(outer)
    try:
        with current().within(0.2) as scope, scope.shield(0.1) as section:
            contexts.append(contextvars.copy_context())
            assert not has_ended(section)
    finally:
        CURRENT.reset(token)
    outer.end()
    assert has_ended(scope)
    assert has_ended(section)
    statuses: list[str | None] = []
    server = ScriptedWSGI(middleware)
    thread = threading.Thread(target=lambda: contexts[0].run(lambda: statuses.append(server.run().status)))
    thread.start()
    thread.join(5)
    assert statuses == ["200 OK"]
    assert sum(each.admitted for each in guard_of(policy).snapshot().routes) == 1
