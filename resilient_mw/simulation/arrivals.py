"""When requests come: seeded streams of instants, at a rate that may change.

A stream of rate one is stretched by the integral of the rate (time change of a point process; Cinlar 1975), which is
exact for a rate that is linear by sections.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

from resilient_mw.core.checks import require_integer, require_number


class Arrivals(Protocol):
    """A stream of arrivals."""

    def instants(self, random: Random, /) -> Iterator[float]:
        """Yield the instants of the arrivals in order; the stream may never end."""
        ...


class Rate:
    """A rate that changes: linear between the given points, constant after the last one.

    Args:
        points: (instant, rate per second) in order of time, the first at 0. Two points at one instant are a step.

    Raises:
        ValueError: no point, an instant out of order, a negative rate.
    """

    __slots__ = ("points",)

    def __init__(self, *points: tuple[float, float]) -> None:
        if not points or points[0][0] != 0:
            raise ValueError(f"Rate.points={points!r} is not allowed: the first point must be at 0")
        last = 0.0
        for instant, rate in points:
            last = require_number("Rate instant", instant, low=last)
            require_number("Rate", rate, low=0, high=1e6)
        self.points = points

    @classmethod
    def steps(cls, *steps: tuple[float, float]) -> Rate:
        """Return a rate that stays what it is between the given instants."""
        points = list(steps[:1])
        for instant, rate in steps[1:]:
            points += [(instant, points[-1][1]), (instant, rate)]
        return cls(*points)

    def stretch(self, gaps: Iterator[float]) -> Iterator[float]:
        """Yield the instants at which the integral of the rate has grown by one gap after the other."""
        ends = [*self.points[1:], (math.inf, self.points[-1][1])]
        need = next(gaps)
        for (start, rate), (end, end_rate) in zip(self.points, ends, strict=True):
            width = end - start
            area = width * (rate + end_rate) / 2 if rate or end_rate else 0.0
            used = 0.0
            while used + need <= area:
                used += need
                slope = (end_rate - rate) / width
                # The solution of rate * x + slope * x * x / 2 = used, in the form that also holds for slope 0.
                root = math.sqrt(max(0.0, rate * rate + 2 * slope * used))
                yield start + min(2 * used / (rate + root), width)
                need = next(gaps)
            need -= area - used


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent callers.

    Attributes:
        rate: arrivals per second.
    """

    rate: float | Rate

    def instants(self, random: Random, /) -> Iterator[float]:
        """Yield the instants; see `Arrivals`."""
        return _rate(self.rate).stretch(random.expovariate(1.0) for _ in count())


@dataclass(frozen=True, slots=True)
class Even:
    """Evenly spaced arrivals, the first one gap after the start.

    Attributes:
        rate: arrivals per second.
    """

    rate: float | Rate

    def instants(self, _random: Random, /) -> Iterator[float]:
        """Yield the instants; see `Arrivals`."""
        return _rate(self.rate).stretch(1.0 for _ in count())


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Many at once, again and again.

    Attributes:
        size: arrivals in one burst.
        spread: seconds over which a burst is spread.
        every: seconds from one burst to the next.
        first: the instant at which the first one begins.
    """

    size: int
    every: float
    spread: float = 0.0
    first: float = 0.0

    def __post_init__(self) -> None:
        require_integer("Bursts.size", self.size, low=1)
        require_number("Bursts.every", self.every, low=0.001)
        require_number("Bursts.spread", self.spread, high=self.every)
        require_number("Bursts.first", self.first)

    def instants(self, random: Random, /) -> Iterator[float]:
        """Yield the instants; see `Arrivals`."""
        for number in count():
            start = self.first + number * self.every
            yield from sorted(start + random.uniform(0, self.spread) for _ in range(self.size))


@dataclass(frozen=True, slots=True)
class Script:
    """Arrivals at given instants, to replay a record.

    Attributes:
        at: the instants, in order.
    """

    at: tuple[float, ...]

    def __post_init__(self) -> None:
        if list(self.at) != sorted(self.at):
            raise ValueError(f"Script.at={self.at!r} is not allowed: the instants must be in order")

    def instants(self, _random: Random, /) -> Iterator[float]:
        """Yield the instants; see `Arrivals`."""
        return iter(self.at)


def _rate(rate: float | Rate) -> Rate:
    return rate if isinstance(rate, Rate) else Rate((0.0, rate))
