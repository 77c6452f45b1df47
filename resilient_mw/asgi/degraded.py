"""The mark on an answer that a cheaper variant gave."""

from __future__ import annotations

from typing import Any

from resilient_mw.runtime.degrade import DEGRADED_HEADER

DEGRADED = (DEGRADED_HEADER.lower().encode("ascii"), b"1")


def marked_degraded(message: Any) -> Any:
    """Return the head of a response with the mark. The application keeps its own message and headers as they are."""
    return {**message, "headers": [*message.get("headers", ()), DEGRADED]}
