"""Spans of calls, as an exporter gets them."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from collections.abc import Iterator
from threading import Thread
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.call import Call
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Expire, Head, Phase, Wait
from resilient_mw.core.call_watch import (
    WATCHES,
    AttemptEnds,
    CallBegins,
    CallEnds,
    unwatch_calls,
    watch_calls,
)
from resilient_mw.core.errors import CallRefused, DeadlineExceeded, ResilienceWarning
from resilient_mw.runtime.context import current
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.watched import watched
from resilient_mw_integrations.httpx import ResilientTransport
from resilient_mw_integrations.opentelemetry import CallTracing, amark_resend, install, mark_resend
from tests.integrations.client_wires import client, every_client
from tests.integrations.httpx_wires import Wire, every_wire, wire
from tests.transport.tcp_server import Connection, RawServer, head

__all__ = ["client", "wire"]

QUICK = RetryPolicy(attempts=2, backoff_base=0.01, backoff_cap=0.02)


class Traces:
    """A provider of its own, and what it has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def only(self) -> ReadableSpan:
        (span,) = self.spans()
        return span


@pytest.fixture
def traces() -> Iterator[Traces]:
    made = Traces()
    tracing = install(made.provider)
    yield made
    tracing.uninstall()
    assert WATCHES == []


def told(span: ReadableSpan) -> dict[str, Any]:
    """What a span says, but for the budget, which is a measurement."""
    attributes = dict(span.attributes or {})
    attributes.pop("resilient_mw.budget", None)
    return {name.removeprefix("resilient_mw."): value for name, value in attributes.items()}


def events(span: ReadableSpan) -> list[dict[str, Any]]:
    assert {event.name for event in span.events} <= {"resilient_mw.attempt"}
    return [
        {name.removeprefix("resilient_mw."): value for name, value in (event.attributes or {}).items()}
        for event in span.events
    ]


def budget(span: ReadableSpan) -> Any:
    return (span.attributes or {})["resilient_mw.budget"]


def prices(url: str = "http://prices", **fields: Any) -> Dependency:
    return Dependency("prices", f"{url}/*", **{"retry": None, "reserve": 0.0, **fields})


def answers(connection: Connection) -> None:
    while connection.request():
        connection.answer()


def busy_once(connection: Connection) -> None:
    while connection.request():
        connection.answer(503 if len(connection.server.requests) == 1 else 200)


def never_answers(connection: Connection) -> None:
    connection.request()
    connection.hang()


def stalls_in_the_body(connection: Connection) -> None:
    connection.request()
    connection.send(head(200, 10_000) + b"x" * 5000)
    connection.hang()


class Instant:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at


# -- what a span says --------------------------------------------------------------------------------------------------


@every_wire
def test_an_answered_call(wire: Wire, traces: Traces) -> None:
    with RawServer(answers) as server:
        wire.open([prices(server.url)])
        with current().within(3.0):
            assert wire.get(server.url + "/").status_code == 200
    span = traces.only()
    assert span.name == "call prices"
    assert span.kind is SpanKind.INTERNAL
    assert span.status.status_code is StatusCode.UNSET
    assert told(span) == {
        "dependency": "prices",
        "breaker.state": "closed",
        "outcome": "answered",
        "attempts": 1,
        "http.response.status_code": 200,
    }
    assert events(span) == [{"attempt": 1, "http.response.status_code": 200}]
    assert 2.0 < budget(span) <= 3.0


@every_wire
def test_a_retried_call_says_how_often_it_was_sent_again(wire: Wire, traces: Traces) -> None:
    with RawServer(busy_once) as server:
        wire.open([prices(server.url, retry=QUICK, breaker=None)])
        assert wire.get(server.url + "/").status_code == 200
    span = traces.only()
    assert span.status.status_code is StatusCode.UNSET
    assert told(span) == {
        "dependency": "prices",
        "outcome": "answered",
        "attempts": 2,
        "http.request.resend_count": 1,
        "http.response.status_code": 200,
    }
    assert events(span) == [
        {"attempt": 1, "http.response.status_code": 503},
        {"attempt": 2, "http.request.resend_count": 1, "http.response.status_code": 200},
    ]


