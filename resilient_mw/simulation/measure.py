"""What a run is judged by: counts, instants and latencies, by kind of traffic and in all.

Latency counts from the instant of sending, whoever kept the request waiting.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from resilient_mw.core.rejection import Reason


@dataclass(slots=True)
class Figures:
    """The figures of one kind of traffic.

    `offered` = `in_time` + `late` + refused + `expired` + `left`, once everything has come to an end.

    Attributes:
        sent_at: the instants of the requests, those of callers who came back included.
        admitted: requests whose work was let in.
        finished_at, latency: of the requests that were answered while the answer was worth something.
        late: requests that were served when the answer was worth nothing any more.
        refused_at: the instants of the refusals.
        reasons: refusals by reason.
        expired: requests that were cut off at their deadline while the application worked on them.
        left: requests whose callers hung up before an answer.
        waited: seconds between arrival and start of the work, for each start.
        dead_starts: pieces of work that began when nobody could use the answer any more.
        overran: pieces of work that went on after they had been cancelled.
    """

    sent_at: array[float] = field(default_factory=lambda: array("d"), repr=False)
    admitted: int = 0
    finished_at: array[float] = field(default_factory=lambda: array("d"), repr=False)
    latency: array[float] = field(default_factory=lambda: array("d"), repr=False)
    late: int = 0
    refused_at: array[float] = field(default_factory=lambda: array("d"), repr=False)
    reasons: Counter[Reason] = field(default_factory=Counter)
    expired: int = 0
    left: int = 0
    waited: array[float] = field(default_factory=lambda: array("d"), repr=False)
    dead_starts: int = 0
    overran: int = 0

    @property
    def offered(self) -> int:
        """Requests that were sent."""
        return len(self.sent_at)

    @property
    def in_time(self) -> int:
        """Requests that were answered while the answer was worth something."""
        return len(self.finished_at)

    @property
    def refused(self) -> int:
        """Refusals, whatever the reason."""
        return len(self.refused_at)

    def goodput(self, since: float, until: float) -> float:
        """Return answers in time per second, of those given in `[since, until)`."""
        return _within(self.finished_at, since, until) / (until - since)

    def offered_rate(self, since: float, until: float) -> float:
        """Return requests per second, of those sent in `[since, until)`."""
        return _within(self.sent_at, since, until) / (until - since)

    def refusal_share(self, since: float, until: float) -> float:
        """Return refusals in `[since, until)` as a part of the requests sent then; 0 if there were none."""
        offered = _within(self.sent_at, since, until)
        return _within(self.refused_at, since, until) / offered if offered else 0.0

    def percentile(self, part: float, since: float = 0.0, until: float = math.inf) -> float:
        """Return a percentile of the latency of answers in time given in `[since, until)`; NaN if there were none.

        Args:
            part: 0.5 for the median, 0.99 for p99.
            since: instant.
            until: instant.
        """
        low, high = bisect_left(self.finished_at, since), bisect_left(self.finished_at, until)
        return percentile(self.latency[low:high], part)


@dataclass(slots=True)
class Levels:
    """What was held at regular instants.

    Attributes:
        at: the instants.
        waiting: requests in the wait queue.
        in_use: slots in use; without admission, requests that were let in.
        backlog: pieces of work in the plant's own queue.
        waiting_of, in_use_of: the same by class.
    """

    at: array[float] = field(default_factory=lambda: array("d"), repr=False)
    waiting: array[int] = field(default_factory=lambda: array("l"), repr=False)
    in_use: array[int] = field(default_factory=lambda: array("l"), repr=False)
    backlog: array[int] = field(default_factory=lambda: array("l"), repr=False)
    waiting_of: dict[str, array[int]] = field(default_factory=dict, repr=False)
    in_use_of: dict[str, array[int]] = field(default_factory=dict, repr=False)

    def between(self, values: array[int], since: float, until: float) -> array[int]:
        """Return the part of one of the series that lies in `[since, until)`."""
        return values[bisect_left(self.at, since) : bisect_left(self.at, until)]


@dataclass(slots=True)
class Measures:
    """The result of a run.

    Attributes:
        seconds: how long requests were sent.
        ended_at: the instant at which the last piece of work had stopped.
        traffic: figures by kind of traffic.
        classes: the class of each kind of traffic.
        levels: what was held over time.
        most_waiting: most requests that waited at once.
        most_running: most requests that were let in at once, exempt ones included.
    """

    seconds: float
    classes: Mapping[str, str]
    traffic: Mapping[str, Figures]
    levels: Levels = field(default_factory=Levels)
    ended_at: float = 0.0
    most_waiting: int = 0
    most_running: int = 0

    def __getitem__(self, name: str) -> Figures:
        """Return the figures of one kind of traffic."""
        return self.traffic[name]

    @property
    def total(self) -> Figures:
        """The figures of all traffic together."""
        return _sum(self.traffic.values())

    def of_class(self, priority: str) -> Figures:
        """Return the figures of all traffic of one class."""
        return _sum(figures for name, figures in self.traffic.items() if self.classes[name] == priority)


def percentile(values: Iterable[float], part: float) -> float:
    """Return the smallest value that at least `part` of the values do not exceed (nearest rank); NaN of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def _within(instants: array[float], since: float, until: float) -> int:
    return bisect_left(instants, until) - bisect_left(instants, since)


def _sum(parts: Iterable[Figures]) -> Figures:
    figures = Figures()
    finished: list[tuple[float, float]] = []
    for part in parts:
        figures.sent_at += part.sent_at
        figures.admitted += part.admitted
        finished += zip(part.finished_at, part.latency, strict=True)
        figures.late += part.late
        figures.refused_at += part.refused_at
        figures.reasons += part.reasons
        figures.expired += part.expired
        figures.left += part.left
        figures.waited += part.waited
        figures.dead_starts += part.dead_starts
        figures.overran += part.overran
    figures.sent_at = array("d", sorted(figures.sent_at))
    figures.refused_at = array("d", sorted(figures.refused_at))
    finished.sort()
    figures.finished_at = array("d", (at for at, _ in finished))
    figures.latency = array("d", (latency for _, latency in finished))
    return figures
