"""The contract of deadlines, over real HTTP. Numbers are those of the list in `contract/README.md`."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from typing import Any

import pytest
from fastapi import FastAPI

from resilient_mw import CancelReason, RetryPolicy, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.runtime.dependency_owner import owner_of
from resilient_mw.runtime.guard import Guard
from tests.contract.callers import Script, called, caller, dependency
from tests.contract.client import ask, leave, until
from tests.contract.conftest import Serve
from tests.contract.stacks import HELD, behind_uvicorn


async def test_1_no_deadline_sent_means_the_default(serving: Serve) -> None:
    with serving(deadline_default=1.5) as service:
        quick = await ask(service.port, "/work?seconds=0.01")
        late = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}"))
        await until(lambda: service.used == 2)
        await asyncio.sleep(1.5)
        service.release.set()
        slow = await late
    assert quick.status == 200
    assert 0.0 < service.budgets[0] <= 1.5
    assert slow.status == 504
    assert slow.json["reason"] == "deadline_exceeded"
    assert slow.reason is None  # the work had begun: nobody may take this for "not executed"


@pytest.mark.parametrize("trusted", [True, False])
async def test_2_an_excessive_deadline_is_capped(serving: Serve, trusted: bool) -> None:
    peers = ["127.0.0.0/8"] if trusted else []
    with serving(deadline_default=10.0, deadline_maximum=50.0, trusted_peers=peers) as service:
        answer = await ask(service.port, "/work", budget_ms=9_999_999_999)
    assert answer.status == 200
    cap = 50.0 if trusted else 10.0
    assert cap - 5.0 < service.budgets[0] <= cap


async def test_3_a_deadline_that_ends_in_the_queue_causes_no_downstream_call(serving: Serve) -> None:
    with serving(limit=1, queue=5, wait_share=1.0) as service:
        blocker = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}"))
        await until(lambda: service.used == 1)
        late = await ask(service.port, "/work", budget_ms=300)  # on time, not when the blocker ends
        service.release.set()
        await blocker
        assert service.used == 1
    assert late.status == 504
    assert late.reason == "expired_in_queue"
    assert late.seconds > 0.25


async def test_4_a_deadline_that_ends_during_a_call_cancels_it_and_the_server_sees_it(stack: str) -> None:
    """The dependency is not told the budget, so only the end of its connection can stop it."""
    with called(always=Script(seconds=10.0)) as service:
        slow = dependency("slow", service, deadline_header=None, reserve=0.1)
        with caller(stack, slow) as port:
            began = time.monotonic()
            answer = await ask(port, "/call/slow/report", budget_ms=1500)
            await until(lambda: owner_of(slow).snapshot().in_use == 0)
            await until(lambda: service.received[0].ended_at)
    assert (answer.status, answer.json) == (504, {"phase": "head"})
    assert 1.2 < answer.seconds < 5.0
    (seen,) = service.received
    assert seen.budget_ms is None
    assert seen.reason is CancelReason.CLIENT_DISCONNECT
    assert seen.ended_at is not None
    assert 1.2 < seen.ended_at - began < 5.0


async def test_6_a_caller_who_leaves_early_stops_the_child_work() -> None:
    """WSGI has no way to learn that a caller left, so this holds on ASGI."""
    begun, ended = threading.Event(), threading.Event()

    async def child() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    app = FastAPI()
    app.add_middleware(ResilienceMiddleware, limit=5, name="leaving")

    @app.get("/slow")
    async def slow() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        raise AssertionError("nobody waits for this")

    with behind_uvicorn(app) as port:
        at_work = asyncio.Event()
        leaving = asyncio.create_task(leave(port, "/slow", after=at_work, budget_ms=60_000))
        await until(begun.is_set)
        assert not ended.is_set()
        at_work.set()
        await leaving
        await until(ended.is_set)


@pytest.mark.parametrize(("budget_ms", "attempts"), [(9000, 2), (1000, 1)])
async def test_7_after_a_failure_another_attempt_is_made_only_if_it_can_finish(
    stack: str, budget_ms: int, attempts: int
) -> None:
    usual, known = Script(seconds=1.3), 12
    with called(*[usual] * known, Script(503), always=usual) as service:
        prices = dependency("prices", service, timeout=9.0, retry=RetryPolicy(backoff_base=0.0))
        with caller(stack, prices) as port:
            before = await asyncio.gather(*(ask(port, "/call/prices/tea") for _ in range(known)))
            assert {each.status for each in before} == {200}  # so an answer takes 1.3 s
            answer = await ask(port, "/call/prices/tea", budget_ms=budget_ms)
    assert len(service.received) == known + attempts
    if attempts == 2:
        assert answer.status == 200
    else:
        # The failure is the answer, and it comes at once: nobody waits for what cannot be.
        assert (answer.status, answer.json) == (502, {"called": 503})
        assert owner_of(prices).snapshot().retries_refused == {"deadline": 1}


@pytest.mark.parametrize(("after", "attempts"), [(1, 2), (30, 1)])
async def test_7_a_wait_that_the_dependency_asks_for_has_to_fit_into_the_budget(
    stack: str, after: int, attempts: int
) -> None:
    with called(Script(503, headers={"Retry-After": f"{after}"})) as service:
        prices = dependency("prices", service)
        with caller(stack, prices) as port:
            answer = await ask(port, "/call/prices/tea", budget_ms=9000)
    instants = [each.at for each in service.received]
    assert len(instants) == attempts
    assert answer.status == (200 if attempts == 2 else 502)
    if attempts == 2:
        assert 0.95 < instants[1] - instants[0] < 4.0  # obeyed, with jitter that only lengthens
    else:
        assert answer.seconds < 5.0  # given up at once, not shortened


async def test_9_remaining_never_grows_on_the_way_between_clocks_that_differ() -> None:
    """Two services whose monotonic clocks are a day apart: only durations travel."""

    class ADayAhead:
        def now(self) -> float:
            return time.monotonic() + 86_400

    seen: dict[str, float] = {}
    behind = ServerPolicy(trusted_peers=["127.0.0.0/8"], name="behind")
    behind.owner.append(Guard(behind, ADayAhead()))
    second = FastAPI()
    second.add_middleware(ResilienceMiddleware, policy=behind)

    @second.get("/b")
    def b() -> dict[str, float]:
        seen["b"] = current().remaining()
        return {"left": seen["b"]}

    first = FastAPI()
    first.add_middleware(ResilienceMiddleware, trusted_peers=["127.0.0.0/8"], name="before")

    @first.get("/a")
    def a() -> Any:
        time.sleep(0.2)
        seen["a"] = current().remaining()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port_b}/b", headers={"X-Request-Timeout-Ms": str(int(1000 * seen["a"]))}
        )
        with urllib.request.urlopen(request, timeout=seen["a"]) as answer:
            return json.load(answer)

    with behind_uvicorn(second) as port_b, behind_uvicorn(first) as port_a:
        answer = await ask(port_a, "/a", budget_ms=9000)
    assert answer.status == 200
    assert 4.0 < seen["b"] <= seen["a"] <= 8.8
