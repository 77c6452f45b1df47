from __future__ import annotations

from collections.abc import Callable
from typing import Any


def sync_only(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Do nothing, and not declare to be async-capable: Django bridges both ways."""

    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware
