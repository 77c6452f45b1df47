"""A forked child begins anew (B94): locks that are held, slots that are taken, counters, random numbers, helper threads."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import pytest

from resilient_mw import Dependency, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware as Asgi
from resilient_mw.core.ports import snapshots
from resilient_mw.runtime import dependency_owner, guard, reload, supervised, switch
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.dependency_owner import owner_of
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.asgi.driver import Request, http_scope
from tests.asgi.driver import hello as asgi_hello
from tests.wsgi.helpers import Blocking, hello

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked child; it has ten seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.alarm(10)
            os.write(writing, json.dumps({"found": work()}).encode())
        except BaseException:  # noqa: BLE001
            os.write(writing, json.dumps({"failed": traceback.format_exc()}).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        answer = json.loads(said.read() or '{"failed": "it hangs"}')
    os.waitpid(child, 0)
    assert "failed" not in answer, answer["failed"]
    return answer["found"]


@pytest.fixture
def held() -> Iterator[Callable[..., None]]:
    """A function that has a thread hold locks at the fork."""
    stack, release = ExitStack(), threading.Event()
    threads = []

    def hold(*locks: Any) -> None:
        inside = threading.Event()

        def run() -> None:
            with ExitStack() as stack:
                for lock in locks:
                    stack.enter_context(lock)
                inside.set()
                release.wait(20)

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        assert inside.wait(5)

    yield hold
    release.set()
    for thread in threads:
        thread.join()
    stack.close()


def _figures(policy: ServerPolicy) -> dict[str, Any]:
    snapshot = policy.snapshot()
    return {
        "slots": sum(each.slots for each in snapshot.classes),
        "queued": sum(each.queued for each in snapshot.classes),
        "arrived": sum(each.arrived for each in snapshot.routes),
        "limit": snapshot.limit,
    }


def test_b94_a_child_inherits_neither_slots_nor_waiters_nor_counts() -> None:
    policy = ServerPolicy(limit=1, queue=5, max_wait=30.0, wait_share=1.0)
    app = Blocking()
    served = ResilienceMiddleware(app, policy)
    threads = [threading.Thread(target=ScriptedWSGI(served).run) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert app.entered.acquire(timeout=5)
    while _figures(policy)["queued"] < 2:
        pass

    def child() -> Any:
        before = _figures(policy)
        served.app = hello
        return before, ScriptedWSGI(served).run().status, _figures(policy)

    before, status, after = in_child(child)
    assert before == {"slots": 0, "queued": 0, "arrived": 0, "limit": 1}
    assert status == "200 OK"
    assert after == {"slots": 0, "queued": 0, "arrived": 1, "limit": 1}
    assert _figures(policy)["slots"] == 1  # the parent's are the parent's
    app.let_go.set()
    for thread in threads:
        thread.join(10)


def test_b94_a_lock_that_a_thread_held_at_the_fork_stops_nobody(held: Callable[..., None]) -> None:
    policy, dependency = ServerPolicy(), Dependency("prices", match="http://prices")
    owner = owner_of(dependency)
    wsgi, asgi = ResilienceMiddleware(hello, policy), Asgi(asgi_hello, policy)
    held(
        guard_of(policy)._lock, owner._lock, guard._making, dependency_owner._making, supervised._lock, switch._lock,
        reload._one_at_a_time, wsgi._starting, wsgi.protection.starting, asgi._making, asgi.protection.starting,
        ALARM._changed,
    )  # fmt: skip

    def child() -> Any:
        import asyncio

        async def serve() -> int | None:
            return (await Request(asgi).run()).status

        switch.turn_off()
        switch.turn_on()
        owner_of(Dependency("other", match="http://other"))
        owner.snapshot()
        changed = policy.reload(limit=3)
        return ScriptedWSGI(wsgi).run().status, asyncio.run(serve()), changed.snapshot().limit

    assert in_child(child) == ["200 OK", 200, 3]


def test_b94_children_draw_their_own_random_numbers() -> None:
    policy = ServerPolicy()
    guard_of(policy)

    def child() -> float:
        return guard_of(policy).controller.forecast._random.random()

    drawn = [in_child(child) for _ in range(3)]
    assert len({*drawn, child()}) == 4


def test_b94_callbacks_run_in_the_child_although_the_helper_thread_was_the_parents() -> None:
    policy = ServerPolicy(deadline_default=0.1)
    cut = threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        current().on_cancel(lambda _: cut.set())
        assert cut.wait(5)
        return hello(environ, start_response)

    served = ResilienceMiddleware(app, policy)
    holding = threading.Event()

    def longer(environ: Any, start_response: Any) -> Any:
        current().on_cancel(lambda _: None)
        holding.set()
        release.wait(5)
        return hello(environ, start_response)

    release = threading.Event()
    thread = threading.Thread(target=ScriptedWSGI(ResilienceMiddleware(longer, ServerPolicy())).run)
    thread.start()
    assert holding.wait(5)
    assert in_child(lambda: ScriptedWSGI(served).run().status) == "504 Gateway Timeout"
    release.set()
    thread.join()


async def test_b94_a_child_has_none_of_the_parents_loops_and_does_not_drain_with_it() -> None:
    policy = ServerPolicy()
    middleware = Asgi(asgi_hello, policy)
    await Request(middleware).run()
    span = object()
    lifecycle = guard_of(policy).lifecycle
    lifecycle.begins(span)
    lifecycle.drain(0.0, 0.0)

    def child() -> Any:
        return (
            len(middleware._services),
            list(policy.readiness().reasons),
            ScriptedWSGI(ResilienceMiddleware(hello, policy)).run().status,
        )

    assert in_child(child) == [0, [], "200 OK"]
    lifecycle.ends(span)


async def test_b94_requests_of_the_parent_that_are_forgotten_in_the_child_give_nothing_back_there() -> None:
    policy = ServerPolicy(limit=1, queue=1)

    async def suspend(*_: Any) -> None:
        await Suspended()

    serving = [Asgi(suspend, policy)(http_scope(), receive_nothing, drop) for _ in range(2)]
    for each in serving:
        copy_context().run(each.send, None)  # the first one runs, the second one waits
    assert policy.snapshot().classes[1].slots == policy.snapshot().classes[1].queued == 1

    def child() -> Any:
        held = ScriptedWSGI(ResilienceMiddleware(hello, policy)).call()
        for each in serving:
            each.close()
        policy.snapshot()
        taken = policy.snapshot().classes[1].slots
        held.read()
        held.close()
        return [taken, policy.snapshot().classes[1].slots, policy.snapshot().guard_errors]

    assert in_child(child) == [1, 0, 0]
    for each in serving:
        each.close()
    assert [each.slots for each in policy.snapshot().classes[:3]] == [0, 0, 0]


class Suspended:
    """Suspends whoever awaits it, and nobody comes to wake him."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def receive_nothing() -> Any:
    await Suspended()


