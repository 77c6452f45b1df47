"""Makes what is judged on its own: the state of a dependency, and those of its route groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from resilient_mw.calls.breaker import Breaker
from resilient_mw.calls.groups import GroupState
from resilient_mw.calls.timeout import AdaptiveTimeout

if TYPE_CHECKING:
    from random import Random

    from resilient_mw.calls.dependency import Dependency
    from resilient_mw.calls.hedge import Hedging


def group_maker(
    dependency: Dependency, random: Random, fixed: float, hedging: Hedging | None
) -> Callable[[], GroupState]:
    """Return what makes the states of one dependency: its own first, and a later one held by hand if that one is.

    Args:
        dependency: whose policies they have.
        random: source of the jitter of open times.
        fixed: seconds; the timeout of the dependency, inf: none.
        hedging: when attempts get company; None: never.
    """
    own: list[Breaker] = []

    def make() -> GroupState:
        policy, adaptive = dependency.breaker, dependency.adaptive_timeout
        breaker = None if policy is None else Breaker(policy, random, dependency.timeout or 0.0)
        if breaker is not None and own:
            breaker.begin_like(own[0])
        elif breaker is not None:
            own.append(breaker)
        return GroupState(
            breaker,
            None if adaptive is None else AdaptiveTimeout(adaptive, fixed),
            None if hedging is None else hedging.model(),
        )

    return make
