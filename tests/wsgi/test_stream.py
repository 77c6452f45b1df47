"""WSGI requests that last: the slot for the head or the body, the deadline for the head, the body or the gaps."""

from __future__ import annotations

import concurrent.futures
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import DeadlineExceeded, RouteRule, ServerPolicy, current
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Cancelled, Event
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import TEXT, Chunks, late, outcomes, refused, serving, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

THREE = [b"one", b"two", b"three"]
HEAD_HELD: dict[str, Any] = {"slot": "head"}
RULES: dict[str, dict[str, Any]] = {
    "slot for the head": {"slot": "head"},
    "deadline for the head": {"deadline_covers": "head"},
    "deadline for gaps": {"deadline_idle": 5.0},
    "all for the head": {"slot": "head", "deadline_covers": "head"},
}  # fmt: skip


class Service:
    """An application below a policy with one rule, on a clock that the test moves."""

    def __init__(self, app: WSGIApplication, said: dict[str, Any], **policy: Any) -> None:
        self.clock = ManualClock()
        self.policy = ServerPolicy(routes=[RouteRule("/*", **said)], **policy)
        use_clock(self.policy, self.clock)
        self.middleware = ResilienceMiddleware(app, self.policy)

    def call(self, **options: Any) -> ScriptedWSGI:
        return ScriptedWSGI(self.middleware, **options).call()

    @property
    def opened(self) -> int:
        found = guard_of(self.policy).snapshot().streams
        assert found is not None
        return sum(each.opened for each in found.routes)

    @property
    def ended(self) -> dict[str, int]:
        found = guard_of(self.policy).snapshot().streams
        assert found is not None
        total: dict[str, int] = {}
        for each in found.routes:
            for outcome, count in each.ended.items():
                total[outcome] = total.get(outcome, 0) + count
        return total

    @property
    def places(self) -> int:
        return guard_of(self.policy).streams._streams.places

    def is_idle(self) -> bool:
        return (slots_taken(self.policy), self.opened, self.places) == (0, 0, 0)

    def ran(self) -> list[float]:
        guard = guard_of(self.policy)
        with guard._lock:
            guard.controller.forecast.learn()
        return [each.run.total for each in guard.entries.all() if each.arrived]