@every_wire
def test_an_answer_that_is_an_error(wire: Wire, traces: Traces) -> None:
    wire.open([prices()], wire.handler(wire.always(503)))
    assert wire.get("http://prices/").status_code == 503
    span = traces.only()
    assert span.status.status_code is StatusCode.ERROR
    assert told(span)["error.type"] == "503"
    assert told(span)["outcome"] == "answered"


@every_wire
@pytest.mark.parametrize(
    ("script", "phase"), [(never_answers, "head"), (stalls_in_the_body, "body")], ids=["head", "body"]
)
def test_an_expired_call_says_where_it_died(wire: Wire, traces: Traces, script: Any, phase: str) -> None:
    with RawServer(script) as server:
        wire.open([prices(server.url)])
        with current().within(0.15), pytest.raises(DeadlineExceeded):
            wire.get(server.url + "/")
    span = traces.only()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == f"expired in the phase {phase}"
    assert told(span)["outcome"] == "expired"
    assert told(span)["phase"] == phase
    assert told(span)["error.type"] == "deadline_exceeded"
    assert 0.0 < budget(span) <= 0.15


def test_a_call_that_dies_in_a_back_off_says_so(traces: Traces) -> None:
    clock = Instant()
    owner = watched(DependencyOwner(prices(retry=QUICK), clock), http=True)
    call = Call(owner.state, "GET", deadline_at=1.0)
    owner.begin(call)
    (*_, wait) = owner.tell(call, 1, Head(503))
    assert isinstance(wait, Wait)
    clock.at = 2.0  # A machine that stood still.
    assert owner.resume(call, wait.until) == (Expire(Phase.BACKOFF),)
    said = told(traces.only())
    assert (said["outcome"], said["phase"], said["attempts"]) == ("expired", "backoff", 1)


@every_wire
def test_a_call_that_dies_while_it_waits_for_a_slot(wire: Wire, traces: Traces) -> None:
    with RawServer(answers) as server:
        dependency = prices(server.url, bulkhead=BulkheadPolicy(limit=1, max_wait=5.0))
        wire.open([dependency])
        response = wire.send("GET", server.url + "/")
        with current().within(0.1), pytest.raises(DeadlineExceeded):
            wire.get(server.url + "/")
        wire.close(response)
    expired, answered = traces.spans()
    assert told(expired)["outcome"] == "expired"
    assert told(expired)["phase"] == "bulkhead"
    assert told(expired)["attempts"] == 0
    assert told(answered)["outcome"] == "answered"
    assert (expired.start_time or 0) > (answered.start_time or 0)


@every_wire
def test_a_refused_call_says_why(wire: Wire, traces: Traces) -> None:
    dependency = prices()
    wire.open([dependency], wire.handler(wire.always(200)))
    dependency.open_circuit()
    with pytest.raises(CallRefused):
        wire.get("http://prices/")
    span = traces.only()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "refused: circuit_open"
    assert told(span) == {
        "dependency": "prices",
        "breaker.state": "open",
        "outcome": "refused",
        "attempts": 0,
        "refusal.reason": "circuit_open",
        "error.type": "circuit_open",
    }
    assert events(span) == []


@every_wire
def test_a_failed_call_says_where(wire: Wire, traces: Traces) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        wire.open([prices(url)])
        with pytest.raises(wire.lib.ConnectError):
            wire.get(url + "/")
    span = traces.only()
    assert span.status.description == "failed in the phase connect"
    assert told(span)["outcome"] == "failed"
    assert told(span)["error.type"] == "error"
    assert events(span) == [{"attempt": 1, "phase": "connect", "error.type": "error"}]


@every_wire
def test_a_timeout_of_the_dependency_is_no_expiry(wire: Wire, traces: Traces) -> None:
    with RawServer(never_answers) as server:
        wire.open([prices(server.url, timeout=0.1)])
        with pytest.raises(wire.lib.TimeoutException):
            wire.get(server.url + "/")
    said = told(traces.only())
    assert (said["outcome"], said["phase"], said["error.type"]) == ("failed", "head", "timeout")


@every_client
def test_every_client_is_traced(client: Any, traces: Traces) -> None:
    with RawServer(busy_once) as server:
        client.open([prices(server.url, retry=QUICK)])
        assert client.get(server.url + "/").status == 200
    span = traces.only()
    assert told(span)["outcome"] == "answered"
    assert [event.get("http.response.status_code") for event in events(span)] == [503, 200]


