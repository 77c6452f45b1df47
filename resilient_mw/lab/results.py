"""What one run of a step gave: everything that the console, the report and the JSON file show."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from resilient_mw.lab.expectations import Figures, Verdict, show
from resilient_mw.lab.records import Change, Record, load_figures
from resilient_mw.lab.step import Span, Step


@dataclass(frozen=True, slots=True)
class DependencyLog:
    """What one dependency saw.

    Attributes:
        counts: its last counts.
        arrivals: seconds after the first request was due, one for each call it received.
    """

    counts: Mapping[str, Any]
    arrivals: Sequence[float]


@dataclass(frozen=True, slots=True)
class Settled:
    """What was still in hand some time after the last request was due.

    Attributes:
        at: seconds after the first request was due.
        requests: that the application ran or let wait.
        calls: that the dependencies had not answered.
    """

    at: float
    requests: int
    calls: int


@dataclass(frozen=True, slots=True)
class Inside:
    """What the application with the protections knows of itself.

    Attributes:
        changes: of its circuit breakers, by dependency.
        calls: by dependency: `calls` begun, `errors` (attempts that did not end with 2xx), and attempts `refused` on this
            side.
        busy: the most worker threads that were in endpoints at once, as a part of all.
    """

    changes: Mapping[str, Sequence[Change]]
    calls: Mapping[str, Mapping[str, int]]
    busy: float


@dataclass(frozen=True)
class StepResult:
    """One run of a step.

    Attributes:
        length: seconds of load; shorter than the step's own in a quick run.
        records: every request, by due time.
        dependencies: by name.
        inside: what the application knows of itself; None: it has no circuit breaker.
        settled: what was still in hand, if the step looks at that.
        error: why the lab could not run it; then there is nothing else.
    """

    step: Step
    length: float
    records: Sequence[Record] = ()
    dependencies: Mapping[str, DependencyLog] = field(default_factory=dict)
    inside: Inside | None = None
    settled: Settled | None = None
    error: str | None = None

    @property
    def share(self) -> float:
        """The length of this run as a share of the step's own."""
        return self.length / self.step.length

    @property
    def changes(self) -> Mapping[str, Sequence[Change]]:
        """How the application's circuit breakers have changed, by dependency."""
        return {} if self.inside is None else self.inside.changes

    @property
    def last_due(self) -> float:
        """When the last user arrived, in seconds after the first."""
        return max((record.due for record in self.records), default=0.0)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the phases of the step lay in this run."""
        return self.step.timeline(self.length)

    def figures(self) -> Figures:
        """Return every figure by name; times are in seconds.

        They are named `<load>_...`, `<load>_<phase>_...` (by when a request was due; `all_...` for all loads but the
        health checks), `<dependency>_...`, and by what was in hand.
        """
        return self._figures

    @functools.cached_property
    def _figures(self) -> Figures:
        figures: dict[str, float | None] = {}
        for load in self.step.loads:
            figures |= load_figures(load.kind, self.records)
            figures[f"{load.kind}_refused_at_rest"] = self._refused_at_rest(load.kind)
        for span in self.spans:
            due = [record for record in self.records if span.start <= record.due < span.end]
            for load in self.step.loads:
                figures |= load_figures(load.kind, due, span.phase.name)
            whole = (record._replace(kind="all") for record in due if record.kind != "health")
            figures |= load_figures("all", whole, span.phase.name)
        for name, seen in self.dependencies.items():
            after = max(seen.arrivals, default=0.0) - self.last_due
            figures |= {
                f"{name}_{key}": seen.counts[key] for key in ("received", "answered", "abandoned", "peak")
            }
            figures[f"{name}_after_load"] = max(0.0, after)
        if self.inside is not None:
            figures["app_busy_share"] = self.inside.busy
            for name, counts in self.inside.calls.items():
                figures |= {f"{name}_{key}": count for key, count in counts.items()}
        if self.settled is not None:
            at = self.settled.at
            figures["app_in_hand"], figures["calls_in_hand"] = self.settled.requests, self.settled.calls
            figures["calls_late"] = sum(
                instant > at for seen in self.dependencies.values() for instant in seen.arrivals
            )
        return figures

    def texts(self) -> dict[str, str]:
        """Return what is no number, by name: the states of each circuit, and when it changed."""
        texts = {}
        for name, changes in self.changes.items():
            texts[f"{name}_breaker"] = ", ".join(["closed", *(change.after for change in changes)])
            log = ", ".join(f"{change.after} at {change.at:.1f} s" for change in changes)
            texts[f"{name}_breaker_log"] = log or "its circuit stayed closed"
        return texts

    def _refused_at_rest(self, kind: str) -> int:
        """Count the refused requests that were due after the last change of a circuit."""
        last = max((change.at for changes in self.changes.values() for change in changes), default=0.0)
        return sum(
            record.due > last
            for record in self.records
            if record.kind == kind and record.outcome == "refused"
        )

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each expectation of the step; none if it could not run."""
        if self.error is not None:
            return []
        figures = self.figures()
        texts = self.texts()
        return [
            *(each.judge(figures, self.share) for each in self.step.expectations),
            *(each.judge(texts) for each in self.step.texts),
        ]

    @property
    def passed(self) -> bool:
        """Whether the step ran and met every expectation."""
        return self.error is None and all(verdict.passed for verdict in self.verdicts())

    def finding(self) -> str:
        """Return what was found, as one sentence with this run's figures."""
        if self.error is not None:
            return f"{self.step.title}: could not be run"
        shown = {name: show(name, value) for name, value in self.figures().items()}
        return self.step.finding.format_map(shown | self.texts())

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        verdicts = [
            {
                "label": v.label,
                "published": v.published,
                "expected": v.expected,
                "seen": v.seen,
                "passed": v.passed,
            }
            for v in self.verdicts()
        ]
        return {
            "step": self.step.name,
            "title": self.step.title,
            "passed": self.passed,
            "error": self.error,
            "length": self.length,
            "phases": [
                {"name": span.phase.name, "start": span.start, "length": span.length} for span in self.spans
            ],
            "figures": dict(self.figures()),
            "texts": self.texts(),
            "verdicts": verdicts,
            "dependencies": {
                name: {"counts": dict(log.counts), "arrivals": list(log.arrivals)}
                for name, log in self.dependencies.items()
            },
            "changes": {name: [change._asdict() for change in each] for name, each in self.changes.items()},
            "settled": None if self.settled is None else asdict(self.settled),
            "requests": [record._asdict() | {"outcome": record.outcome} for record in self.records],
        }
