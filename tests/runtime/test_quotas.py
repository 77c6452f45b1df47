"""The desk that asks for quotas, on a store that does as it is told."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.admission.decision import ADMITTED
from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.marks import Mark
from resilient_mw.core.quotas import ALLOWED, Limited, Quota, QuotaState, QuotaStore
from resilient_mw.runtime import quotas as module
from resilient_mw.runtime import tenancy
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.quotas import Asking, QuotaDesk
from resilient_mw.runtime.tenancy import Tenancy
from resilient_mw.testing import ManualClock

ENTRY = RouteEntries(ServerPolicy()).get("/x", Mark())
FAR = 1000.0


class Store:
    """Counts for ever, and is away when it is told to be.

    Args:
        local: what counts in this process; None: this does.
    """

    timeout = 0.05

    def __init__(self, local: QuotaStore | None = None) -> None:
        self.local = local
        self.counted: Counter[tuple[str, str]] = Counter()
        self.asked = 0
        self.away: Exception | None = None
        self.hold: asyncio.Event | None = None

    def hit(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        self.asked += 1
        if self.away is not None:
            raise self.away
        key = quota.name, tenant
        if self.counted[key] + count > quota.amount:
            return QuotaState(allowed=False, remaining=quota.amount - self.counted[key], reset=7.5)
        self.counted[key] += count
        return ALLOWED

    async def hit_soon(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        if self.hold is not None:
            await self.hold.wait()
        return self.hit(quota, tenant, count)


class Bench:
    """A desk, the clock and the stores."""

    def __init__(self, *quotas: Quota, when_away: str = "local", remote: bool = True) -> None:
        self.clock = ManualClock()
        self.local = Store()
        self.store = Store(self.local) if remote else Store()
        self.listeners = Listeners((), self.clock)
        self.desk = QuotaDesk(
            quotas or (Quota("2/minute"),), self.store, when_away, self.listeners, self.clock
        )

    def asking(self, tenant: str = "a", cost: int = 1, path: str = "/", budget: float = FAR) -> Asking:
        return Asking(ENTRY, self.desk.quotas_of(path), tenant, cost, self.clock.now() + budget)

    async def ask(self, way: str, **more: Any) -> Limited | None:
        asking = self.asking(**more)
        return self.desk.ask(asking) if way == "thread" else await self.desk.ask_soon(asking)

    @property
    def without(self) -> int:
        return self.desk.snapshot().without_store


ways = pytest.mark.parametrize("way", ["thread", "loop"])


@ways
async def test_each_tenant_has_his_own(way: str) -> None:
    bench = Bench()
    assert [await bench.ask(way) for _ in range(2)] == [None, None]
    found = await bench.ask(way)
    assert found is not None
    assert (found.retry_after, dict(found.fields)) == (
        8,
        {"RateLimit-Policy": '"default";q=2;w=60', "RateLimit": '"default";r=0;t=8'},
    )
    assert await bench.ask(way, tenant="b") is None
    assert bench.desk.snapshot().limited == {"default": 1}
    assert bench.without == 0


@ways
async def test_the_first_quota_without_room_ends_it(way: str) -> None:
    bench = Bench(Quota("1/second", name="first"), Quota("9/minute", name="second"))
    assert await bench.ask(way) is None
    found = await bench.ask(way)
    assert found is not None
    assert found.quota is not None
    assert found.quota.name == "first"
    assert bench.store.counted == {("first", "a"): 1, ("second", "a"): 1}


@ways
async def test_quotas_are_for_their_paths_and_count_costs_where_they_say_so(way: str) -> None:
    bench = Bench(
        Quota("9/minute", name="all"),
        Quota("5/minute", name="reports", path="/reports/*", by_cost=True),
        Quota("9/minute", name="one", path="/reports/{name}"),
    )
    assert await bench.ask(way, path="/other", cost=3) is None
    assert await bench.ask(way, path="/reports/7", cost=3) is None
    assert bench.store.counted == {("all", "a"): 2, ("reports", "a"): 3, ("one", "a"): 1}
    found = await bench.ask(way, path="/reports/7", cost=3)
    assert found is not None
    assert dict(found.fields)["RateLimit"] == '"reports";r=2;t=8'
    assert [each.name for each in bench.desk.quotas_of("/reports/7")] == ["all", "reports", "one"]
    assert [each.name for each in bench.desk.quotas_of("/reports/7/8")] == ["all", "reports"]


@ways
@pytest.mark.parametrize(
    ("when_away", "told"),
    [("open", [None] * 4), ("local", [None, None, "default", "default"]), ("closed", [""] * 4)],
)
async def test_while_the_store_is_away_the_policy_decides(
    way: str, when_away: str, told: list[str | None]
) -> None:
    bench = Bench(when_away=when_away)
    bench.store.away = ConnectionError("refused")
    found = [await bench.ask(way) for _ in range(4)]
    assert [each if each is None else (each.quota.name if each.quota else "") for each in found] == told
    assert bench.without == 4
    assert bench.store.asked == 1  # then it is left alone for a second
    assert bench.listeners.errors == 1
    if when_away == "closed":
        assert found[0] == Limited(None, 1)


@ways
async def test_the_estimate_knows_what_came_before(way: str) -> None:
    bench = Bench()
    assert await bench.ask(way) is None
    bench.store.away = TimeoutError()
    assert await bench.ask(way) is None
    assert await bench.ask(way) is not None


@ways
async def test_the_estimate_decides_only_while_the_store_is_away(way: str) -> None:
    bench = Bench()
    bench.local.counted["default", "a"] = 2
    assert await bench.ask(way) is None
    assert bench.without == 0


@ways
async def test_a_store_that_is_away_is_tried_once_a_second_by_one_request(way: str) -> None:
    bench = Bench(when_away="open")
    bench.store.away = ConnectionError()
    for second in range(1, 4):
        for _ in range(5):
            await bench.ask(way)
        assert bench.store.asked == second
        bench.clock.advance(1.0)
    bench.store.away = None
    for _ in range(2):
        await bench.ask(way)
    assert bench.store.asked == 5  # it is there again
    assert bench.store.counted == {("default", "a"): 2}


async def test_of_a_crowd_one_request_tries_a_store_that_is_away() -> None:
    bench = Bench(Quota("100/minute"), when_away="open")
    bench.store.away = ConnectionError()
    await bench.ask("loop")
    bench.clock.advance(1.0)
    bench.store.hold = asyncio.Event()
    crowd = [asyncio.ensure_future(bench.ask("loop")) for _ in range(5)]
    await asyncio.sleep(0)
    bench.store.hold.set()
    assert await asyncio.gather(*crowd) == [None] * 5
    assert bench.store.asked == 2


@ways
async def test_a_request_without_time_does_not_ask(way: str) -> None:
    bench = Bench()
    assert await bench.ask(way, budget=0.1) is None
    assert (bench.store.asked, bench.without) == (0, 1)
    assert await bench.ask(way, budget=0.11) is None
    assert (bench.store.asked, bench.without) == (1, 1)


@ways
async def test_what_counts_in_memory_is_asked_whatever_the_time(way: str) -> None:
    bench = Bench(remote=False)
    assert await bench.ask(way, budget=0.006) is None
    assert (bench.store.asked, bench.without) == (1, 0)


async def test_a_store_that_does_not_answer_is_waited_for_no_longer_than_its_timeout() -> None:
    bench = Bench(when_away="open")
    bench.store.hold = asyncio.Event()
    began = asyncio.get_running_loop().time()
    assert await bench.ask("loop") is None
    assert 0.04 < asyncio.get_running_loop().time() - began < 5.0
    assert bench.without == 1


async def test_only_so_many_wait_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ASKING", 3)
    bench = Bench(Quota("100/minute"), when_away="open")
    bench.store.timeout = 5.0
    bench.store.hold = asyncio.Event()
    waiting = [asyncio.ensure_future(bench.ask("loop")) for _ in range(3)]
    await asyncio.sleep(0)
    assert await bench.ask("loop") is None
    assert (bench.store.asked, bench.without) == (0, 1)
    waiting[0].cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bench.store.hold.set()
    assert await bench.ask("loop") is None  # the place of the one that was cancelled
    assert [await each for each in waiting[1:]] == [None, None]
    assert (bench.store.asked, bench.without) == (3, 1)


def test_places_come_back_from_threads() -> None:
    bench = Bench(Quota("100000/minute"))
    bench.store.away = ConnectionError()
    for _ in range(module.MOST_ASKING + 1):
        bench.desk.ask(bench.asking())
        bench.clock.advance(1.0)
    bench.store.away = None
    assert bench.desk.ask(bench.asking()) is None
    assert bench.store.asked == module.MOST_ASKING + 2


async def test_a_cancelled_question_is_no_failure() -> None:
    bench = Bench()
    bench.store.hold = asyncio.Event()
    question = asyncio.ensure_future(bench.ask("loop"))
    await asyncio.sleep(0)
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    assert bench.listeners.errors == 0
    assert bench.without == 0


def test_counts_of_many_threads_agree() -> None:
    bench = Bench(Quota("50/minute"))
    lock = threading.Lock()
    hit = bench.store.hit

    def locked(quota: Quota, tenant: str, count: int) -> QuotaState:
        with lock:
            return hit(quota, tenant, count)

    bench.store.hit = bench.local.hit = locked  # type: ignore[method-assign]
    bench.desk._local = None
    threads = [
        threading.Thread(target=lambda: [bench.desk.ask(bench.asking()) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bench.desk.snapshot().limited == {"default": 150}


class Point:
    """An entry point, as it is found in an installed distribution."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def load(self) -> Any:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ([], "resilient-mw\\[limits\\], or name a quota_store$"),
        ([Point(ImportError("no limits"))], "no limits"),
    ],
)
def test_without_anything_that_counts_quotas_are_an_error(
    monkeypatch: pytest.MonkeyPatch, points: list[Point], text: str
) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    policy = ServerPolicy(tenant="X-Tenant", quotas=[Quota("1/minute")])
    with pytest.raises(ValueError, match=text):
        Tenancy(policy, Listeners((), ManualClock()), ManualClock())


