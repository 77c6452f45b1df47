"""Overload under WSGI: requests look when they come and go, and a cheaper answer is marked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import Band, OverloadPolicy, RouteRule, ServerPolicy, current
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

QUICK = OverloadPolicy(slots=Band(0.5, 1.0), rise=0.02, fall=0.02, dwell=0.0)


class World:
    """A policy of one slot and no queue, on a clock that stands still until it is moved."""

    def __init__(self, overload: OverloadPolicy | None = QUICK, **fields: Any) -> None:
        self.clock = ManualClock()
        self.policy = ServerPolicy(
            limit=1, queue=0, overload=overload, routes=[RouteRule("/low", priority="sheddable")], **fields
        )
        use_clock(self.policy, self.clock)
        self.guard = guard_of(self.policy)

    def serve(self, app: Any = hello, **options: Any) -> ScriptedWSGI:
        return ScriptedWSGI(ResilienceMiddleware(app, self.policy), **options)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instants of all looks."""
    found: list[float] = []
    look = Guard.look

    def counted(guard: Guard) -> None:
        found.append(guard.clock.now())
        look(guard)

    monkeypatch.setattr(Guard, "look", counted)
    return found


def test_requests_look_when_they_come_and_go_at_most_every_50_ms(looks: list[float]) -> None:
    world = World()
    world.serve().run()
    assert looks == [0.0]
    world.clock.advance(0.04)
    world.serve().run()
    assert looks == [0.0]
    world.clock.advance(0.04)
    request = world.serve().call()
    assert looks == [0.0, 0.08]
    world.clock.advance(0.06)
    request.read()
    request.close()
    assert looks == [0.0, 0.08, 0.14]


def test_an_end_that_is_no_usual_one_looks_too(looks: list[float]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"one"
        yield b"two"

    world = World()
    request = world.serve(app).call()
    world.clock.advance(0.06)
    request.close()
    assert looks == [0.0, 0.06]


def test_without_an_overload_policy_nobody_looks(looks: list[float]) -> None:
    world = World(None)
    world.serve().run()
    assert looks == []


def test_no_thread_is_needed_for_it() -> None:
    before = set(threading.enumerate())
    World().serve().run()
    assert set(threading.enumerate()) <= before


def test_a_full_service_sheds_its_lowest_class_and_says_so() -> None:
    world = World()
    holder = world.serve().call()
    world.clock.advance(0.06)
    assert world.serve().run().header("X-Refusal-Reason") == "queue_full"
    world.clock.advance(0.2)
    world.serve().run()
    shed = world.serve(path="/low").run()
    assert (shed.status, shed.header("X-Refusal-Reason")) == ("503 Service Unavailable", "overloaded")
    assert int(shed.header("Retry-After") or 0) >= 1
    holder.read()
    holder.close()
    assert world.serve(path="/low").run().status == "200 OK"


def test_a_quiet_time_after_a_crowd_is_no_overload() -> None:
    world = World()
    holder = world.serve().call()
    world.clock.advance(0.06)
    world.serve().run()
    holder.read()
    holder.close()
    world.clock.advance(5.0)
    levels: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        levels.append(current().overload)
        return hello(environ, start_response)

    world.serve(app).run()
    assert levels == [pytest.approx(0.0, abs=0.01)]


def _returned(start_response: StartResponse) -> Any:
    start_response("200 OK", list(TEXT))
    return [b"cheap"]


def _written(start_response: StartResponse) -> Any:
    start_response("200 OK", list(TEXT))(b"cheap")
    return []


def _lazy(start_response: StartResponse) -> Iterator[bytes]:
    start_response("200 OK", list(TEXT))
    yield b"cheap"


@pytest.mark.parametrize("respond", [_returned, _written, _lazy])
def test_a_cheaper_answer_is_marked(respond: Callable[[StartResponse], Any]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        current().mark_degraded()
        return respond(start_response)

    server = World().serve(app).run()
    assert server.header("X-Degraded") == "1"
    assert server.body == b"cheap"
    assert World().serve().run().header("X-Degraded") is None


def test_a_504_in_place_of_a_cheaper_answer_is_not_marked() -> None:
    world = World(deadline_default=2.0)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        current().mark_degraded()
        world.clock.advance(3.0)
        return _returned(start_response)

    server = world.serve(app).run()
    assert server.status == "504 Gateway Timeout"
    assert server.header("X-Degraded") is None
