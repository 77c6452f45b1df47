"""Shadow mode under WSGI: every request runs to its own end, and what would have become of it is counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.core.snapshot import ShadowRoute, ShadowSnapshot
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, hello, outcomes, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class World:
    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock()
        self.policy = ServerPolicy(**fields)
        use_clock(self.policy, self.clock)

    def serve(self, app: Any = hello, **options: Any) -> ScriptedWSGI:
        return ScriptedWSGI(ResilienceMiddleware(app, self.policy), **options)

    def shadow(self) -> ShadowSnapshot:
        found = guard_of(self.policy).snapshot().shadow
        assert found is not None
        return found

    def would(self) -> ShadowRoute | None:
        routes = self.shadow().routes
        assert len(routes) <= 1
        return routes[0] if routes else None


def test_a_crowd_runs_and_is_counted() -> None:
    world = World(limit=1, queue=1, shadow=["admission"])
    running = [world.serve().call() for _ in range(4)]
    assert slots_taken(world.policy) == 1
    assert world.shadow().outside == 3
    for request in running:
        request.read()
        request.close()
        assert (request.status, request.body) == ("200 OK", b"hello")
    route = world.would()
    assert route is not None
    assert (route.queued, route.refused) == (1, {"queue_full": 2})
    assert (slots_taken(world.policy), world.shadow().outside) == (0, 0)
    assert outcomes(world.policy) == {"completed": 4}
    assert refused(world.policy) == {}


@pytest.mark.parametrize("streams", [False, True])
def test_an_overrun_is_counted_once_and_the_answer_is_the_applications(streams: bool) -> None:
    world = World(shadow=["deadlines"], deadline_default=1.0, deadline_response_header="X-Budget-Left-Ms")
    left: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        start_response("200 OK", list(TEXT))
        left.append(current().remaining())
        if not streams:
            world.clock.advance(2.0)
            current().check()
            return [b"late"]
        return chunks()

    def chunks() -> Iterator[bytes]:
        yield b"in time, "
        world.clock.advance(2.0)
        current().check()
        yield b"late, "
        world.clock.advance(2.0)
        yield b"later"

    request = world.serve(app).run()
    assert (request.status, request.body) == ("200 OK", b"in time, late, later" if streams else b"late")
    assert request.header("x-budget-left-ms") is None
    assert left == [math.inf]
    route = world.would()
    assert route is not None
    assert (route.cancelled, route.refused) == (1, {})
    assert outcomes(world.policy) == {"completed": 1}


def test_who_is_in_time_is_not_counted() -> None:
    world = World(shadow=True, deadline_default=1.0)
    world.serve().run()
    assert world.would() is None


def test_a_budget_that_is_over_on_arrival_is_counted_once_and_served() -> None:
    world = World(shadow=["deadlines"])
    request = world.serve(headers=[("X-Request-Timeout-Ms", "0")]).run()
    assert request.status == "200 OK"
    route = world.would()
    assert route is not None
    assert (route.refused, route.cancelled) == ({"expired_on_arrival": 1}, 0)


def test_admission_alone_in_shadow_keeps_deadlines() -> None:
    world = World(shadow=["admission"], deadline_default=1.0)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        start_response("200 OK", list(TEXT))
        world.clock.advance(2.0)
        return [b"late"]

    assert world.serve(app).run().status.startswith("504")
    assert outcomes(world.policy) == {"deadline": 1}
    assert slots_taken(world.policy) == 0


def test_the_deadline_of_a_middleware_around_it_holds() -> None:
    world = World(shadow=True, name="inside")
    left: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        left.append(current().remaining())
        return hello(environ, start_response)

    around = ServerPolicy(name="outside", deadline_default=1.0)
    use_clock(around, world.clock)
    ScriptedWSGI(ResilienceMiddleware(ResilienceMiddleware(app, world.policy), around)).run()
    assert left == [1.0]


def test_a_request_that_fails_is_taken_out_of_the_model() -> None:
    world = World(limit=1, queue=0, shadow=True)
    held = world.serve().call()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        raise LookupError("the application's own")

    with pytest.raises(LookupError):
        world.serve(app).run()
    assert world.shadow().outside == 0
    held.close()
    assert slots_taken(world.policy) == 0


@pytest.mark.parametrize("shadow", [["deadlines"], ["quotas"]])
def test_where_admission_is_real_a_stream_is_one(shadow: list[str]) -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        for _ in range(3):
            yield b"x"
            world.clock.advance(2.0)

    routes = [RouteRule("/*", slot="head", deadline_idle=5.0, deadline_default=1.0)]
    world = World(shadow=shadow, routes=routes, stream_limit=1, limit=1)
    server = world.serve(app).call()
    server.read(2)
    assert slots_taken(world.policy) == 0
    over = world.serve(app).run()
    assert dict(over.headers)["X-Refusal-Reason"] == "stream_limit"
    assert server.read() == [b"x"]
    server.close()
    streams = world.policy.snapshot().streams
    assert streams is not None
    assert [each.ended for each in streams.routes] == [{"completed": 1}]
    assert world.would() is None
    assert guard_of(world.policy).streams._streams.places == 0


def test_a_late_head_of_a_stream_is_counted_and_nothing_is_cut_off() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        world.clock.advance(2.0)
        yield b"x"
        yield b"x"

    routes = [RouteRule("/*", slot="head", deadline_covers="head", deadline_default=1.0)]
    world = World(shadow=["deadlines"], routes=routes)
    server = world.serve(app).call()
    assert server.read() == [b"x", b"x"]
    server.close()
    route = world.would()
    assert route is not None
    assert (route.refused, route.cancelled) == ({}, 1)
