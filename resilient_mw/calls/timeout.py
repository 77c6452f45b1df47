"""Timeouts from measurement: an attempt may take what nearly all attempts take, times a factor, and not the fixed bound.

    timeout of an attempt = min(remaining - reserve, fixed timeout, max(floor, quantile x factor))

The accepted share of false timeouts chooses the quantile: 0.001 means p99.9. A false timeout cuts off an attempt that
would have ended within the fixed timeout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_mw.calls.latency import REFRESH, LatencyModel, samples_for
from resilient_mw.core.checks import require_integer, require_number


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPolicy:
    """How the timeout of an attempt follows from the attempts before it.

    By default it is 1.5 times the time that one attempt in 1,000 exceeds, at least 0.05 s, and the dependency's fixed
    timeout until 2,000 attempts have ended.

    Attributes:
        false_timeouts: the accepted share of attempts that are cut off although they would have ended within the cap;
            0.001 looks at the quantile p99.9.
        factor: times this quantile. 1 accepts the whole share in a calm hour; more leaves room for change.
        floor: seconds; never less. One lost packet costs a good 0.2 s on most systems: a smaller floor takes it for a
            timeout.
        cap: seconds; never more, and what counts while nothing is known. None: the timeout of the dependency.
        minimum_samples: attempts that must have ended before it acts. None: twice as many as the quantile needs, 2,000
            for a share of 0.001.

    Raises:
        ValueError: naming the field, the value and the allowed range; also for fewer samples than the quantile needs.
    """

    false_timeouts: float = 0.001
    factor: float = 1.5
    floor: float = 0.05
    cap: float | None = None
    minimum_samples: int | None = None

    def __post_init__(self) -> None:
        require_number("TimeoutPolicy.false_timeouts", self.false_timeouts, low=0.0001, high=0.5)
        require_number("TimeoutPolicy.factor", self.factor, low=1, high=100)
        require_number("TimeoutPolicy.floor", self.floor, low=0.001, high=3600)
        if self.cap is not None:
            require_number("TimeoutPolicy.cap", self.cap, low=self.floor, high=86_400)
        if self.minimum_samples is None:
            return
        require_integer("TimeoutPolicy.minimum_samples", self.minimum_samples, low=1, high=1_000_000)
        needed = samples_for(self.quantile)
        if self.minimum_samples < needed:
            raise ValueError(
                f"TimeoutPolicy.minimum_samples={self.minimum_samples!r} is not allowed: a share of "
                f"{self.false_timeouts:g} false timeouts is the quantile p{self.quantile * 100:g}, of which fewer than "
                f"{needed} samples say nothing. Accept more false timeouts, or wait for more samples"
            )

    @property
    def quantile(self) -> float:
        """The quantile that the timeout is derived from."""
        return 1.0 - self.false_timeouts

    @property
    def samples(self) -> int:
        """The samples that it waits for."""
        return 2 * samples_for(self.quantile) if self.minimum_samples is None else self.minimum_samples


class AdaptiveTimeout:
    """The timeout of one dependency or route group. Pure and not thread-safe, like its model.

    Args:
        policy: share, factor and bounds.
        fixed: seconds; the timeout of the dependency, inf: none.
        model: the attempt times, if somebody has them already.

    Attributes:
        cap: seconds; the timeout where nothing is known.
        model: the attempt times; its horizon is the cap.
    """

    __slots__ = ("_policy", "_q", "_samples", "_until", "_value", "cap", "model")

    def __init__(self, policy: TimeoutPolicy, fixed: float, model: LatencyModel | None = None) -> None:
        self.cap = fixed if policy.cap is None else min(policy.cap, fixed)
        self.model = LatencyModel(self.cap, policy.samples) if model is None else model
        self._policy = policy
        self._q = policy.quantile
        self._samples = policy.samples
        self._until = -math.inf
        self._value = self.cap

    def seconds(self, now: float) -> float:
        """Return the seconds that an attempt may take, whatever the caller's budget is."""
        if now >= self._until:
            self._until = now + REFRESH
            self._value = self._compute(now)
        return self._value

    def told(self, now: float, seconds: float, *, failed: bool | None, cut: bool) -> None:
        """Take the end of an attempt.

        Args:
            now: the instant.
            seconds: how long it took.
            failed: whether it speaks against the dependency; a failure may be as fast as it likes, and only what
                speaks for it is learnt from. None: it says nothing.
            cut: whether it was cut off.
        """
        if cut:
            self.model.censored(now, seconds)
        elif failed is False:
            self.model.add(now, seconds)

    def _compute(self, now: float) -> float:
        model, policy = self.model, self._policy
        if model.samples(now) < self._samples:
            return self.cap
        value = model.quantile(now, self._q)
        return self.cap if value is None else min(self.cap, max(policy.floor, value * policy.factor))
