"""What became of every request and of every circuit, and the figures made of it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

Outcome = Literal["served", "refused", "failed", "gave_up"]
OUTCOMES: tuple[Outcome, ...] = ("served", "refused", "failed", "gave_up")


class Record(NamedTuple):
    """One request of the load.

    Attributes:
        kind: the load that it belongs to.
        due: seconds after the first request at which it had to be sent.
        late: seconds by which the load generator missed that.
        latency: seconds from due to the end of the answer, or to when the user gave up.
        status: 0 without an answer.
        retry_after: the answer's `Retry-After`, None without.
        reason: the answer's `X-Refusal-Reason`, None without.
        gave_up: whether the user closed the connection first.
    """

    kind: str
    due: float
    late: float
    latency: float
    status: int
    retry_after: str | None
    reason: str | None
    gave_up: bool

    @property
    def outcome(self) -> Outcome:
        """Served (2xx), refused (503), gave up, or failed: any other answer, and a broken connection."""
        if self.gave_up:
            return "gave_up"
        if 200 <= self.status < 300:
            return "served"
        return "refused" if self.status == 503 else "failed"

    @property
    def explained(self) -> bool:
        """Whether the answer says why, and after how many whole seconds to come back."""
        return bool(self.reason) and self.retry_after is not None and self.retry_after.isdecimal()


class Change(NamedTuple):
    """One change of a circuit breaker's state.

    Attributes:
        at: seconds after the first request was due.
        before, after: the states, for a reader.
    """

    at: float
    before: str
    after: str


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the nearest-rank percentile (`share` from 0 to 1), None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def load_figures(kind: str, records: Iterable[Record], phase: str = "") -> dict[str, float | None]:
    """Return the figures of one load, each named `<kind>_...`, or `<kind>_<phase>_...` for those of a phase.

    `_p50`, `_p95` and `_p99` are over all requests: one that was given up counts with the time its user waited. `_share` is the
    part of those that were sent.
    """
    mine = [record for record in records if record.kind == kind]
    by_outcome = {outcome: [r.latency for r in mine if r.outcome == outcome] for outcome in OUTCOMES}
    served, refused = by_outcome["served"], by_outcome["refused"]
    explained = sum(record.explained for record in mine if record.outcome == "refused")
    figures: dict[str, float | None] = {
        "sent": len(mine),
        **{outcome: len(latencies) for outcome, latencies in by_outcome.items()},
        "lost": len(mine) - len(served),
        "neither": len(mine) - len(served) - len(refused),
        "explained": explained,
        "unexplained": len(refused) - explained,
        "served_share": len(served) / len(mine) if mine else None,
        "refused_share": len(refused) / len(mine) if mine else None,
        "p50": percentile((record.latency for record in mine), 0.50),
        "p95": percentile((record.latency for record in mine), 0.95),
        "p99": percentile((record.latency for record in mine), 0.99),
        "served_p50": percentile(served, 0.50),
        "served_p99": percentile(served, 0.99),
        "refused_p50": percentile(refused, 0.50),
        "refused_p99": percentile(refused, 0.99),
        "late_p99": percentile((record.late for record in mine), 0.99),
    }
    prefix = f"{kind}_{phase}_" if phase else f"{kind}_"
    return {prefix + name: value for name, value in figures.items()}


def per_second(instants: Iterable[float], seconds: int) -> list[int]:
    """Count instants by whole second from 0; what lies outside of `seconds` is left out."""
    counts = [0] * seconds
    for instant in instants:
        if 0 <= instant < seconds:
            counts[int(instant)] += 1
    return counts
