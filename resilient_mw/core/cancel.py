"""Why work is stopped: the closed set of cancel reasons."""

from __future__ import annotations

from enum import StrEnum


class CancelReason(StrEnum):
    """Why a request was cancelled. The values are stable: they are metric labels and log fields."""

    DEADLINE = "deadline"
    """The deadline passed: the answer is worthless from now on."""
    CLIENT_DISCONNECT = "client_disconnect"
    """The caller closed the connection before the response was complete."""
    UPSTREAM = "upstream"
    """A surrounding scope of this process gave the work up."""
    SHUTDOWN = "shutdown"
    """The server is stopping and its grace period is over."""
    CALLER = "caller"
    """The code that started the work cancelled it."""
    BODY_TOO_LARGE = "body_too_large"
    """The request body turned out to be larger than the route takes."""
