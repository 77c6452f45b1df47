"""What one run of a step gave: everything that the console, the report and the JSON file show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilient_mw.lab.expectations import Figures, Verdict, show
from resilient_mw.lab.records import Record, load_figures
from resilient_mw.lab.steps import Step


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
class StepResult:
    """One run of a step.

    Attributes:
        length: seconds of load; shorter than the step's own in a quick run.
        records: every request, by due time.
        dependencies: by name.
        error: why the lab could not run it; then there is nothing else.
    """

    step: Step
    length: float
    records: Sequence[Record] = ()
    dependencies: Mapping[str, DependencyLog] = field(default_factory=dict)
    error: str | None = None

    @property
    def share(self) -> float:
        """The length of this run as a share of the step's own."""
        return self.length / self.step.length

    @property
    def last_due(self) -> float:
        """When the last user arrived, in seconds after the first."""
        return max((record.due for record in self.records), default=0.0)

    def figures(self) -> Figures:
        """Return every figure by name: `<load>_...` and `<dependency>_...`; times are in seconds."""
        figures: dict[str, float | None] = {}
        for load in self.step.loads:
            figures |= load_figures(load.kind, self.records)
        for name, log in self.dependencies.items():
            after = max(log.arrivals, default=0.0) - self.last_due
            figures |= {
                f"{name}_{key}": log.counts[key] for key in ("received", "answered", "abandoned", "peak")
            }
            figures[f"{name}_after_load"] = max(0.0, after)
        return figures

    def verdicts(self) -> list[Verdict]:
        """Return one verdict for each expectation of the step; none if it could not run."""
        if self.error is not None:
            return []
        figures = self.figures()
        return [expectation.judge(figures, self.share) for expectation in self.step.expectations]

    @property
    def passed(self) -> bool:
        """Whether the step ran and met every expectation."""
        return self.error is None and all(verdict.passed for verdict in self.verdicts())

    def finding(self) -> str:
        """Return what was found, as one sentence with this run's figures."""
        if self.error is not None:
            return f"{self.step.title}: could not be run"
        shown = {name: show(name, value) for name, value in self.figures().items()}
        return self.step.finding.format_map(shown)

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
            "figures": dict(self.figures()),
            "verdicts": verdicts,
            "dependencies": {
                name: {"counts": dict(log.counts), "arrivals": list(log.arrivals)}
                for name, log in self.dependencies.items()
            },
            "requests": [record._asdict() | {"outcome": record.outcome} for record in self.records],
        }
