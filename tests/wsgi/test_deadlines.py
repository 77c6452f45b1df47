"""What an application may do once its time is over, and field case B31."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, RequestCancelled, ServerPolicy, current
from resilient_mw.core.events import Cancelled, Event, LateWork
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, Chunks, hello, in_thread, late, outcomes, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class World:
    """A policy of two seconds on a clock that the application moves."""

    def __init__(self, **fields: Any) -> None:
        self.events: list[Event] = []
        self.clock = ManualClock()
        self.policy = ServerPolicy(
            limit=1, queue=0, deadline_default=2.0, listeners=[self.events.append], **fields
        )
        use_clock(self.policy, self.clock)

    def serve(self, app: Any, **options: Any) -> ScriptedWSGI:
        return ScriptedWSGI(ResilienceMiddleware(app, self.policy), **options)


def is_expiry(server: ScriptedWSGI) -> bool:
    return (
        server.status == "504 Gateway Timeout"
        and len(server.calls) == 1
        and server.header("X-Refusal-Reason") is None  # the work had begun: not safe to repeat
        and server.header("Retry-After") is None
        and b'"reason":"deadline_exceeded"' in server.body
    )


@pytest.mark.parametrize("kind", ["list", "chunks", "lazy", "empty", "empty chunks"])
def test_an_answer_that_comes_too_late_is_replaced(kind: str) -> None:
    world = World()
    body = Chunks([b"x"], on_chunk=lambda _: world.clock.advance(3.0))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if kind == "lazy":
            return produce(start_response)
        start_response("200 OK", list(TEXT))
        if kind == "chunks":
            return body
        world.clock.advance(3.0)
        return {"list": [b"x"], "empty": [], "empty chunks": [b"", b""]}[kind]

    def produce(start_response: StartResponse) -> Iterator[bytes]:
        world.clock.advance(3.0)
        start_response("200 OK", list(TEXT))
        yield b"x"

    server = world.serve(app).run()
    assert is_expiry(server)
    assert outcomes(world.policy) == {"deadline": 1}
    assert late(world.policy) == 1
    assert slots_taken(world.policy) == 0
    assert body.closed == (1 if kind == "chunks" else 0)
    assert world.events == [
        Cancelled("unmatched", "normal", CancelReason.DEADLINE, 3.0),
        LateWork("unmatched", "normal", CancelReason.DEADLINE),
    ]


def test_an_answer_of_a_head_request_that_comes_too_late_has_no_body() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        world.clock.advance(2.0)
        start_response("200 OK", list(TEXT))
        return [b"x"]

    server = world.serve(app, method="HEAD").run()
    assert server.status == "504 Gateway Timeout"
    assert server.body == b""
    assert int(server.header("Content-Length") or "0") > 0


def test_an_answer_that_is_just_in_time_passes() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        world.clock.advance(1.999)
        return hello(environ, start_response)

    assert world.serve(app).run().body == b"hello"
    assert outcomes(world.policy) == {"completed": 1}
    assert world.events == []


@pytest.mark.parametrize(("over", "counted"), [(0.2, 0), (0.3, 1)])
def test_work_counts_as_late_250_ms_after_its_deadline(over: float, counted: int) -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        world.clock.advance(2.0 + over)
        return hello(environ, start_response)

    assert is_expiry(world.serve(app).run())
    assert late(world.policy) == counted


@pytest.mark.parametrize("where", ["call", "chunk", "within"])
def test_check_ends_the_work_and_the_caller_gets_504(where: str) -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if where == "chunk":
            return produce(start_response)
        start_response("200 OK", list(TEXT))
        world.clock.advance(2.0)
        if where == "within":
            with current().within(60.0):
                current().check()
        current().check()
        return [b"never"]

    def produce(start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        world.clock.advance(2.0)
        current().check()
        yield b"never"

    assert is_expiry(world.serve(app).run())
    assert outcomes(world.policy) == {"deadline": 1}
    assert slots_taken(world.policy) == 0


def test_a_smaller_budget_inside_the_request_is_the_applications_own_affair() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        with current().within(0.5):
            world.clock.advance(0.5)
            current().check()
        return []

    with pytest.raises(DeadlineExceeded):
        world.serve(app).run()
    assert outcomes(world.policy) == {"error": 1}


@pytest.mark.parametrize("error", [TimeoutError("theirs"), ConnectionError("theirs")])
@pytest.mark.parametrize("passed", [0.5, 5.0])
def test_errors_of_others_are_never_ours(error: Exception, passed: float) -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        world.clock.advance(passed)
        raise error

    with pytest.raises(type(error)) as raised:
        world.serve(app).run()
    assert raised.value is error
    assert outcomes(world.policy) == {"error": 1}
    assert slots_taken(world.policy) == 0


def test_a_request_that_was_cancelled_for_another_cause_is_counted_under_it() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        current().reason = CancelReason.UPSTREAM
        current().check()
        return []

    with pytest.raises(RequestCancelled):
        world.serve(app).run()
    assert outcomes(world.policy) == {"upstream": 1}
    assert world.events == [Cancelled("unmatched", "normal", CancelReason.UPSTREAM, 0.0)]


def test_a_body_that_goes_on_after_the_deadline_is_cut_off() -> None:
    world = World()
    body = Chunks([b"one", b"two", b"three"], on_chunk=lambda number: world.clock.advance(0.9))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Chunks:
        start_response("200 OK", list(TEXT))
        return body

    server = world.serve(app)
    with pytest.raises(DeadlineExceeded, match="before its response was complete"):
        server.run()
    assert (server.status, server.chunks) == ("200 OK", [b"one", b"two"])
    assert len(server.calls) == 1
    assert body.closed == 1
    assert outcomes(world.policy) == {"deadline": 1}
    assert slots_taken(world.policy) == 0


def test_a_body_that_was_complete_in_time_may_be_sent_slowly() -> None:
    world = World()
    server = world.serve(hello).call()
    server.read(1)
    world.clock.advance(5.0)  # the peer reads slowly
    server.read()
    server.close()
    assert server.body == b"hello"
    assert outcomes(world.policy) == {"completed": 1}
    assert late(world.policy) == 0


def test_the_tail_of_a_body_after_its_last_chunk_is_no_error_but_late_work() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        yield b"x"
        world.clock.advance(5.0)

    assert world.serve(app).run().body == b"x"
    assert outcomes(world.policy) == {"completed": 1}
    assert late(world.policy) == 1


def test_write_after_the_deadline_ends_the_application() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", list(TEXT))
        world.clock.advance(2.0)
        write(b"never")
        raise AssertionError("not reached")

    assert is_expiry(world.serve(app).run())
    assert outcomes(world.policy) == {"deadline": 1}


def test_a_response_that_was_begun_by_write_is_cut_off_too() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write = start_response("200 OK", list(TEXT))
        write(b"one")
        world.clock.advance(2.0)
        write(b"two")
        return []

    server = world.serve(app)
    with pytest.raises(DeadlineExceeded):
        server.run()
    assert (len(server.calls), server.body) == (1, b"one")
    assert slots_taken(world.policy) == 0


def test_a_body_after_write_is_cut_off_too() -> None:
    world = World()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))(b"one")
        world.clock.advance(2.0)
        return iter([b"two"])

    with pytest.raises(DeadlineExceeded):
        world.serve(app).run()
    assert outcomes(world.policy) == {"deadline": 1}


def test_a_server_that_fails_while_it_takes_our_answer_leaves_no_slot_behind() -> None:
    world = World()
    body = Chunks([b"x"], on_chunk=lambda _: world.clock.advance(3.0))

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Chunks:
        start_response("200 OK", list(TEXT))
        return body

    def broken(*_: object) -> Any:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        ResilienceMiddleware(app, world.policy)(ScriptedWSGI(app).environ, broken)
    assert body.closed == 1
    assert slots_taken(world.policy) == 0


def test_an_outer_middleware_does_not_spoil_the_answer_of_an_inner_one() -> None:
    outer, inner = World(), World()
    inner.clock = outer.clock
    inner.policy = ServerPolicy(deadline_default=60.0)
    use_clock(inner.policy, outer.clock)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        outer.clock.advance(2.5)
        return hello(environ, start_response)

    server = outer.serve(ResilienceMiddleware(app, inner.policy)).run()
    assert is_expiry(server)
    assert outcomes(outer.policy) == outcomes(inner.policy) == {"deadline": 1}


# -- B31: waiting is charged -------------------------------------------------------------------------------------------


def test_b31_the_wait_for_a_slot_is_part_of_the_budget() -> None:
    policy = ServerPolicy(limit=1, queue=1, max_wait=5.0, wait_share=1.0)
    seen: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(current().remaining())
        return hello(environ, start_response)

    middleware = ResilienceMiddleware(app, policy)
    first = ScriptedWSGI(middleware).call()
    second = ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "9000")])
    thread = in_thread(second.run)
    thread.join(0.3)
    first.close()
    thread.join(5)
    assert second.status == "200 OK"
    assert 4.0 < seen[1] <= 8.75


def test_b31_a_request_that_expires_in_the_queue_never_reaches_the_application() -> None:
    policy = ServerPolicy(limit=1, queue=1, max_wait=5.0, wait_share=1.0)
    middleware = ResilienceMiddleware(hello, policy)
    first = ScriptedWSGI(middleware).call()
    second = ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "50")]).run()
    assert second.status == "504 Gateway Timeout"
    assert second.header("X-Refusal-Reason") == "expired_in_queue"
    first.close()
    assert refused(policy) == {"expired_in_queue": 1}
    assert slots_taken(policy) == 0


def test_a_held_future_keeps_the_slot_after_the_response() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    futures = [concurrent.futures.Future[None]() for _ in range(3)]

    def app(environ: Any, start_response: Any) -> list[bytes]:
        for future in futures:
            current().hold(future)
        start_response("200 OK", [])
        return [b"ok"]

    guarded = ResilienceMiddleware(app, policy)
    environ: dict[str, Any] = {}
    setup_testing_defaults(environ)
    body = guarded(environ, lambda *_: lambda _: None)
    assert b"".join(body) == b"ok"
    body.close()  # type: ignore[attr-defined]
    for future in futures:
        assert policy.snapshot().classes[1].slots == 1
        future.set_result(None)
    assert policy.snapshot().classes[1].slots == 0
    assert [dict(each.outcomes) for each in policy.snapshot().routes if each.arrived] == [{"completed": 1}]
