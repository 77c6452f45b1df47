"""The contract of overload, over real HTTP. Numbers are those of the list in `contract/README.md`."""

from __future__ import annotations

import asyncio
import math
import statistics
import threading
import time
from typing import Self

from resilient_mw import RetryPolicy
from resilient_mw.runtime.dependency_owner import owner_of
from tests.contract.callers import Received, Script, called, caller, dependency
from tests.contract.client import ask, leave, open_loop, until
from tests.contract.conftest import Serve
from tests.contract.stacks import HELD, Service

LIMIT, QUEUE, SECONDS = 4, 4, 0.05
CAPACITY = LIMIT / SECONDS


class Watch:
    """Looks at a service every few milliseconds and keeps the extremes."""

    def __init__(self, service: Service) -> None:
        self.queued = 0
        self.slots = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(service,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self, service: Service) -> None:
        while not self._stop.wait(0.003):
            classes = service.snapshot().classes
            self.queued = max(self.queued, sum(each.queued for each in classes))
            self.slots = max(self.slots, sum(each.slots for each in classes if each.priority != "exempt"))


async def test_1_the_queue_is_bounded_above_sustainable_arrivals(serving: Serve) -> None:
    with serving(limit=LIMIT, queue=QUEUE) as service, Watch(service) as watch:
        answers = await open_loop(service.port, ["/work"] * 320, rate=4 * CAPACITY)
        assert service.most <= LIMIT
    assert watch.queued == QUEUE
    assert watch.slots == LIMIT
    assert {answer.status for answer in answers} == {200, 503}


async def test_2_admitted_work_completes_within_its_deadline(serving: Serve) -> None:
    """The queue would take 2 s, so only the deadline keeps those out who waited for longer than half of it."""
    with serving(limit=LIMIT, queue=160, wait_share=0.5) as service:
        answers = await open_loop(service.port, ["/work"] * 320, rate=3 * CAPACITY, budget_ms=1200)
    served = [answer for answer in answers if answer.status == 200]
    assert len(served) > 20
    assert max(answer.seconds for answer in served) < 1.8
    late = [
        answer for answer in answers if answer.status == 504 and answer.json["reason"] == "deadline_exceeded"
    ]
    assert len(late) <= 0.1 * len(answers)  # work that was begun and thrown away; a busy machine adds some


async def test_3_a_refusal_is_fast_and_clearly_cheaper_than_work(serving: Serve) -> None:
    with serving(limit=1, queue=0) as service:
        alone = [(await ask(service.port, "/work?seconds=0.05")).seconds for _ in range(5)]
        blocker = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}"))
        await until(lambda: service.used == 6)
        refused = [await ask(service.port, "/work?seconds=0.05") for _ in range(40)]
        service.release.set()
        await blocker
        assert service.used == 6  # none of the refused ones touched the resource
    assert {answer.reason for answer in refused} == {"queue_full"}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
    assert statistics.median(answer.seconds for answer in refused) < 0.2 * statistics.median(alone)


async def test_4_attempts_stay_within_the_retry_budget_and_come_with_jitter(stack: str) -> None:
    calls, backoff = 120, 1.2
    with called(always=Script(503)) as service:
        retry = RetryPolicy(backoff_base=backoff)  # and its default budget
        failing = dependency("failing", service, timeout=None, breaker=None, retry=retry)
        with caller(stack, failing, limit=100, queue=100, wait_share=1.0) as port:
            began = time.monotonic()
            paths = [f"/call/failing/{number}" for number in range(calls)]
            answers = await open_loop(port, paths, rate=40, budget_ms=9000)
            windows = math.ceil((time.monotonic() - began) / 10)
    assert {(answer.status, answer.json["called"]) for answer in answers} == {(502, 503)}
    tries: dict[str, list[Received]] = {}
    for each in service.received:
        tries.setdefault(each.path, []).append(each)
    assert len(tries) == calls
    repeated = [both for both in tries.values() if len(both) > 1]
    assert all(len(both) == 2 for both in repeated)
    # A tenth of the calls, and one a second in windows of ten: without a budget it would be all of them.
    assert 12 <= len(repeated) <= 0.1 * calls + 10 * windows
    # Full jitter: the whole span from 0, and not everybody at once.
    gaps = [second.at - first.at for first, second in repeated]
    assert min(gaps) < backoff / 2 < max(gaps)
    assert statistics.pstdev(gaps) > backoff / 10
    # All attempts of a call have one deadline: the back-off is taken from what is left.
    spent = [
        first.budget_ms - second.budget_ms
        for first, second in repeated
        if first.budget_ms and second.budget_ms
    ]
    assert len(spent) == len(repeated)
    assert min(spent) >= 0
    assert statistics.mean(spent) > 1000 * backoff / 4


async def test_5_priority_keeps_its_reserve_and_starves_nobody(serving: Serve) -> None:
    with serving(limit=LIMIT, queue=13, max_wait=0.5) as service:
        paths = ["/critical", "/sheddable", "/critical", "/sheddable"] * 80
        answers = await open_loop(service.port, paths, rate=4 * CAPACITY)
    served = {
        path: sum(a.status == 200 for a, p in zip(answers, paths, strict=True) if p == path) for path in paths
    }
    assert served["/critical"] > 3 * served["/sheddable"]
    # The share of weight 1 beside 8 is a ninth; it gets at least half of that.
    assert served["/sheddable"] >= sum(served.values()) / 18


