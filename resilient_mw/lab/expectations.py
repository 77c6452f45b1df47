"""What a step must show: bounds on named figures, and how a figure is written for a reader. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Figures = Mapping[str, float | None]
"""Figures of one step by name. Times are seconds; None says that there was nothing to measure."""

Relation = Literal["<=", ">="]

_SIGNS = {"<=": "\u2264", ">=": "\u2265"}


def is_time(name: str) -> bool:
    """Return whether the figure of this name is a time in seconds."""
    return name.endswith(("_p50", "_p95", "_p99", "_after_load"))


def is_share(name: str) -> bool:
    """Return whether the figure of this name is a part of a whole, from 0 to 1."""
    return name.endswith("_share")


def show(name: str, value: float | None) -> str:
    """Write a figure for a reader: times in ms, or in seconds from ten on; parts in %; counts with thousands apart."""
    if value is None:
        return "none"
    if is_share(name):
        return f"{100 * value:.1f} %"
    if not is_time(name):
        return f"{value:,.0f}"
    if value >= 10 or name.endswith("_after_load"):
        return f"{value:.1f} s"
    if value < 0.010:
        return f"{value * 1000:.1f} ms"
    return f"{value * 1000:,.0f} ms"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One expectation, applied to one run: all texts are for a reader."""

    label: str
    published: str
    expected: str
    seen: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Expectation:
    """A bound on one figure.

    Attributes:
        figure: name of the figure.
        label: what it is called in the table.
        relation: `<=` or `>=`.
        bound: for a load of the full length; seconds for a time; a factor with `of`.
        published: what others saw, as text.
        scales: whether the bound is proportional to the length of the load.
        short: the bound of a shorter load, where it is not proportional; None keeps `bound`.
        of: name of another figure of which `bound` is a multiple.
    """

    figure: str
    label: str
    relation: Relation
    bound: float
    published: str
    scales: bool = False
    short: float | None = None
    of: str | None = None

    def bound_for(self, share: float) -> float:
        """Return the bound for a load of `share` of the full length; counts are rounded leniently."""
        if share == 1:
            return self.bound
        if not self.scales:
            return self.bound if self.short is None or share > 1 else self.short
        scaled = self.bound * share
        if is_time(self.figure):
            return scaled
        return math.ceil(scaled) if self.relation == "<=" else math.floor(scaled)

    def judge(self, figures: Figures, share: float) -> Verdict:
        """Compare. A figure that is missing, or for which there was nothing to measure, is a miss."""
        seen = figures.get(self.figure)
        bound: float | None = self.bound_for(share)
        if bound is not None and self.of is not None:
            other = figures.get(self.of)
            bound = None if other is None else bound * other
        passed = (
            seen is not None
            and bound is not None
            and (seen <= bound if self.relation == "<=" else seen >= bound)
        )
        expected = f"{_SIGNS[self.relation]} {show(self.figure, bound)}"
        return Verdict(self.label, self.published, expected, show(self.figure, seen), passed)


@dataclass(frozen=True, slots=True)
class OrderExpectation:
    """What must have happened, in which order, whatever the length of the load.

    Attributes:
        text: name of the text that says what happened.
        label: what it is about, for the table.
        order: what it must be.
        published: what others saw.
    """

    text: str
    label: str
    order: str
    published: str

    def judge(self, texts: Mapping[str, str]) -> Verdict:
        """Compare. A text that is missing is a miss."""
        seen = texts.get(self.text, "none")
        passed = seen == self.order
        words = "in this order"
        # The long text stands once, and a second time only if it is another one.
        return Verdict(
            f"{self.label}: {self.order}", self.published, words, words if passed else seen, passed
        )
