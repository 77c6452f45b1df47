"""Dependencies that a route cannot do without: while the circuit of one is open, such a request is not worth the work.

Only as long as the circuit would let nothing through. When it is to be tried again, requests pass, or it would never
close; while as many trials are under way as may be, they are refused again. A name is looked up at every arrival, among
the dependencies that some transport was made with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING

from resilient_mw.admission import needs
from resilient_mw.admission.policy_checks import ADMISSION
from resilient_mw.core import ports
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.dependency_owner import DependencyOwner

if TYPE_CHECKING:
    from resilient_mw.admission.decision import Decision
    from resilient_mw.admission.entry import RouteEntry
    from resilient_mw.runtime.guard import Guard
    from resilient_mw.runtime.shadow import ShadowGuard

WHERE = "look-up of a needed dependency"

_random = SystemRandom()  # processes that were forked must not share their jitter


def refused_for_need(
    guard: Guard, entry: RouteEntry, name: str, now: float, shadow: ShadowGuard | None = None
) -> Decision | None:
    """Refuse a request that has just arrived if the dependency that it needs is not to be had; None if it may pass.

    It passes if nobody knows the dependency, if a cheaper variant can answer, and if our own look-up fails. In shadow mode
    it is counted and runs.
    """
    if now >= guard.controller.refuse_from:
        return None  # That is the better reason: it closes the connection.
    try:
        seconds = missing_for(name)
    except Exception as error:  # noqa: BLE001  whatever goes wrong here, the request can still be served
        guard.listeners.failed(WHERE, error)
        return None
    if seconds is None or entry.degradable:
        return None
    if shadow is not None and shadow.would_refuse(ADMISSION, entry, Reason.DEPENDENCY_UNAVAILABLE):
        return shadow.outside(entry, entry.cost)
    decision = guard.refuse(entry, now, Reason.DEPENDENCY_UNAVAILABLE)
    return replace(decision, retry_after=needs.retry_after(seconds, _random.random()))


def missing_for(name: str) -> float | None:
    """Return the seconds for which a dependency is not to be had; None if it is, or is not known.

    Where several have the same name, all of them must be missing.
    """
    return needs.missing_for([owner.closed_for() for owner in _owners() if owner.dependency.name == name])


def unknown_names(names: Iterable[str]) -> list[str]:
    """Return the names that no dependency has which a transport was made with."""
    known = {owner.dependency.name for owner in _owners()}
    return sorted(set(names) - known)


def _owners() -> list[DependencyOwner]:
    return [source for source in ports.dependency_sources() if isinstance(source, DependencyOwner)]
