"""The errors of a call, and what they say.

Each integration makes them errors of its library as well, so that `except httpx.TimeoutException` catches a deadline
and `except httpx.TransportError` an open circuit:

| error | of ours | of the library |
|---|---|---|
| `CallExpired` | `DeadlineExceeded` | `TimeoutException` |
| `CallRefused` | `CallRefused` | `TransportError` |
| `BudgetTooSmall` | `CallRefused` | `TimeoutException`: who handles timeouts means this one, too |
| `TransportClosed` | `ResilienceError` | `TransportError` |
"""

from __future__ import annotations

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Phase, Refuse
from resilient_mw.core.errors import CallRefused as Refused
from resilient_mw.core.errors import DeadlineExceeded, ResilienceError
from resilient_mw.runtime.guarded_errors import refused_why

DOING = {
    Phase.POOL: "waiting for a connection of its own pool",
    Phase.DNS: "resolving the host name",
    Phase.CONNECT: "connecting",
    Phase.TLS: "in the TLS handshake",
    Phase.WRITE: "sending the request",
    Phase.HEAD: "waiting for the response head",
    Phase.BODY: "reading the response body",
    Phase.BACKOFF: "waiting for the next attempt",
    Phase.BULKHEAD: "waiting for a bulkhead slot",
}


class Expired(DeadlineExceeded):
    """The deadline passed before the call was over.

    Attributes:
        phase: where the call was: `pool`, `dns`, `connect`, `tls`, `write`, `head`, `body`, `backoff` or
            `bulkhead`.
        dependency: the name of the dependency.
    """

    def __init__(self, message: str, phase: Phase, dependency: str) -> None:
        super().__init__(message)
        self.phase = phase
        self.dependency = dependency


class Closed(ResilienceError):
    """The transport was closed while a call waited for its next attempt.

    Attributes:
        dependency: the name of the dependency.
    """

    def __init__(self, message: str, dependency: str) -> None:
        super().__init__(message)
        self.dependency = dependency


__all__ = ["Closed", "Expired", "Refused", "closed_message", "expired_message", "refused_message"]


def expired_message(dependency: Dependency, phase: Phase, attempts: int) -> str:
    """Return what to say when the deadline passed."""
    where = f"in attempt {attempts}" if attempts else "before the first attempt"
    return (
        f"the deadline passed {where} at {dependency.name!r}, {DOING[phase]}. The caller's budget ended the "
        "call, not a timeout of the dependency: give it more time (a larger deadline, or budget()), or ask for less"
    )


def refused_message(dependency: Dependency, action: Refuse) -> str:
    """Return what to say when a call was refused on this side of the wire."""
    text = refused_why(dependency, action)
    if action.attempts:
        return f"{text}. {action.attempts} attempt(s) were made before; the last response was discarded for a retry"
    return f"{text}. Nothing was sent"


def closed_message(dependency: Dependency) -> str:
    """Return what to say when the transport was closed during a back-off."""
    return (
        f"the transport was closed while a call to {dependency.name!r} waited for its next attempt. Close a client when "
        "its calls are over, or cancel them first"
    )
