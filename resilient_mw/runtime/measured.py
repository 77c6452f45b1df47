"""What a request can see of the overload of its service."""

from __future__ import annotations

from typing import Protocol

from resilient_mw.admission.overload_policy import OverloadState


class Measured(Protocol):
    """Somebody's overload: plain attributes, of the last look."""

    @property
    def level(self) -> float:
        """0 to 1."""
        ...

    @property
    def state(self) -> OverloadState:
        """What the level means."""
        ...


class _Unmeasured:
    """Where nothing is measured, nothing is overloaded."""

    level = 0.0
    state = OverloadState.NORMAL


UNMEASURED: Measured = _Unmeasured()
"""What is known outside a request."""
