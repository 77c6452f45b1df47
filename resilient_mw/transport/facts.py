"""What happened on the wire, in the words of the call machine. Facts only: what follows from them is decided there."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from resilient_mw.calls.classify import asked
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import UNSENT, Failure, Head, Phase
from resilient_mw.core.errors import ResilienceError
from resilient_mw.core.headers.http_date import parse_http_date
from resilient_mw.core.headers.no_retry import PUSHBACK, RATE_LIMITED, parse_pushback
from resilient_mw.core.headers.retry_after import parse_retry_after
from resilient_mw.core.rejection import REFUSAL_HEADER
from resilient_mw.transport.library import Library
from resilient_mw.transport.scope import Scope

REFUSED_STREAM = 7
"""The error code of HTTP/2 (RFC 9113 7)."""

PHASES = {
    "PoolTimeout": Phase.POOL,
    "ConnectTimeout": Phase.CONNECT,
    "ConnectError": Phase.CONNECT,
    "ProxyError": Phase.CONNECT,
    "WriteTimeout": Phase.WRITE,
    "WriteError": Phase.WRITE,
}
"""What the class of an error says where nothing better is known; all others: the request was sent."""


plain = lru_cache(maxsize=2048)(Head)
"""Heads that say nothing but their status: each is made once."""


def head_of(dependency: Dependency, response: Any, wall_now: float, *, whole: bool = False) -> Head:
    """Return what a response head says.

    Args:
        dependency: who answered.
        response: the library's response.
        wall_now: seconds since 1970, for a `Retry-After` date in an answer without a `Date`.
        whole: whether its body is there already, or there is none.
    """
    status: int = response.status_code
    rule = dependency.fields.retry_if
    wanted = None if rule is None else asked(rule, response)
    if status < 400:
        return plain(status, whole=whole) if rule is None else Head(status, wanted=wanted, whole=whole)
    headers = response.headers
    retry_after, told_not_to = _retry_after(headers, wall_now), RATE_LIMITED in headers
    pushback: list[str] = headers.get_list(PUSHBACK)
    if pushback:
        wait = parse_pushback(pushback)
        told_not_to = told_not_to or wait is None
        retry_after = max(wait or 0.0, retry_after or 0.0)
    return Head(
        status,
        retry_after=retry_after,
        refused=dependency.trusted and bool(headers.get(REFUSAL_HEADER, "").strip()),
        told_not_to=told_not_to,
        wanted=wanted,
        whole=whole,
    )


def _retry_after(headers: Any, wall_now: float) -> float | None:
    values: list[str] = headers.get_list("retry-after")
    if not values:
        return None
    # A date is meant on the clock that wrote it: the difference of two instants of one clock needs no second one.
    written = parse_http_date(headers.get("date", "").strip(" \t"), wall_now)
    return parse_retry_after(values, wall_now if written is None else written)


def failure_of(
    library: Library,
    error: Exception,
    scope: Scope,
    *,
    consumed: bool,
    rule: Callable[[Any], bool] | None = None,
) -> Failure | None:
    """Return how an attempt failed; None if the error is no failure of the attempt and is to be raised as it is.

    That is a mistake of the caller, or an error of ours from below: a deadline that has passed and a circuit that is open
    stay so, whatever a rule of the user says.

    Args:
        library: the client library.
        error: what its transport raised.
        scope: what is known from below.
        consumed: whether a request body that cannot be sent a second time has been begun.
        rule: the user's own rule about what may pass.
    """
    if isinstance(error, (*library.mistakes, ResilienceError)):
        return None
    phase = scope.phase or _phase_of(error)
    if isinstance(error, library.module.PoolTimeout):
        phase = Phase.POOL
    if consumed and phase in UNSENT:
        phase = Phase.WRITE  # Somebody below has taken the body, whatever he did with it.
    return Failure(
        phase,
        timed_out=isinstance(error, library.timeout),
        ours=phase is Phase.POOL or _went_stale(library, error, scope),
        refused=_was_refused(error),
        wanted=None if rule is None else asked(rule, error),
    )


def _was_refused(error: Exception) -> bool:
    """Return whether HTTP/2 says that the request was not acted upon (RFC 9113 6.8, 8.7).

    httpcore raises the event of h2 as the argument of its own error, from which the library makes one of text. A stream
    above the last one that a closing connection has looked at is sent again by httpcore itself, but for a last one of 0.
    """
    event = next(iter((error.__cause__ or error).args), None)
    if getattr(event, "last_stream_id", None) == 0:
        return True
    return hasattr(event, "stream_id") and getattr(event, "error_code", None) == REFUSED_STREAM


def _phase_of(error: Exception) -> Phase:
    for kind in type(error).__mro__:
        if kind.__name__ in PHASES:
            return PHASES[kind.__name__]
    return Phase.HEAD


def _went_stale(library: Library, error: Exception, scope: Scope) -> bool:
    """Return whether a connection that we had kept was closed by the other side before one byte of answer came.

    That is the risk of keeping connections, and no illness of the dependency. Where the request itself could not be written,
    nothing was read, and so nothing was counted.
    """
    if scope.connected or isinstance(error, library.timeout):
        return False
    return scope.received == 0 or (scope.received is None and scope.phase is Phase.WRITE)
