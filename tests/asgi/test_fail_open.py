"""Our own code breaks: requests pass, each failure is counted, and the log has one line a minute for each part."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw import OverloadPolicy, RouteRule, ServerPolicy
from resilient_mw.admission.overload import OverloadLevel
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.core import ports
from resilient_mw.core.events import Event, Refused
from resilient_mw.core.routes import Route
from resilient_mw.runtime.call_readings import CallReadings
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.runtime.protection import Protection
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from tests.asgi.driver import Request, budget, hello, http_scope
from tests.wsgi.helpers import hello as wsgi_hello

pytestmark = pytest.mark.usefixtures("own_time")


SECONDS = 121
"""One request a second: the log has a line at the first, after a minute, and after two."""


def broken(*_: object, **__: object) -> Any:
    raise LookupError("broken on purpose")


class World:
    """A policy on a clock that moves by hand, and both middlewares over it.

    `failed` counts the failures of a part that the supervisor may ask as well, whose tick goes by the real clock.
    """

    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock()
        self.failed = 0
        self.policy = ServerPolicy(**fields)
        use_clock(self.policy, self.clock)
        self.guard: Guard = guard_of(self.policy)
        self.asgi = AsgiMiddleware(hello, self.policy)
        self.wsgi = WsgiMiddleware(wsgi_hello, self.policy)

    def protections(self) -> list[Protection]:
        return [self.asgi.protection, self.wsgi.protection]

    async def serve(self, stack: str, milliseconds: int) -> int:
        """Return the status of one request."""
        if stack == "asgi":
            status = (await Request(self.asgi, http_scope(headers=[budget(milliseconds)])).run()).status
            assert status is not None
            return status
        request = ScriptedWSGI(self.wsgi, headers=[("X-Request-Timeout-Ms", str(milliseconds))]).run()
        return int(request.status[:3])


Break = Callable[[World, pytest.MonkeyPatch], None]


def admission(world: World, _: pytest.MonkeyPatch) -> None:
    world.guard.controller.arrive = broken  # type: ignore[method-assign]


def route_source(world: World, _: pytest.MonkeyPatch) -> None:
    class Resolver:
        resolve = broken

        def routes(self) -> list[Route]:
            return []

    for protection in world.protections():
        protection.table._resolver = Resolver()


def needed_dependency(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "dependency_sources", broken)


def readings(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.guard.overload._calls = CallReadings(())

    def read(*_: object) -> Any:
        world.failed += 1
        return broken()

    monkeypatch.setattr(CallReadings, "read", read)


def nothing(_: World, __: pytest.MonkeyPatch) -> None:
    """What is broken is in the fields of the policy."""


CASES: dict[str, tuple[Break, dict[str, Any]]] = {
    "admission": (admission, {}),
    "route look-up": (route_source, {}),
    "trusted_peers": (nothing, {"trusted_peers": broken}),
    "look-up of a needed dependency": (needed_dependency, {"routes": [RouteRule("/*", needs="prices")]}),
    "reading of dependencies": (readings, {}),
}


@pytest.mark.parametrize("stack", ["asgi", "wsgi"])
@pytest.mark.parametrize("where", CASES)
@pytest.mark.filterwarnings("ignore:needs=")
async def test_requests_pass_whatever_part_breaks(
    where: str, stack: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    breaks, fields = CASES[where]
    world = World(**({"overload": OverloadPolicy()} | fields))
    assert await world.serve(stack, 5000) == 200
    before = world.guard.listeners.errors
    breaks(world, monkeypatch)
    caplog.clear()
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for _ in range(SECONDS):
            world.clock.advance(1.0)
            if where == "reading of dependencies":
                world.guard.look()  # a request that is over at once may see none
            assert await world.serve(stack, 5000) == 200
    lines = [each.getMessage() for each in caplog.records if each.name == "resilient_mw"]
    assert lines == [f"{where} failed; what it was meant for went on without it"] * len(lines)
    # A trust function that raises was logged when the clock stood at 0, before the others were broken.
    assert len(lines) == (2 if where == "trusted_peers" else 3)
    assert world.failed == 0 or world.failed >= SECONDS
    assert world.guard.listeners.errors - before == (world.failed or SECONDS)
    assert all(each.slots == 0 for each in world.guard.snapshot().classes)


@pytest.mark.parametrize("stack", ["asgi", "wsgi"])
async def test_a_listener_that_raises_is_counted_and_changes_no_answer(
    stack: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Event] = []

    def breaks(event: Event) -> None:
        told.append(event)
        raise RuntimeError("broken")

    world = World(listeners=[breaks], overload=None)  # whose changes would be told, too
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for _ in range(SECONDS):
            assert await world.serve(stack, 0) == 504  # a refusal is told
            assert await world.serve(stack, 5000) == 200
            world.clock.advance(1.0)
    assert [*map(type, told)] == [Refused] * SECONDS, told
    assert world.guard.snapshot().guard_errors == SECONDS
    assert len([each for each in caplog.records if each.name == "resilient_mw"]) == 3


@pytest.mark.parametrize("stack", ["asgi", "wsgi"])
async def test_a_model_that_breaks_lets_requests_pass_as_well(
    stack: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(shadow=True)
    world.guard.controller.arrive = broken  # type: ignore[method-assign]
    for _ in range(3):
        assert await world.serve(stack, 5000) == 200
    assert world.guard.listeners.errors == 3
    assert len([each for each in caplog.records if each.name == "resilient_mw"]) == 1


async def test_a_level_that_cannot_be_measured_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    assert await world.serve("wsgi", 5000) == 200
    monkeypatch.setattr(OverloadLevel, "advance", broken)
    with caplog.at_level(logging.ERROR, "resilient_mw"):
        for _ in range(SECONDS):
            world.clock.advance(1.0)
            assert await world.serve("wsgi", 5000) == 200
    lines = [
        each.getMessage().partition(" failed")[0] for each in caplog.records if each.name == "resilient_mw"
    ]
    assert lines == ["overload"] * 3
    assert world.guard.listeners.errors >= SECONDS
    assert world.guard.readiness().ready
