"""Snapshots: the figures of one instant as plain values, read by exporters."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resilient_mw.core.tenant_figures import QuotaSnapshot, TenantSnapshot

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the time histograms, in seconds."""


class Histogram:
    """Counts of durations by bucket, as plain integers that an exporter reads at scrape time."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def add_all(self, durations: Sequence[float]) -> None:
        """Count durations."""
        counts, ordered, before = self.counts, sorted(durations), 0
        while before < len(ordered):
            bucket = bisect_left(BUCKETS, ordered[before])
            upto = bisect_right(ordered, BUCKETS[bucket]) if bucket < len(BUCKETS) else len(ordered)
            counts[bucket] += upto - before
            before = upto
        self.total += sum(durations)

    def merge(self, other: Histogram) -> None:
        """Add another histogram's counts to this one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


@dataclass(frozen=True, slots=True)
class RouteSnapshot:
    """The figures of one route template in one class since the start. All counts only grow.

    `arrived` = `admitted` + refused + `left` + those that wait right now.

    Attributes:
        route: the route template, `unmatched` for paths that no route of the application serves.
        priority: the class name, or `exempt`.
        arrived: requests that reached the decision.
        admitted: requests that were let in.
        left: callers who disconnected while they waited.
        refused: refused requests by reason.
        outcomes: ended runs by outcome: `completed`, `error`, or a cancel reason.
        late: runs that went on for more than 250 ms after they were cancelled.
        wait: how long the admitted ones that had to queue waited.
        run: how long completed runs took, from admission to the end of the work.
    """

    route: str
    priority: str
    arrived: int
    admitted: int
    left: int
    refused: Mapping[str, int]
    outcomes: Mapping[str, int]
    late: int
    wait: Histogram
    run: Histogram


@dataclass(frozen=True, slots=True)
class ClassSnapshot:
    """What one class holds right now.

    Attributes:
        priority: the class name, or `exempt`.
        slots: slots in use (for `exempt`: requests).
        queued: requests that wait.
    """

    priority: str
    slots: int
    queued: int


@dataclass(frozen=True, slots=True)
class WebsocketSnapshot:
    """The websockets of one application.

    Attributes:
        limit: most that are open at once, without the exempt ones.
        opened: those that are open right now, by class.
        routes: one entry per route template and class that was asked for. `arrived` = `admitted` + refused, and what is
            admitted and has no outcome yet is open. Nobody waits, and how long they were open is not measured: `wait` and
            `run` are empty.
    """

    limit: int
    opened: Mapping[str, int]
    routes: tuple[RouteSnapshot, ...]


@dataclass(frozen=True, slots=True)
class StreamRouteSnapshot:
    """The streams of one route template in one class.

    Attributes:
        route: the route template.
        priority: the class name.
        opened: those that are open right now: their head has been sent, and their slot was given back.
        ended: those that have ended since the start, by outcome: `completed`, `error`, or a cancel reason. How long they
            lasted is not measured.
    """

    route: str
    priority: str
    opened: int
    ended: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The streams of one application: requests that have given their slot back with the head of their response.

    Attributes:
        limit: most that are open at once.
        routes: one entry per route template and class that has had any.
    """

    limit: int
    routes: tuple[StreamRouteSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of a state.

    Attributes:
        at: the instant, in monotonic seconds.
        before, after: of a circuit breaker `closed`, `open` or `half_open`; of an overload level `normal`, `elevated` or
            `overloaded`.
    """

    at: float
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class OverloadSnapshot:
    """How overloaded one application is.

    Attributes:
        level: 0 to 1.
        state: `normal`, `elevated` or `overloaded`.
        signals: the levels of the signals that are known, the worst first.
        transitions: changes of the state, by (before, after).
        recent_transitions: the last 32 of them, oldest first.
    """

    level: float
    state: str
    signals: Mapping[str, float]
    transitions: Mapping[tuple[str, str], int]
    recent_transitions: tuple[Transition, ...]


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a load balancer should send requests, and what there is to know about it.

    Attributes:
        ready: yes or no.
        reasons: why not: `draining`, `starting`, `blocked` (an event loop is behind), `overloaded`; empty while it is ready.
        level: the overload level, 0 to 1.
        state: the overload state: `normal`, `elevated` or `overloaded`.
        signal: the worst signal; None if there is none to speak of.
    """

    ready: bool
    reasons: tuple[str, ...]
    level: float
    state: str
    signal: str | None


@dataclass(frozen=True, slots=True)
class ShadowRoute:
    """What defences in shadow mode would have done to the requests of one route template in one class. Counts only grow.

    Attributes:
        route, priority: as in `RouteSnapshot`.
        refused: requests that would have been refused, by reason.
        queued: requests that would have had to wait; some of them are in `refused` as well, for what came of the wait.
        cancelled: runs that would have been cancelled at their deadline.
        wait: how long those that would have got a slot would have waited for it.
    """

    route: str
    priority: str
    refused: Mapping[str, int]
    queued: int
    cancelled: int
    wait: Histogram


@dataclass(frozen=True, slots=True)
class ShadowSnapshot:
    """What is in shadow mode, and what that would have done.

    Attributes:
        defences: `admission`, `deadlines`, `quotas`; sorted.
        outside: requests that run without a slot right now, because they would wait or would have been refused.
        routes: one entry per route template and class to which something would have been done.
    """

    defences: tuple[str, ...]
    outside: int
    routes: tuple[ShadowRoute, ...]


@dataclass(frozen=True, slots=True)
class AppSnapshot:
    """The figures of one protected application.

    Attributes:
        app: the policy's name.
        limit: slots that exist.
        queue: places in the wait queue.
        draining: whether the server is about to stop: new requests are refused, or will be after the delay.
        drain_rate: slots released per second while somebody waits; None while unknown.
        classes: one entry per class, highest rank first, `exempt` last.
        routes: one entry per route template and class.
        ignored_headers: header values outside the grammar, by lower-case field name.
        guard_errors: errors of our own code that let a request pass unguarded.
        overload: how overloaded it is; None: nothing is measured.
        websockets: those that are open; None: they pass untouched.
        streams: those that are open.
        shadow: what is in shadow mode; None: nothing.
        tenants: by the tenants that the policy names, and `other`; empty if it names none.
        quotas: those of tenants; None: there are none.
    """

    app: str
    limit: int
    queue: int
    draining: bool
    drain_rate: float | None
    classes: tuple[ClassSnapshot, ...]
    routes: tuple[RouteSnapshot, ...]
    ignored_headers: Mapping[str, int]
    guard_errors: int
    overload: OverloadSnapshot | None = None
    websockets: WebsocketSnapshot | None = None
    streams: StreamSnapshot | None = None
    shadow: ShadowSnapshot | None = None
    tenants: Mapping[str, TenantSnapshot] = field(default_factory=dict)
    quotas: QuotaSnapshot | None = None
