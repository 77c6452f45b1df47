"""Hedging: a second attempt beside one that takes longer than nearly all do, so that a slow one in twenty is not waited for.

    delay = max(minimum, observed quantile of the time until the head), or what the user says

A hedge is an attempt like any other: it needs a slot, a permit and a place in the budget of retries, and a circuit that is
closed. It waits for none of them. What has a side effect is never hedged, also where it is idempotent: the loser of two PUTs may
arrive after the caller's next one, and undo it. Only methods that read are, and requests with an idempotency key, by which the
dependency knows that they are one; with a body that can be sent again.

Pure and not thread-safe: the owner of the dependency locks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from resilient_mw.calls.latency import LatencyModel, samples_for
from resilient_mw.core.checks import require_integer, require_number

MOST_HEDGES = 3


class HedgeRefusal(StrEnum):
    """Why an attempt that took long was not hedged. The values are stable labels."""

    UNSAFE = "unsafe"
    """The method writes, and the request carries no key."""
    BODY = "body"
    """The request body cannot be sent a second time."""
    NOT_OWNER = "not_owner"
    """A layer above says that it retries: hedges of every layer would multiply as retries do."""
    SAMPLES = "samples"
    """How long attempts take is not known yet: counted once for each attempt that could have been hedged."""
    DEADLINE = "deadline"
    """A typical attempt and the reserve do not fit into what is left."""
    CIRCUIT_OPEN = "circuit_open"
    """The circuit is not closed, or traffic comes back by degrees: its few places are not for second attempts."""
    THROTTLED = "throttled"
    """The throttle refused it."""
    BULKHEAD_FULL = "bulkhead_full"
    """As many attempts were under way as the bulkhead allows."""
    BUDGET = "budget"
    """The budget of retries and hedges is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgePolicy:
    """When an attempt that is not answered gets company.

    Attributes:
        quantile: of the times until the response head; an attempt that has taken longer is hedged. 0.95 hedges at most one
            attempt in twenty.
        delay: seconds, instead of the quantile; None: measured.
        minimum: seconds; no measured delay is shorter: below it a hedge costs more than it saves.
        minimum_samples: attempts that must have been answered before a measured delay acts. None: twice as many as the
            quantile needs, 40 for 0.95.
        hedges: most hedges of one call, each as long after the one before.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    quantile: float = 0.95
    delay: float | None = None
    minimum: float = 0.002
    minimum_samples: int | None = None
    hedges: int = 1

    def __post_init__(self) -> None:
        require_number("HedgePolicy.quantile", self.quantile, low=0.5, high=0.9999)
        if self.delay is not None:
            require_number("HedgePolicy.delay", self.delay, low=0.0001, high=3600)
        require_number("HedgePolicy.minimum", self.minimum, low=0, high=3600)
        require_integer("HedgePolicy.hedges", self.hedges, low=1, high=MOST_HEDGES)
        if self.minimum_samples is None:
            return
        require_integer("HedgePolicy.minimum_samples", self.minimum_samples, low=1, high=1_000_000)
        needed = samples_for(self.quantile)
        if self.minimum_samples < needed:
            raise ValueError(
                f"HedgePolicy.minimum_samples={self.minimum_samples!r} is not allowed: of the quantile {self.quantile:g} fewer "
                f"than {needed} samples say nothing. Wait for more samples, or take a lower quantile"
            )

    @property
    def samples(self) -> int:
        """The samples that it waits for."""
        return 2 * samples_for(self.quantile) if self.minimum_samples is None else self.minimum_samples


class Hedging:
    """The policy of one dependency, and what came of it.

    Args:
        policy: when to hedge.
        horizon: seconds; the timeout of an attempt, inf: none.

    Attributes:
        policy: the same.
        made, won: hedges, and those of them whose answer was delivered.
        refused: hedges that were not made.
    """

    def __init__(self, policy: HedgePolicy, horizon: float) -> None:
        self.policy = policy
        self.made = 0
        self.won = 0
        self.refused: dict[HedgeRefusal, int] = {}
        self._horizon = horizon

    def model(self) -> LatencyModel | None:
        """Return a new model of the times until the head; None: it is not asked."""
        policy = self.policy
        return LatencyModel(self._horizon, policy.samples) if policy.delay is None else None

    def delay(self, heads: LatencyModel | None, now: float) -> float | None:
        """Return the seconds after which an attempt is hedged; None while that is unknown."""
        policy = self.policy
        if heads is None:
            return policy.delay
        if heads.samples(now) < policy.samples:
            return None
        value = heads.quantile(now, policy.quantile)
        return None if value is None else max(policy.minimum, value)

    def refuse(self, refusal: HedgeRefusal) -> None:
        """Count a hedge that was not made."""
        self.refused[refusal] = self.refused.get(refusal, 0) + 1
