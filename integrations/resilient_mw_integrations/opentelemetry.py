"""Traces with OpenTelemetry: a span for each call to a dependency, which says what became of it and why.

Example:
    from resilient_mw_integrations.opentelemetry import install

    install()  # spans go to the tracer provider of the process

The span is of the kind INTERNAL and covers the whole call: waits for a slot, attempts, back-offs and the body of the
response. It is the current one while attempts are made, so what instruments the client puts its own spans, one of the kind
CLIENT for each request on the wire, below it. That is the business of the instrumentation, and so is the trace context
that is sent along; nothing here makes a second CLIENT span or touches a header.

A tracer that fails changes nothing of the call, and is counted (`resilient_mw_call_watch_errors_total`).
"""

from __future__ import annotations

from contextvars import Token
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from resilient_mw._version import __version__
from resilient_mw.core.call_watch import AttemptEnds, CallBegins, CallEnds, unwatch_calls, watch_calls
from resilient_mw.runtime.clocks import wall_clock

NAME = "resilient_mw"
ATTEMPT = context.create_key("resilient_mw-attempt")
"""Where the context keeps the call whose attempts are made in it."""
ERRORS = frozenset({"failed", "expired", "refused"})
"""Outcomes that make a span an error. A caller who gives up is none."""


class CallTracing:
    """Makes the spans: what `install()` returns.

    Args:
        provider: the tracer provider; None: that of the process.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer(NAME, __version__, provider)

    def begins(self, call: CallBegins) -> TracedCall:
        """Begin the span of a call, and make it the current one."""
        return TracedCall(self._tracer, call)

    def uninstall(self) -> None:
        """Make no further spans."""
        unwatch_calls(self)


class TracedCall:
    """The span of one call.

    Args:
        tracer: makes it.
        call: what begins.
    """

    __slots__ = ("_http", "_span", "_status", "_token", "number")

    def __init__(self, tracer: Tracer, call: CallBegins) -> None:
        attributes: dict[str, AttributeValue] = {"resilient_mw.dependency": call.dependency}
        if call.budget is not None:
            attributes["resilient_mw.budget"] = call.budget
        self.number = 0
        self._http = call.http
        self._status: int | None = None
        self._span = tracer.start_span(
            f"call {call.dependency}", kind=SpanKind.INTERNAL, attributes=attributes
        )
        around = context.set_value(ATTEMPT, self, trace.set_span_in_context(self._span))
        self._token: Token[Context] | None = context.attach(around)

    def decided(self, breaker: str | None) -> None:
        """Say the state of the circuit."""
        if breaker is not None:
            self._span.set_attribute("resilient_mw.breaker.state", breaker)

    def starts(self, number: int, timeout: float | None) -> None:  # noqa: ARG002  the event of its end says enough
        """Take note of the attempt that is made."""
        self.number = number

    def attempt_ended(self, attempt: AttemptEnds) -> None:
        """Add an event for an attempt. One that another was faster than may end after its call: that is told to nobody."""
        if not self._span.is_recording():
            return
        attributes: dict[str, AttributeValue] = {"resilient_mw.attempt": attempt.number}
        if self._http and attempt.number > 1:
            attributes["http.request.resend_count"] = attempt.number - 1
        self._status = attempt.status
        if attempt.status is not None:
            attributes["http.response.status_code"] = attempt.status
        if attempt.phase is not None:
            attributes["resilient_mw.phase"] = attempt.phase
            attributes["error.type"] = "timeout" if attempt.timed_out else "error"
        self._span.add_event("resilient_mw.attempt", attributes)

    def left(self) -> None:
        """Let the span be current no longer."""
        token, self._token = self._token, None
        if token is not None:
            context.detach(token)

    def ended(self, end: CallEnds) -> None:
        """Say how the call ended, and end the span."""
        span = self._span
        try:
            span.set_attributes(_end_attributes(end, self._status, http=self._http))
            kind = _error_type(end, self._status)
            if kind is not None:
                span.set_attribute("error.type", kind)
                span.set_status(Status(StatusCode.ERROR, _description(end)))
        finally:
            span.end(int((wall_clock() - end.ago) * 1e9) if end.ago else None)


def _end_attributes(end: CallEnds, status: int | None, *, http: bool) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "resilient_mw.outcome": end.outcome,
        "resilient_mw.attempts": end.attempts,
    }
    if http and end.attempts > 1:
        attributes["http.request.resend_count"] = end.attempts - 1
    if status is not None and end.outcome == "answered":
        attributes["http.response.status_code"] = status
    if end.phase is not None:
        attributes["resilient_mw.phase"] = end.phase
    if end.reason is not None:
        attributes["resilient_mw.refusal.reason"] = end.reason
    return attributes


def _error_type(end: CallEnds, status: int | None) -> str | None:
    if end.outcome == "answered":
        return str(status) if status is not None and status >= 500 else None
    if end.outcome not in ERRORS:
        return None
    if end.reason is not None:
        return end.reason
    if end.outcome == "expired":
        return "deadline_exceeded"
    return "timeout" if end.timed_out else "error"


def _description(end: CallEnds) -> str | None:
    if end.outcome == "answered":
        return None
    where = f" in the phase {end.phase}" if end.phase is not None else ""
    why = f": {end.reason}" if end.reason is not None else ""
    return f"{end.outcome}{where}{why}"


def mark_resend(span: Span, *_: object, **__: object) -> None:
    """Say on the span of a request that it is sent again: `http.request.resend_count`.

    A request hook for the instrumentation of the client, whose spans are its own:
    `HTTPXClientInstrumentor().instrument(request_hook=mark_resend, async_request_hook=amark_resend)`.
    """
    call: Any = context.get_value(ATTEMPT)
    if isinstance(call, TracedCall) and call.number > 1:
        span.set_attribute("http.request.resend_count", call.number - 1)


async def amark_resend(span: Span, *_: object, **__: object) -> None:
    """Do what `mark_resend` does, where the hook has to be a coroutine function."""
    mark_resend(span)


def install(provider: TracerProvider | None = None) -> CallTracing:
    """Have a span made for each call that begins from now on; each further call of this makes one more.

    Args:
        provider: the tracer provider; None: that of the process, also if it is set later.

    Returns:
        What makes them, for its `uninstall()`.
    """
    tracing = CallTracing(provider)
    watch_calls(tracing)
    return tracing
