"""A policy that is put in force while requests run, seen from its guard and its middlewares."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from resilient_mw import PriorityClass, RouteRule, ServerPolicy
from resilient_mw.core.events import Event
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import Route
from resilient_mw.runtime import protection
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.protection import Protection


class Resolver:
    def __init__(self, *marks: Mark) -> None:
        self._routes = [Route(f"/{number}", mark) for number, mark in enumerate(marks)]

    def routes(self) -> list[Route]:
        return self._routes

    def resolve(self, path: str, scope: Any) -> Route | None:
        return next((each for each in self._routes if each.template == path), None)


def _entry(app: Protection, path: str = "/") -> Any:
    return app.entry(path, "", "GET", {})


def test_old_and_new_object_speak_for_the_service() -> None:
    policy = ServerPolicy(limit=5)
    app = Protection(policy, {})
    changed = policy.reload(limit=7)
    assert (changed.limit, policy.limit) == (7, 5)  # a policy is a value
    assert policy.snapshot().limit == changed.snapshot().limit == 7
    assert app.policy is changed
    again = policy.reload(queue=3)  # from what is in force
    assert (again.limit, again.queue) == (7, 3)
    again.drain()
    assert not policy.readiness().ready


def test_a_whole_policy_with_changes() -> None:
    policy = ServerPolicy(limit=5, max_wait=3.0)
    guard_of(policy)
    changed = policy.reload(ServerPolicy(limit=6), queue=2)
    assert (changed.limit, changed.queue, changed.max_wait) == (6, 2, 1.0)


def test_nothing_to_change_changes_nothing() -> None:
    policy = ServerPolicy()
    guard_of(policy)
    assert policy.reload() is policy


def test_a_policy_is_put_in_force_for_one_service_only() -> None:
    policy, other = ServerPolicy(), ServerPolicy()
    guard_of(policy)
    guard_of(other)
    with pytest.raises(ValueError, match="in force for another middleware"):
        policy.reload(other)


def test_without_a_middleware_there_is_nothing_to_reload() -> None:
    with pytest.raises(RuntimeError, match="no middleware"):
        ServerPolicy().reload(limit=3)


def test_all_applications_under_the_policy_take_the_new_rules() -> None:
    policy = ServerPolicy(trusted_peers=["10.0.0.0/8"])
    apps = [Protection(policy, {}) for _ in range(2)]
    assert all("x-request-start" in app.fields for app in apps)
    policy.reload(
        routes=[RouteRule("/reports", priority="sheddable", max_body=5)], deadline_default=3.0, trusted_peers=[],
        exempt_paths=["/live"],
    )  # fmt: skip
    for app in apps:
        report = _entry(app, "/reports")
        assert (report.priority, report.max_body, report.budget) == ("sheddable", 5, 3.0)
        assert (_entry(app, "/live").rank, _entry(app, "/health").rank) == (-1, 1)
        assert "x-request-start" not in app.fields
        assert not app._trusts("10.0.0.1")


def test_counters_go_on_counting() -> None:
    policy = ServerPolicy()
    app = Protection(policy, {})
    guard = app.guard
    for limit in (10, 20):
        entry = _entry(app)
        assert guard.arrive(entry, 0.0, 1e9).admitted
        guard.end(entry, 1, "completed", 0.1)
        policy.reload(limit=limit, deadline_default=float(limit))
    (route,) = [each for each in policy.snapshot().routes if each.priority == "normal"]
    assert (route.admitted, dict(route.outcomes)) == (2, {"completed": 2})


def test_who_runs_under_the_old_policy_gives_back_under_the_new_one() -> None:
    policy = ServerPolicy(limit=4, queue=0, routes=[RouteRule("/", cost=3)])
    app = Protection(policy, {})
    old = _entry(app)
    assert app.guard.arrive(old, 0.0, 1e9).admitted
    policy.reload(limit=2, routes=[RouteRule("/", cost=1)])
    new = _entry(app)
    assert app.guard.arrive(new, 0.0, 1e9).reason is Reason.QUEUE_FULL
    app.guard.release(old, old.cost)
    assert app.guard.controller.slots.in_use == 0
    assert app.guard.arrive(new, 0.0, 1e9).admitted


def test_listeners_are_exchanged() -> None:
    first: list[Event] = []
    second: list[Event] = []
    policy = ServerPolicy(limit=1, queue=0, listeners=[first.append])
    app = Protection(policy, {})
    policy.drain()
    app.guard.arrive(_entry(app), 0.0, 1e9)
    app.guard.arrive(_entry(app), app.guard.clock.now(), 1e9)
    policy.reload(listeners=[second.append])
    app.guard.arrive(_entry(app), app.guard.clock.now(), 1e9)
    assert (len(first), len(second)) == (1, 1)


def test_a_mark_that_does_not_fit_stops_it_before_anything_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protection, "find_resolver", lambda apps: Resolver(Mark(cost=8)))
    policy = ServerPolicy(limit=10)
    app, other = Protection(policy, {}), Protection(policy, {})
    app.start([object()])
    table = other.table
    with pytest.raises(ValueError, match="cost=8"):
        policy.reload(limit=4)
    assert policy.snapshot().limit == 10
    assert other.table is table
    assert app.policy is other.policy is app.guard.policy is policy
    policy.reload(limit=9)
    assert _entry(app, "/0").cost == 8  # routes stay bound


def test_routes_that_are_bound_afterwards_are_bound_to_the_new_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protection, "find_resolver", lambda apps: Resolver(Mark(cost=2)))
    policy = ServerPolicy()
    app = Protection(policy, {})
    policy.reload(deadline_default=2.0)
    app.start([object()])
    assert (_entry(app, "/0").cost, _entry(app, "/0").budget) == (2, 2.0)


def test_the_crowd_is_measured_against_the_new_limit() -> None:
    policy = ServerPolicy(limit=10)
    guard = guard_of(policy)
    policy.reload(limit=100)
    assert guard.overload._calm == 80


def test_an_application_that_is_gone_is_not_asked() -> None:
    policy = ServerPolicy()
    app = Protection(policy, {})
    del app
    gc.collect()
    assert policy.reload(limit=3).limit == 3


def test_from_many_threads_while_requests_come_and_go() -> None:
    policy = ServerPolicy(limit=4, queue=0, overload=None)
    app = Protection(policy, {})
    guard, stop = app.guard, threading.Event()
    errors: list[BaseException] = []

    def guarded(work: Any) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def request() -> None:
        entry = _entry(app)
        now = guard.clock.now()
        if guard.arrive(entry, now, now + 10).admitted:
            guard.end(entry, entry.cost, "completed", 0.0)

    numbers = iter(range(1, 1_000_000))

    def change() -> None:
        number = next(numbers) % 5
        policy.reload(
            limit=2 + number, routes=[RouteRule("/", cost=1 + number % 2)], deadline_default=1.0 + number,
            classes=[PriorityClass("critical", 8, number), PriorityClass("normal"), PriorityClass("sheddable")],
        )  # fmt: skip

    threads = [guarded(work) for work in (request, request, request, change)]
    stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert errors == []
    assert guard.controller.slots.in_use == 0
    snapshot = policy.snapshot()
    for route in snapshot.routes:
        assert route.arrived == route.admitted + sum(route.refused.values())
        assert route.admitted == sum(route.outcomes.values())