def three() -> WSGIApplication:
    """An application whose every answer has three chunks."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        return serving(Chunks(THREE))(environ, start_response)

    return app


def generating(clock: Callable[[], ManualClock], *gaps: float) -> WSGIApplication:
    """An application whose chunks take as long as that to be made."""

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        for number, seconds in enumerate(gaps):
            clock().advance(seconds)
            yield b"%d" % number

    return app


# -- invisible otherwise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", list(RULES))
def test_every_chunk_passes_as_it_is_and_the_body_is_closed_once(said: str) -> None:
    body = Chunks(THREE)
    service = Service(serving(body), RULES[said])
    server = service.call()
    assert (server.read(), body.closed) == (THREE, 0)
    server.close()
    server.close()
    assert body.closed == 1
    assert service.is_idle()
    assert outcomes(service.policy) == {"completed": 1}
    assert service.ended == ({"completed": 1} if RULES[said].get("slot") else {})


@pytest.mark.parametrize("said", list(RULES))
def test_an_answer_in_one_piece_is_no_stream(said: str) -> None:
    """The server never comes back for another chunk: the slot is free when it closes the body."""
    service = Service(serving([b"all"]), RULES[said])
    server = service.call()
    assert server.read() == [b"all"]
    assert slots_taken(service.policy) == 1
    server.close()
    assert service.is_idle()
    assert (outcomes(service.policy), service.ended) == ({"completed": 1}, {})


# -- the slot ----------------------------------------------------------------------------------------------------------


def test_the_slot_comes_back_when_the_first_bytes_have_left() -> None:
    service = Service(three(), HEAD_HELD, limit=1, queue=0)
    first = service.call()
    assert first.read(1) == [b"one"]
    assert (slots_taken(service.policy), service.opened) == (1, 0), "the server may still be sending them"
    assert first.read(1) == [b"two"]
    assert (slots_taken(service.policy), service.opened) == (0, 1)
    assert outcomes(service.policy) == {"completed": 1}
    second = service.call()
    assert second.read(2) == THREE[:2]
    assert service.opened == 2
    first.read()
    first.close()
    second.close()
    assert service.is_idle()
    assert service.ended == {"completed": 1, "client_disconnect": 1}


def test_the_slot_comes_back_after_the_first_write() -> None:
    seen: list[int] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write: Any = start_response("200 OK", list(TEXT))
        seen.append(slots_taken(service.policy))
        write(b"one")
        seen.append(slots_taken(service.policy))
        write(b"two")
        return [b"three"]

    service = Service(app, HEAD_HELD)
    server = service.call(validate=False)
    server.read()
    server.close()
    assert (server.chunks, seen) == (THREE, [1, 0])
    assert (service.is_idle(), service.ended) == (True, {"completed": 1})


def test_a_head_without_a_body_is_over_with_its_close() -> None:
    service = Service(three(), HEAD_HELD)
    server = service.call(method="HEAD", validate=False)
    server.read(2)
    assert slots_taken(service.policy) == 0
    server.close()
    assert (service.is_idle(), service.ended) == (True, {"completed": 1})


@pytest.mark.parametrize("fail_at", [0, 1, 2])
def test_an_exception_gives_the_slot_back_once(fail_at: int) -> None:
    service = Service(serving(Chunks(THREE, fail_at=fail_at)), HEAD_HELD)
    with pytest.raises(LookupError, match="chunk"):
        ScriptedWSGI(service.middleware).run()
    assert service.is_idle()
    expected = ({"completed": 1}, {"error": 1}) if fail_at else ({"error": 1}, {})
    assert (outcomes(service.policy), service.ended) == expected


def test_a_body_that_the_server_drops_gives_its_place_back() -> None:
    service = Service(three(), HEAD_HELD)
    ScriptedWSGI(service.middleware, validate=False).call().read(2)
    gc.collect()
    with pytest.warns(Warning, match="dropped a response body"):
        ScriptedWSGI(service.middleware).run()
    assert service.is_idle()


def test_what_the_application_holds_the_slot_for_keeps_it_beyond_the_head() -> None:
    work: concurrent.futures.Future[None] = concurrent.futures.Future()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        current().hold(work)
        start_response("200 OK", list(TEXT))
        return Chunks(THREE)

    service = Service(app, HEAD_HELD)
    server = service.call()
    server.read(2)
    assert slots_taken(service.policy) == 1
    work.set_result(None)
    server.read(1)
    assert (slots_taken(service.policy), service.opened) == (0, 1)
    server.close()
    assert service.is_idle()


def test_a_run_took_until_its_head_and_a_stream_is_in_no_run_time() -> None:
    for said in RULES.values():
        service: Service
        service = Service(generating(lambda: service.clock, 1.0, 2.0, 2.0), said)  # noqa: B023
        server = service.call()
        server.read()
        server.close()
        assert sum(service.ran()) == pytest.approx(1.0), said


def test_over_the_limit_a_stream_is_refused_before_any_work() -> None:
    events: list[Event] = []
    service = Service(three(), HEAD_HELD, stream_limit=1, listeners=[events.append])
    first = service.call()
    first.read(2)
    second = service.call()
    second.read()
    second.close()
    assert second.calls[0].status.startswith("503")
    assert refused(service.policy) == {"stream_limit": 1}
    first.close()
    assert service.is_idle()
    (cancelled,) = [event for event in events if isinstance(event, Cancelled)]
    assert cancelled.reason is CancelReason.CLIENT_DISCONNECT
    third = service.call()
    assert third.calls[0].status == "200 OK"
    third.close()


# -- the deadline ------------------------------------------------------------------------------------------------------


def test_a_deadline_for_the_head_is_over_with_it() -> None:
    left: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        left.append(current().remaining())
        yield b"one"
        left.append(current().remaining())
        service.clock.advance(100.0)
        current().check()
        yield b"two"

    service = Service(app, {"deadline_covers": "head", "deadline_default": 5.0})
    server = service.call()
    server.read()
    server.close()
    assert (server.chunks, left) == ([b"one", b"two"], [5.0, math.inf])
    assert outcomes(service.policy) == {"completed": 1}


@pytest.mark.parametrize("said", list(RULES))
def test_a_late_head_is_a_504(said: str) -> None:
    service: Service
    service = Service(generating(lambda: service.clock, 5.0, 0.0), RULES[said] | {"deadline_default": 4.0})
    server = service.call()
    server.read()
    server.close()
    assert server.calls[0].status.startswith("504")
    assert (service.is_idle(), outcomes(service.policy), service.ended) == (True, {"deadline": 1}, {})


def test_a_gap_that_lasts_too_long_ends_the_stream() -> None:
    service: Service
    service = Service(
        generating(lambda: service.clock, 1.0, 2.9, 2.9, 2.9, 3.0), HEAD_HELD | {"deadline_idle": 3.0, "deadline_default": 2.0}
    )  # fmt: skip
    server = service.call()
    with pytest.raises(DeadlineExceeded):
        server.read()
    server.close()
    assert server.chunks == [b"0", b"1", b"2", b"3"]
    assert (service.is_idle(), service.ended) == (True, {"deadline": 1})
    assert late(service.policy) == 0


def test_a_gap_may_be_shorter_than_what_was_left_for_the_head() -> None:
    service: Service
    service = Service(
        generating(lambda: service.clock, 1.0, 2.1), {"deadline_idle": 2.0, "deadline_default": 50.0}
    )
    server = service.call()
    with pytest.raises(DeadlineExceeded):
        server.read()
    server.close()
    assert outcomes(service.policy) == {"deadline": 1}


def test_a_reader_who_takes_nothing_is_a_gap() -> None:
    body = Chunks(THREE)
    service = Service(serving(body), {"deadline_idle": 2.0})
    server = service.call()
    server.read(1)
    service.clock.advance(1.9)
    server.read(1)
    service.clock.advance(2.1)
    with pytest.raises(DeadlineExceeded):
        server.read(1)
    server.close()
    assert (body.closed, outcomes(service.policy)) == (1, {"deadline": 1})


def test_the_first_gap_begins_with_the_head() -> None:
    service = Service(three(), {"deadline_idle": 5.0, "deadline_default": 2.0})
    server = service.call()
    server.read(1)
    service.clock.advance(4.0)
    assert server.read() == THREE[1:]
    server.close()
    assert outcomes(service.policy) == {"completed": 1}


def test_writes_have_gaps_too() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        write: Any = start_response("200 OK", list(TEXT))
        for seconds in (0.0, 1.9, 1.9, 2.1):
            service.clock.advance(seconds)
            write(b"x")
        return []

    service = Service(app, {"deadline_idle": 2.0})
    server = ScriptedWSGI(service.middleware, validate=False)
    with pytest.raises(DeadlineExceeded):
        server.call()
    assert server.chunks == [b"x"] * 3
    assert (service.is_idle(), outcomes(service.policy)) == (True, {"deadline": 1})


def test_callbacks_hear_of_a_gap_at_its_end() -> None:
    """The deadline of the head was far away when they were registered; the gap's is near."""
    heard = concurrent.futures.Future[CancelReason]()

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        current().on_cancel(heard.set_result)
        time.sleep(0.1)  # who watches has gone to sleep until the deadline of the head
        start_response("200 OK", list(TEXT))
        yield b"one"
        assert heard.result(5.0) is CancelReason.DEADLINE
        yield b"two"

    policy = ServerPolicy(routes=[RouteRule("/*", deadline_idle=0.2, deadline_default=50.0)])
    server = ScriptedWSGI(ResilienceMiddleware(app, policy)).call()
    with pytest.raises(DeadlineExceeded):
        server.read()
    server.close()
    assert outcomes(policy) == {"deadline": 1}