@every_wire
def test_a_request_to_nobody_s_dependency_has_no_span(wire: Wire, traces: Traces) -> None:
    wire.open([prices()], wire.handler(wire.always(200)))
    assert wire.get("http://elsewhere/").status_code == 200
    assert traces.spans() == ()


async def test_a_caller_who_gives_up_is_no_error(traces: Traces) -> None:
    async def forever() -> None:
        await asyncio.sleep(60)

    task = asyncio.ensure_future(Dependency("sql").acall(forever))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = traces.only()
    assert told(span)["outcome"] == "cancelled"
    assert span.status.status_code is StatusCode.UNSET


# -- functions ---------------------------------------------------------------------------------------------------------


def test_a_function_in_a_thread_has_a_span_without_http(traces: Traces) -> None:
    sql = Dependency("sql", retry=QUICK)
    failed: list[int] = []

    def query() -> str:
        if not failed:
            failed.append(1)
            raise ConnectionError
        return "rows"

    assert sql.guard(idempotent=True).call(query) == "rows"
    span = traces.only()
    assert told(span) == {
        "dependency": "sql",
        "breaker.state": "closed",
        "outcome": "answered",
        "attempts": 2,
    }
    assert events(span) == [{"attempt": 1, "phase": "head", "error.type": "error"}, {"attempt": 2}]


async def test_a_coroutine_that_expires(traces: Traces) -> None:
    async def query() -> None:
        await asyncio.sleep(60)

    with current().within(0.1), pytest.raises(DeadlineExceeded):
        await Dependency("sql", reserve=0.0).acall(query)
    said = told(traces.only())
    assert (said["outcome"], said["phase"]) == ("expired", "head")


# -- beside other spans ------------------------------------------------------------------------------------------------


@every_wire
def test_what_is_traced_in_an_attempt_lies_below_the_call(wire: Wire, traces: Traces) -> None:
    """As an instrumentation does it: a CLIENT span for each request on the wire, with a request hook."""
    tracer = traces.provider.get_tracer("instrumentation")
    statuses = iter([503, 200])

    def answer(request: Any) -> Any:
        with tracer.start_as_current_span("GET", kind=SpanKind.CLIENT) as span:
            mark_resend(span, request)
        return wire.lib.Response(next(statuses))

    wire.open([prices(retry=QUICK)], wire.handler(answer))
    with tracer.start_as_current_span("handler") as handler:
        assert wire.get("http://prices/").status_code == 200
        assert trace.get_current_span() is handler
    first, second, call, outer = traces.spans()
    assert call.parent is not None
    assert outer.context is not None
    assert call.parent.span_id == outer.context.span_id
    assert [span.kind for span in (first, second, call)] == [
        SpanKind.CLIENT,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    ]
    for span in (first, second):
        assert span.parent is not None
        assert call.context is not None
        assert span.parent.span_id == call.context.span_id
    assert dict(first.attributes or {}) == {}
    assert dict(second.attributes or {}) == {"http.request.resend_count": 1}


async def test_the_hook_says_nothing_outside_a_call(traces: Traces) -> None:
    with traces.provider.get_tracer("instrumentation").start_as_current_span("GET") as span:
        await amark_resend(span, object())
    assert dict(traces.only().attributes or {}) == {}


def test_the_caller_s_span_is_current_again_while_the_body_is_read(traces: Traces) -> None:
    with RawServer(answers) as server:
        inner = ResilientTransport([prices(server.url)], verify=False)
        with httpx.Client(transport=inner) as plain, plain.stream("GET", server.url + "/") as response:
            assert trace.get_current_span() is trace.INVALID_SPAN
            assert traces.spans() == ()
            response.read()
    assert told(traces.only())["outcome"] == "answered"


