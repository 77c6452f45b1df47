"""How long the attempts at one dependency or route group take: quantiles up to p99.9, also where many were cut off.

A time falls into a bucket. Eight buckets double it, so a quantile, which is the upper edge of a bucket, is at most 9.1 %
above the true one and never below it. Two panes of counts follow change: a pane is closed when it is `PANE` seconds old
and holds enough times, at the latest at `LONGEST` seconds, and what is older than the pane before it is forgotten. So a
dependency that became faster is followed within two panes, and one that became slower as soon as the slow share of what
they hold passes `1 - q`.

An attempt that was cut off at `t` (by a timeout, the caller's budget, a cancellation, as the loser of a hedge) would have
taken longer, and no more is known. It does not count as one that took `t`: its weight goes to those that were watched
for longer (the product-limit estimate; Kaplan and Meier, "Nonparametric Estimation from Incomplete Observations", 1958).
Otherwise a timeout that cuts the tail off would learn from what it left, and lower itself.

An attempt that was not over at the horizon (the fixed timeout) hangs, as far as its caller can tell: no timeout would
have saved it. The quantiles are those of the attempts that end within the horizon. What those that were cut off before
would have done is judged by those that were watched to the horizon: `m` of them that all hung say that one in `m + 1` of
the others might have ended after all (the rule of succession). Where that is more than the share `1 - q`, there is no
quantile, and whoever asks has to wait for the horizon, which is how more is seen.

Pure and not thread-safe: the owner of the dependency locks. A time costs one addition; a quantile is computed anew every
`REFRESH` seconds at most. Some 3 KB each.
"""

from __future__ import annotations

import math
from array import array

SMALLEST = 1e-4
"""Seconds: the upper edge of the first bucket."""
PER_DOUBLING = 8
BUCKETS = 21 * PER_DOUBLING
"""The last one begins at about 190 s and holds everything longer."""
EDGES: tuple[float, ...] = (
    *(SMALLEST * 2.0 ** (index / PER_DOUBLING) for index in range(BUCKETS - 1)),
    math.inf,
)
"""The upper edge of each bucket, in seconds."""

NOTHING = bytes(BUCKETS * array("I").itemsize)

PANE = 30.0
"""Seconds that a pane lasts at least."""
LONGEST = 300.0
"""Seconds that it lasts at most, however little it holds."""
REFRESH = 0.25
"""Seconds for which a computed quantile is believed."""
MOST_KEPT = 4
"""Quantiles that are kept from one computation to the next."""


def bucket_of(seconds: float) -> int:
    """Return the index of the bucket that a time falls into."""
    if seconds <= SMALLEST:
        return 0
    return min(BUCKETS - 1, math.ceil(math.log2(seconds / SMALLEST) * PER_DOUBLING - 1e-9))


def samples_for(quantile: float) -> int:
    """Return the fewest times of which a quantile can be told: one of them must lie beyond it."""
    return math.ceil(1.0 / (1.0 - quantile) - 1e-6)


class _Pane:
    """Counts by bucket."""

    __slots__ = ("began", "cut", "ended", "hung", "seen")

    def __init__(self, now: float) -> None:
        self.began = now
        self.ended = array("I", NOTHING)
        self.cut = array("I", NOTHING)
        self.hung = 0
        self.seen = 0


class LatencyModel:
    """The distribution of the attempt times of one dependency or route group. See the module.

    Args:
        horizon: seconds after which an attempt that is not over hangs; inf: never.
        pane_samples: times that ended within it which a pane should hold before it is closed.
    """

    __slots__ = ("_before", "_horizon", "_kept", "_now", "_pane_samples")

    def __init__(self, horizon: float = math.inf, pane_samples: int = 1000) -> None:
        self._horizon = horizon * 0.999  # A timer may fire a little early.
        self._pane_samples = pane_samples
        self._now = self._before = _Pane(-math.inf)  # The first time closes it.
        self._kept: dict[float, tuple[float, float | None]] = {}

    def add(self, now: float, seconds: float) -> None:
        """Take the time of an attempt that was over by itself."""
        pane = self._now
        if now - pane.began >= PANE:
            pane = self._turn(now)
        pane.ended[bucket_of(seconds)] += 1
        pane.seen += 1

    def censored(self, now: float, seconds: float) -> None:
        """Take an attempt that was cut off after so many seconds, whoever did it."""
        pane = self._now
        if now - pane.began >= PANE:
            pane = self._turn(now)
        if seconds >= self._horizon:
            pane.hung += 1
        else:
            pane.cut[bucket_of(seconds)] += 1

    def samples(self, now: float) -> int:
        """Return how many attempts that were over by themselves the estimate rests on."""
        return self._turn(now).seen + self._before.seen

    def quantile(self, now: float, q: float) -> float | None:
        """Return the time in seconds within which the share `q` of the attempts is over that end within the horizon.

        Args:
            now: the instant.
            q: above 0 and below 1.

        Returns:
            None if there are too few times to tell (`samples_for`), or if so many attempts were cut off that it may
            lie beyond what could be seen.
        """
        kept = self._kept.get(q)
        if kept is not None and now < kept[0]:
            return kept[1]
        value = self._compute(now, q)
        if kept is None and len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        self._kept[q] = (now + REFRESH, value)
        return value

    def _turn(self, now: float) -> _Pane:
        """Close the pane if it is time to; return the one that counts now."""
        pane = self._now
        age = now - pane.began
        if age < PANE or (pane.seen < self._pane_samples and age < LONGEST):
            return pane
        # After a long silence what the pane holds is as old as the silence.
        self._before = pane if age < 2 * LONGEST else _Pane(now)
        self._now = _Pane(now)
        return self._now

    def _compute(self, now: float, q: float) -> float | None:
        seen = self.samples(now)
        if seen < samples_for(q):
            return None
        new, old = self._now, self._before
        ended = [one + other for one, other in zip(new.ended, old.ended, strict=True)]
        cut = [one + other for one, other in zip(new.cut, old.cut, strict=True)]
        return _quantile(ended, cut, new.hung + old.hung, q)


def _quantile(ended: list[int], cut: list[int], hung: int, q: float) -> float | None:
    """Return the upper edge of the bucket in which the quantile lies; None if that cannot be seen."""
    total = at_risk = sum(ended) + sum(cut) + hung
    left = 1.0  # The share that is not over yet.
    longer: list[float] = []
    for over, off in zip(ended, cut, strict=True):
        if over:
            left *= 1.0 - over / at_risk
        longer.append(left)
        at_risk -= over + off
    # The share that was cut off and, as far as those know that were watched for longer, hangs: it may be wrong for one.
    doubtful = (left - hung / total) / (hung + 1)
    allowed = (1.0 - q) * (1.0 - left + doubtful) * (1.0 + 1e-9)
    if doubtful > allowed:
        return None
    if not hung:
        allowed -= doubtful  # Nobody was watched: all of them may have ended after all.
    for edge, share in zip(EDGES, longer, strict=True):
        if share - left <= allowed:
            return edge
    return None