def test_what_is_installed_counts_where_the_policy_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def points(group: str) -> list[Point]:
        asked.append(group)
        return [Point(Store)]

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    policy = ServerPolicy(tenant="X-Tenant", quotas=[Quota("1/minute")])
    assert isinstance(tenancy.store_of(policy), Store)
    assert asked == ["resilient_mw.quotas"]
    own = Store()
    assert tenancy.store_of(policy.with_changes({"quota_store": own})) is own


def told(bench: Tenancy) -> tuple[dict[str, int], dict[str, int]]:
    snapshot = bench.told(guard_of(ServerPolicy()).snapshot())
    admitted = {name: each.admitted for name, each in snapshot.tenants.items()}
    return admitted, {} if snapshot.quotas is None else dict(snapshot.quotas.limited)


def test_another_policy_goes_on_with_what_it_names_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Point(Store)])
    clock = ManualClock()
    policy = ServerPolicy(tenant="X-Tenant", quotas=[Quota("1/minute")], tenant_labels=["a", "b"])
    kept = Tenancy(policy, Listeners((), clock), clock)
    asking = Asking(ENTRY, policy.quotas, "a", 1, FAR)
    assert kept.desk is not None
    assert kept.desk.ask(asking) is None
    assert kept.desk.ask(asking) is not None
    kept.count("a", ADMITTED)
    kept.count("b", ADMITTED)
    changed = policy.with_changes(
        {"tenant_labels": ["b", "c"], "quotas": [Quota("2/minute"), Quota("9/day", name="daily")]}
    )
    kept.change(changed)
    assert told(kept) == ({"b": 1, "c": 0, "other": 0}, {"default": 1, "daily": 0})
    asking = Asking(ENTRY, changed.quotas, "a", 1, FAR)
    assert kept.desk.ask(asking) is None  # the one that has been counted is still known
    assert kept.desk.ask(asking) is not None
    kept.change(policy.with_changes({"quotas": (), "tenant_labels": ()}))
    assert told(kept) == ({}, {})
    assert kept.desk is None