def test_two_threads_have_spans_of_their_own(traces: Traces) -> None:
    sql = Dependency("sql")
    inside: list[int] = []

    def query() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    threads = [Thread(target=sql.call, args=(query,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = {span.context.span_id for span in traces.spans() if span.context is not None}
    assert len(made) == 4
    assert set(inside) == made


def test_a_response_that_was_thrown_away_ends_its_span_with_the_next_call(traces: Traces) -> None:
    with RawServer(answers) as server:
        inner = ResilientTransport([prices(server.url)], verify=False)
        with httpx.Client(transport=inner) as plain:
            request = plain.build_request("GET", server.url + "/")
            response: Any = inner.handle_request(request)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResilienceWarning)
                del response
                gc.collect()
            assert traces.spans() == ()
            assert plain.get(server.url + "/").status_code == 200
    lost, answered = traces.spans()
    assert told(lost)["outcome"] == "cancelled"
    assert told(answered)["outcome"] == "answered"
    assert (lost.end_time or 0) <= (answered.start_time or 0)


def test_an_attempt_that_ends_after_its_call_is_not_told_of(
    traces: Traces, caplog: pytest.LogCaptureFixture
) -> None:
    call = CallTracing(traces.provider).begins(CallBegins("prices", http=True, budget=None))
    call.attempt_ended(AttemptEnds(2, 200, None, timed_out=False))
    call.left()
    call.ended(CallEnds("answered", 2))
    call.attempt_ended(AttemptEnds(1, None, "head", timed_out=True))
    assert [event["attempt"] for event in events(traces.only())] == [2]
    assert caplog.records == []


# -- tracers that fail -------------------------------------------------------------------------------------------------


class Broken:
    """Fails at one step, or at every one."""

    def __init__(self, step: str) -> None:
        self._step = step

    def _fail(self, step: str) -> None:
        if self._step in (step, "all"):
            raise ZeroDivisionError(step)

    def begins(self, call: CallBegins) -> Broken:
        self._fail("begins")
        return self

    def decided(self, breaker: str | None) -> None:
        self._fail("decided")

    def starts(self, number: int, timeout: float | None) -> None:
        self._fail("starts")

    def attempt_ended(self, attempt: AttemptEnds) -> None:
        self._fail("attempt_ended")

    def left(self) -> None:
        self._fail("left")

    def ended(self, end: CallEnds) -> None:
        self._fail("ended")


@every_wire
@pytest.mark.parametrize("step", ["begins", "decided", "starts", "attempt_ended", "left", "ended"])
def test_a_tracer_that_fails_changes_nothing_and_is_counted(wire: Wire, traces: Traces, step: str) -> None:
    broken = Broken(step)
    watch_calls(broken)
    try:
        dependency = prices(retry=None)
        wire.open([dependency], wire.handler(wire.always(200)))
        assert wire.get("http://prices/").status_code == 200
        snapshot = dependency.snapshot()
        assert snapshot.watch_errors == 1
        assert snapshot.in_use == 0
        assert told(traces.only())["outcome"] == "answered"
    finally:
        unwatch_calls(broken)


def test_a_span_that_fails_changes_nothing_and_is_counted() -> None:
    class BrokenProvider(trace.TracerProvider):
        def get_tracer(self, *args: Any, **keywords: Any) -> Any:
            return self

        def start_span(self, *args: Any, **keywords: Any) -> Any:
            raise ZeroDivisionError

    tracing = CallTracing(BrokenProvider())
    watch_calls(tracing)
    try:
        sql = Dependency("sql")
        assert sql.call(lambda: "rows") == "rows"
        assert sql.snapshot().watch_errors == 1
    finally:
        tracing.uninstall()


def test_without_a_tracer_no_owner_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("nobody watches")

    monkeypatch.setattr("resilient_mw.transport.sync.watched", never)
    monkeypatch.setattr("resilient_mw.runtime.guarded.watched", never)
    assert Dependency("sql").call(lambda: 1) == 1
    with httpx.Client(
        transport=ResilientTransport([prices()], httpx.MockTransport(lambda _: httpx.Response(200)))
    ) as plain:
        assert plain.get("http://prices/").status_code == 200


def test_installed_twice_there_are_two_spans_and_uninstalled_none(traces: Traces) -> None:
    second = install(traces.provider)
    sql = Dependency("sql")
    sql.call(lambda: 1)
    assert len(traces.spans()) == 2
    second.uninstall()
    second.uninstall()
    sql.call(lambda: 1)
    assert len(traces.spans()) == 3
