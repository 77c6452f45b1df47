"""Whether requests should be sent to an instance, and why not."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_mw.admission.overload_policy import OverloadPolicy, OverloadState, Signal
from resilient_mw.core.snapshot import Readiness


def readiness(
    policy: OverloadPolicy | None,
    others: Sequence[str],
    *,
    draining: bool,
    level: float,
    state: OverloadState,
    worst: Signal | None,
) -> Readiness:
    """Return whether requests should be sent here.

    Args:
        policy: whether overload counts; None: nothing is measured.
        others: why not, but for drain and load.
        draining: whether it is about to stop.
        level, state, worst: how overloaded it is, and by what most.
    """
    reasons = [*(("draining",) if draining else ()), *others]
    if policy is not None and policy.readiness_falls_on_overload and state is OverloadState.OVERLOADED:
        reasons.append("overloaded")
    return Readiness(not reasons, tuple(reasons), level, state.value, None if worst is None else worst.value)