def test_another_one_of_ours_around_a_stream_ends_it_before() -> None:
    service: Service
    service = Service(generating(lambda: service.clock, 1.0, 4.1), HEAD_HELD | {"deadline_covers": "head"})
    outer = ServerPolicy(deadline_default=5.0)
    use_clock(outer, service.clock)
    server = ScriptedWSGI(ResilienceMiddleware(service.middleware, outer)).call()
    with pytest.raises(DeadlineExceeded):
        server.read()
    server.close()
    assert (service.is_idle(), service.ended) == (True, {"deadline": 1})


@pytest.mark.parametrize("inside", [{}, {"slot": "head"}, {"deadline_covers": "head"}])
def test_a_deadline_that_moves_is_not_fixed_by_a_middleware_inside(inside: dict[str, Any]) -> None:
    left: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        for _ in range(4):
            service.clock.advance(0.9)
            left.append(current().remaining())
            yield b"x"

    service = Service(app, inside, deadline_default=50.0)
    outer = ServerPolicy(routes=[RouteRule("/*", deadline_idle=1.0, deadline_default=1.0)])
    use_clock(outer, service.clock)
    server = ScriptedWSGI(ResilienceMiddleware(service.middleware, outer)).call()
    assert server.read() == [b"x"] * 4
    server.close()
    assert left == pytest.approx([0.1] * 4)
    assert service.is_idle()


def test_a_section_that_is_open_at_the_head_keeps_the_slot_beyond_it() -> None:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
        start_response("200 OK", list(TEXT))
        with current().shield(5.0):
            yield b"one"
            yield b"two"
        yield b"three"
        yield b"four"

    service = Service(app, HEAD_HELD)
    server = service.call()
    server.read(2)
    assert (slots_taken(service.policy), service.opened) == (1, 0)
    server.read(2)
    assert (slots_taken(service.policy), service.opened) == (0, 1)
    server.close()
    assert service.is_idle()