async def test_6_expired_work_never_reaches_the_resource(serving: Serve) -> None:
    with serving(limit=1, queue=30, wait_share=1.0, max_wait=5.0) as service:
        blocker = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}"))
        await until(lambda: service.used == 1)
        hurried = [asyncio.create_task(ask(service.port, "/work", budget_ms=200)) for _ in range(10)]
        patient = asyncio.create_task(ask(service.port, "/work", budget_ms=10_000))
        answers = await asyncio.gather(*hurried)  # on time, not when the blocker ends
        service.release.set()
        assert (await blocker).status == (await patient).status == 200
        assert service.used == 2
    assert {(answer.status, answer.reason) for answer in answers} == {(504, "expired_in_queue")}


async def test_7_recovery_is_quick_after_the_load_falls(serving: Serve) -> None:
    with serving(limit=LIMIT, queue=QUEUE) as service:
        await open_loop(service.port, ["/work"] * 480, rate=6 * CAPACITY)
        began = time.monotonic()
        after = [await ask(service.port, "/work") for _ in range(20)]
        assert time.monotonic() - began < 3
        assert service.idle()
    assert [answer.status for answer in after] == [200] * 20
    assert statistics.median(answer.seconds for answer in after[2:]) < 0.3


async def test_8_an_overloaded_dependency_does_not_drain_unrelated_pools(stack: str) -> None:
    """Both dependencies share the slots of one service, and the connections of one client."""
    with called(always=Script(seconds=1.0)) as archive, called() as prices:
        slow = dependency("archive", archive, bulkhead=4)
        quick = dependency("prices", prices)
        with caller(stack, slow, quick, limit=20, queue=20) as port:
            paths = ["/call/archive/report", "/call/prices/tea"] * 40
            answers = await open_loop(port, paths, rate=40, budget_ms=5000)
        reports, checkouts = answers[::2], answers[1::2]
        assert {answer.status for answer in checkouts} == {200}
        assert statistics.median(answer.seconds for answer in checkouts) < 0.3
        refused = [answer for answer in reports if answer.status == 503]
        assert all(answer.json == {"refused": "bulkhead_full"} for answer in refused)
        assert statistics.median(answer.seconds for answer in refused) < 0.3
        served = [answer for answer in reports if answer.status == 200]
        assert len(refused) + len(served) == len(reports)
        assert 4 <= len(served) == len(archive.received) <= 16
        assert archive.most == 4
    unrelated, overloaded = owner_of(quick).snapshot(), owner_of(slow).snapshot()
    assert (unrelated.attempts, unrelated.refused, unrelated.expired) == ({"2xx": 40}, {}, {})
    assert (overloaded.in_use, overloaded.breaker) == (0, "closed")


async def test_10_the_metrics_count_what_callers_saw(serving: Serve) -> None:
    with serving(limit=2, queue=2, wait_share=1.0) as service:
        load = open_loop(service.port, ["/work"] * 200, rate=100)
        dead = asyncio.gather(*(ask(service.port, "/work", budget_ms=0) for _ in range(5)))
        answers = [*await load, *await dead]
        used = service.used
        held = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}", budget_ms=1000))
        await until(lambda: service.used == used + 1)
        await asyncio.sleep(1.5)  # it goes on for longer than the 250 ms after which it is late
        service.release.set()
        cut = await held
        await until(lambda: service.idle() and sum(route.late for route in service.snapshot().routes))
        snapshot = service.snapshot()
    (route,) = [each for each in snapshot.routes if each.route == "/work"]
    seen = [*answers, cut]
    by_reason: dict[str, int] = {}
    for answer in seen:
        if answer.reason is not None:
            by_reason[answer.reason] = by_reason.get(answer.reason, 0) + 1
    assert route.arrived == len(seen)
    assert route.refused == by_reason
    assert by_reason["expired_on_arrival"] == 5
    assert route.admitted == route.arrived - sum(by_reason.values())
    assert route.outcomes["completed"] == sum(answer.status == 200 for answer in seen)
    assert route.outcomes["deadline"] == sum(
        a.json["reason"] == "deadline_exceeded" for a in seen if a.status == 504
    )
    assert route.late == 1
    assert sum(route.run.counts) == route.outcomes["completed"]


async def test_10_callers_who_leave_the_queue_are_counted_and_do_not_run() -> None:
    from tests.contract.stacks import serve

    with serve("asgi", limit=1, queue=5) as service:
        blocker = asyncio.create_task(ask(service.port, f"/work?seconds={HELD}"))
        await until(lambda: service.used == 1)
        waiting = asyncio.Event()
        leaving = [asyncio.create_task(leave(service.port, "/work", after=waiting)) for _ in range(3)]
        await until(lambda: sum(each.queued for each in service.snapshot().classes) == 3)
        waiting.set()
        await asyncio.gather(*leaving)
        await until(lambda: sum(each.queued for each in service.snapshot().classes) == 0)
        service.release.set()
        await blocker
        await until(service.idle)
        (route,) = [each for each in service.snapshot().routes if each.route == "/work"]
        assert service.used == 1
    assert route.left == 3
    assert route.arrived == route.admitted + route.left == 4
