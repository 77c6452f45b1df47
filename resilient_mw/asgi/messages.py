"""What the messages of a response say, and what is said in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resilient_mw.runtime.degrade import DEGRADED_HEADER

if TYPE_CHECKING:
    from asgiref.typing import ASGISendEvent

DEGRADED = (DEGRADED_HEADER.lower().encode("ascii"), b"1")


def marked_degraded(message: Any) -> Any:
    """Return the head of a response with the mark. The application keeps its own message and headers as they are."""
    return {**message, "headers": [*message.get("headers", ()), DEGRADED]}


def is_last(message: ASGISendEvent, trailers: bool) -> bool:
    """Return whether a message ends the response; unknown messages do not."""
    kind: str = message["type"]
    if kind in {"http.response.body", "http.response.zerocopysend"}:
        return not message.get("more_body", False) and not trailers
    if kind == "http.response.pathsend":
        return not trailers
    return kind == "http.response.trailers" and not message.get("more_trailers", False)
