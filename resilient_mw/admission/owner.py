"""What owns the state of a policy, as the policy knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from resilient_mw.admission.overload_policy import Signal
from resilient_mw.core.snapshot import AppSnapshot, Readiness

if TYPE_CHECKING:
    from resilient_mw.admission.config import ServerPolicy


class PolicyOwner(Protocol):
    """What owns the state of a policy."""

    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant."""
        ...

    def drain(self, delay: float | None = None, timeout: float | None = None) -> None:
        """Begin to stop."""
        ...

    def drain_on_signal(self, number: int | None) -> None:
        """Begin to stop at a signal."""
        ...

    def reload(self, policy: ServerPolicy | None, changes: Mapping[str, Any]) -> ServerPolicy:
        """Put another policy in force."""
        ...

    def readiness(self) -> Readiness:
        """Return whether requests should be sent here."""
        ...

    def report(self, signal: Signal, reading: float | None, source: str) -> None:
        """Take the reading of an overload signal."""
        ...
