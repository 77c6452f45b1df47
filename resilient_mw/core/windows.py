"""Small estimators that forget: a running median and a rate of events.

Both take the time or the sample as an argument, keep a handful of floats and cost well under a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

MEDIAN_SAMPLES = 10
"""Samples before a median is believed."""
SMALLEST_STEP = 1.0 + 0.5 / MEDIAN_SAMPLES
"""The factor by which a sample moves an estimate that is believed."""
SMALLEST_SAMPLE = 1e-6
"""Seconds: an estimate of nothing could not be moved by a factor."""


class RunningMedian:
    """The median of recent positive samples, by stochastic approximation in the logarithm.

    Each sample moves the estimate by a factor: up if it is larger, down if smaller, in steps that start at one half
    and shrink to 5 %. It follows a change from 50 ms to 3 s within some 90 samples, and one outlier moves it by one
    step only (Robbins and Monro, 1951, for the quantile 0.5).
    """

    __slots__ = ("_estimate", "_samples")

    def __init__(self) -> None:
        self._estimate = 0.0
        self._samples = 0

    def add(self, sample: float) -> None:
        """Take one sample, in seconds."""
        self.add_all((sample,))

    def add_all(self, samples: Sequence[float]) -> None:
        """Take samples in seconds, in the order in which they came."""
        if self._samples < MEDIAN_SAMPLES or min(samples, default=1.0) < SMALLEST_SAMPLE:
            self._begin(samples)
            return
        # Every run of a service comes by here: comparisons, where calls of min() and max() would cost three times as much.
        estimate, step = self._estimate, SMALLEST_STEP
        for sample in samples:
            if sample > estimate:
                estimate *= step
                if estimate > sample:  # noqa: PLR1730
                    estimate = sample
            elif sample < estimate:
                estimate /= step
                if estimate < sample:  # noqa: PLR1730
                    estimate = sample
        self._estimate = estimate

    def _begin(self, samples: Sequence[float]) -> None:
        """Take the first samples, and any that are too small."""
        estimate, seen = self._estimate, self._samples
        for each in samples:
            sample = max(each, SMALLEST_SAMPLE)
            seen += 1
            if seen == 1:
                estimate = sample
                continue
            step = 1.0 + 0.5 / min(seen, MEDIAN_SAMPLES)
            if sample > estimate:
                estimate = min(estimate * step, sample)
            elif sample < estimate:
                estimate = max(estimate / step, sample)
        self._estimate, self._samples = estimate, min(seen, MEDIAN_SAMPLES)

    @property
    def value(self) -> float | None:
        """The median in seconds; None before ten samples."""
        return self._estimate if self._samples >= MEDIAN_SAMPLES else None


class DrainRate:
    """How fast a backlog is worked off: units released per second while somebody waits.

    Elapsed time and released units both decay by 1/32 per release, so the rate speaks of the last 32 releases or so.
    A standstill lowers it because the time since the last release counts as soon as the next one is overdue: counting
    it earlier would make a steady stream look slower between two releases than it is.
    """

    __slots__ = ("_last", "_seconds", "_units")

    KEEP = 1.0 - 1.0 / 32

    def __init__(self) -> None:
        self._last = 0.0
        self._seconds = 0.0
        self._units = 0.0

    def began(self, now: float) -> None:
        """Note that a backlog begins."""
        self._last = now

    def ended(self, now: float) -> None:
        """Note that the backlog is gone, by releases or because those who waited gave up."""
        self._seconds += max(0.0, now - self._last)
        self._last = now

    def released(self, now: float, units: int) -> None:
        """Note that `units` were released while a backlog existed."""
        self._seconds = self._seconds * self.KEEP + max(0.0, now - self._last)
        self._units = self._units * self.KEEP + units
        self._last = now

    def rate(self, now: float, *, standing: bool) -> float | None:
        """Return units per second; None before the first release of any backlog.

        Args:
            now: the instant.
            standing: whether a backlog exists right now, so that the time since the last release counts.
        """
        if not self._units:
            return None
        overdue = now - self._last - self._seconds / self._units if standing else 0.0
        seconds = self._seconds + max(0.0, overdue)
        return self._units / seconds if seconds else None
