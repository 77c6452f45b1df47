"""Adaptive concurrency: how many attempts at a dependency at once are worth having, found out by trying.

The question is whether a little less concurrency makes a dependency faster by as much. In turns it is given the limit and
three quarters of it, and the elasticity of its latency is measured: e = ln(R_hi / R_lo) / ln(hi / lo). Near 1 all that the
higher limit buys is a longer queue over there (Little's law); near 0 the higher one is used. Above the target the limit
shrinks, below it grows.

Both latencies are measured within seconds of each other and are forgotten afterwards. There is no baseline, so none can
drift with an overload (Gradient2), be the luckiest sample of the day (Vegas), or have been learnt while overloaded; and a
dependency that becomes slow without a queue is not taken for a full one. Latencies are averaged as square roots, so one slow
route in twenty does not decide; logarithms would make too much of the fast ones, which feel a short queue most.

It is tried only while the limit binds. Limits that bind nobody teach nothing and stay. A share of refusals and timeouts cuts
the limit at once, as no latency can tell of them.

Pure and not thread-safe: the owner of the dependency locks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_mw.core.checks import require_integer

LOWER = 0.75
"""The share of the limit that is tried in between."""
TARGET = 0.85
"""The elasticity at which the limit stays: with a sharp knee, at some 1.3 times the concurrency of the knee."""
GAIN = 0.2
"""By how much the limit follows a difference of the elasticity; a half turn moves it by at most 10 %."""
MEMORY = 0.15
"""The weight of the newest elasticity. Latencies of one place differ, and one pair of means says little."""
MOST_STEP = 0.1
SAMPLES = 100
"""Latencies of one turn, at least."""
PER_SLOT = 3
"""Latencies of one turn for each attempt of the limit. With fewer, those that happen to be fast would be most of them."""
BINDING = 0.25
"""The share of attempts that find the limit reached, above which it binds."""
LOSSES = 0.1
"""The share of refusals and timeouts at which the limit is cut."""
CUT = 0.8
"""To which part."""
SMALLEST = 1e-6
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePolicy:
    """Where an adaptive limit begins, and how far it may fall, in attempts at once. The bulkhead is what it never exceeds.

    By default it begins at 20 and stays at 4 or more: the bulkhead must be at least that.

    Attributes:
        initial: the limit at the start.
        floor: the smallest limit; also what a dependency gets that seems not to be worth any.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    initial: int = 20
    floor: int = 4

    def __post_init__(self) -> None:
        require_integer("AdaptivePolicy.floor", self.floor, low=2)
        require_integer("AdaptivePolicy.initial", self.initial, low=self.floor)


class AdaptiveLimit:
    """Finds the limit of one dependency. See the module.

    Args:
        policy: start and floor.
        cap: the most that it may become.

    Attributes:
        limit: attempts that may be under way in this instant.
        cuts: times that losses have cut it.
        turns: elasticities that were measured.
    """

    __slots__ = (
        "_before",
        "_began",
        "_bound",
        "_cap",
        "_elasticity",
        "_floor",
        "_found",
        "_high",
        "_losses",
        "_lower",
        "_roots",
        "_seen",
        "_settled_at",
        "cuts",
        "limit",
        "turns",
    )

    def __init__(self, policy: AdaptivePolicy, cap: int) -> None:
        self._cap = cap
        self._floor = min(policy.floor, cap)
        self._high = float(min(policy.initial, cap))
        self._lower = False
        self._settled_at = -math.inf
        self._before: tuple[float, int] | None = None
        self._elasticity = TARGET
        self.cuts = 0
        self.turns = 0
        self.limit = int(self._high)
        self._restart()

    @property
    def target(self) -> int:
        """The limit, without the lower one that is tried in between."""
        return int(self._high)

    def begun(self, in_use: int) -> None:
        """Take note of an attempt that begins, or finds no room.

        Args:
            in_use: attempts under way then, without it.
        """
        self._began += 1
        if in_use + 1 >= self.limit:
            self._bound += 1

    def ended(self, now: float, began_at: float, *, lost: bool | None) -> None:
        """Take one outcome.

        Args:
            now: the instant.
            began_at: when the attempt began.
            lost: whether it was refused for load or timed out; None if it says nothing of the dependency.
        """
        if lost is None or began_at < self._settled_at:
            return
        self._seen += 1
        if lost:
            # A refusal took no work and a timeout is cut off: neither says how long one takes.
            self._losses += 1
        else:
            self._roots += math.sqrt(max(now - began_at, SMALLEST))
            self._found += 1
        if self._seen >= max(SAMPLES, PER_SLOT * int(self._high)):
            self._turn(now)

    def _turn(self, now: float) -> None:
        binds = self._bound >= BINDING * self._began
        typical = 2.0 * math.log(self._roots / self._found) if self._found else None
        if self._losses >= LOSSES * self._seen:
            self._cut()
        elif typical is None or not binds:
            self._before = None
            self._lower = False
        else:
            if self._before is not None:
                self._follow(typical, *self._before)
            self._before = (typical, self.limit)
            self._lower = not self._lower
        self._settled_at = now + (0.0 if typical is None else math.exp(typical))
        self._restart()
        self.limit = max(2, int(self._high * LOWER)) if self._lower else int(self._high)

    def _follow(self, typical: float, before: float, limit: int) -> None:
        if limit == self.limit:
            return
        found = (typical - before) / math.log(self.limit / limit)
        self.turns += 1
        self._elasticity += MEMORY * (min(2.0, max(-1.0, found)) - self._elasticity)
        step = min(MOST_STEP, max(-MOST_STEP, GAIN * (TARGET - self._elasticity)))
        # A small limit moves by less than one at a time; the fraction is kept.
        self._high = self._within(self._high * (1.0 + step))

    def _cut(self) -> None:
        self.cuts += 1
        self._high = self._within(self._high * CUT)
        self._before = None
        self._lower = False

    def _within(self, limit: float) -> float:
        return min(float(self._cap), max(float(self._floor), limit))

    def _restart(self) -> None:
        self._began = self._bound = self._seen = self._found = self._losses = 0
        self._roots = 0.0
