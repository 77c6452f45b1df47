"""What happened on the wire, in the words of the call machine. Facts only: what follows from them is decided there."""

from __future__ import annotations

from typing import Any

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import UNSENT, Failure, Head, Phase
from resilient_mw.core.headers.http_date import parse_http_date
from resilient_mw.core.headers.retry_after import parse_retry_after
from resilient_mw.core.rejection import REFUSAL_HEADER
from resilient_mw.transport.library import Library
from resilient_mw.transport.scope import Scope

PHASES = {
    "PoolTimeout": Phase.POOL,
    "ConnectTimeout": Phase.CONNECT,
    "ConnectError": Phase.CONNECT,
    "ProxyError": Phase.CONNECT,
    "WriteTimeout": Phase.WRITE,
    "WriteError": Phase.WRITE,
}
"""What the class of an error says where nothing better is known; all others: the request was sent."""


def head_of(dependency: Dependency, response: Any, wall_now: float) -> Head:
    """Return what a response head says.

    Args:
        dependency: who answered.
        response: the library's response.
        wall_now: seconds since 1970, for a `Retry-After` date in an answer without a `Date`.
    """
    status: int = response.status_code
    if status < 400:
        return Head(status)
    headers = response.headers
    return Head(
        status,
        retry_after=_retry_after(headers, wall_now),
        refused=dependency.trusted and bool(headers.get(REFUSAL_HEADER, "").strip()),
    )


def _retry_after(headers: Any, wall_now: float) -> float | None:
    values: list[str] = headers.get_list("retry-after")
    if not values:
        return None
    # A date is meant on the clock that wrote it: the difference of two instants of one clock needs no second one.
    written = parse_http_date(headers.get("date", "").strip(" \t"), wall_now)
    return parse_retry_after(values, wall_now if written is None else written)


def failure_of(library: Library, error: Exception, scope: Scope, *, consumed: bool) -> Failure | None:
    """Return how an attempt failed; None if the error is a mistake of the caller and no failure of the attempt.

    Args:
        library: the client library.
        error: what its transport raised.
        scope: what is known from below.
        consumed: whether a request body that cannot be sent a second time has been begun.
    """
    if isinstance(error, library.mistakes):
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
    )


def _phase_of(error: Exception) -> Phase:
    for kind in type(error).__mro__:
        if kind.__name__ in PHASES:
            return PHASES[kind.__name__]
    return Phase.HEAD


def _went_stale(library: Library, error: Exception, scope: Scope) -> bool:
    """Return whether a connection that we had kept was closed by the other side before one byte of answer came.

    That is the risk of keeping connections, and no illness of the dependency.
    """
    return not scope.connected and scope.received == 0 and not isinstance(error, library.timeout)