async def drop(message: Any) -> None:
    pass


def test_b94_a_child_has_none_of_the_parents_websockets_and_a_lock_of_its_own(
    held: Callable[..., None],
) -> None:
    policy = ServerPolicy(websocket_limit=1)
    asgi = Asgi(asgi_hello, policy)
    websockets = guard_of(policy).websockets
    assert websockets is not None
    entry = asgi.protection.websocket("/ws", "", {})
    assert websockets.arrive(entry, 0.0).admitted
    websockets.end_later(entry, "completed")  # told by the garbage collector, and not yet looked at
    held(guard_of(policy)._lock)

    def child() -> Any:
        before = sum(websockets.snapshot().opened.values())
        decisions = [websockets.arrive(entry, 0.0).admitted for _ in range(2)]
        policy.report("pool_wait", 60.0, "db")
        return before, decisions, websockets.overload is guard_of(policy).overload

    assert in_child(child) == [0, [True, False], True]


def test_the_level_of_the_parent_is_not_the_childs() -> None:
    policy = ServerPolicy()
    made = guard_of(policy)
    policy.report("pool_wait", 60.0, "db")
    before = made.overload

    def child() -> Any:
        return made.overload is not before, [each.app for each in snapshots() if each.app == "app"] != []

    assert in_child(child) == [True, True]
    assert isinstance(made, Guard)
