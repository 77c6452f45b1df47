"""How long things take: distributions, sampled with an injected source of randomness."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from resilient_mw.core.checks import require_number


class Duration(Protocol):
    """A distribution of seconds."""

    def draw(self, random: Random, now: float, /) -> float:
        """Return the duration of something that begins now."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same.

    Attributes:
        seconds: the duration.
    """

    seconds: float

    def __post_init__(self) -> None:
        require_number("Constant.seconds", self.seconds)

    def draw(self, _random: Random, _now: float, /) -> float:
        """Return the duration; see `Duration`."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class Exponential:
    """Mostly short, sometimes long, without memory.

    Attributes:
        mean: seconds.
    """

    mean: float

    def __post_init__(self) -> None:
        require_number("Exponential.mean", self.mean, low=1e-9)

    def draw(self, random: Random, _now: float, /) -> float:
        """Return the duration; see `Duration`."""
        return random.expovariate(1.0 / self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bimodal:
    """Two kinds of work on one route, such as a cache hit and a miss.

    Attributes:
        usual, rare: the distributions of the two kinds.
        share: the part of the requests that are of the rare kind.
    """

    usual: Duration
    rare: Duration
    share: float

    def __post_init__(self) -> None:
        require_number("Bimodal.share", self.share, high=1)

    def draw(self, random: Random, now: float, /) -> float:
        """Return the duration; see `Duration`."""
        return (self.rare if random.random() < self.share else self.usual).draw(random, now)


@dataclass(frozen=True, slots=True)
class Changing:
    """A dependency that slows down and recovers.

    Attributes:
        phases: (instant, distribution from then on) in order of time, the first at 0.
    """

    phases: tuple[tuple[float, Duration], ...]

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.phases]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError(
                f"Changing.phases={self.phases!r} is not allowed: they must be in order of time, the first at 0"
            )

    def draw(self, random: Random, now: float, /) -> float:
        """Return the duration; see `Duration`."""
        return next(phase for start, phase in reversed(self.phases) if start <= now).draw(random, now)
