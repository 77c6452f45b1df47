"""What one random sequence of the fuzz test does: a policy, and requests with their bodies, callers and handlers.

A plan is data alone, made from one seed, so that it can be printed and run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Step = tuple[Any, ...]
"""What a handler does next: the name of a method of `fuzz_handler.Handling`, and its arguments."""

TRUSTED = "10.0.0.0/8"
MAXIMUM = 2.0
QUICK = 0.06
LONG = 3.0
"""Seconds: longer than any deadline."""

# path -> (class, slots); what is not listed is normal and takes one
TREATED = {
    "/low": ("sheddable", 1),
    "/high": ("critical", 1),
    "/wide": ("normal", 2),
    "/quick": ("normal", 1),
    "/probe": ("exempt", 1),
    "/events": ("normal", 1),
    "/feed": ("sheddable", 1),
}
STREAMS = frozenset({"/events", "/feed"})
"""Paths of routes that hold their slot for the head only."""
MOVING = frozenset({"/feed"})
"""Those whose deadline covers the head and the gaps."""


@dataclass(frozen=True)
class When:
    """An instant: seconds after the arrival, or the n-th message that was sent or received."""

    what: str
    number: float


@dataclass(frozen=True)
class RequestPlan:
    """One request: what the server gives, what it does, and what the handler does.

    Attributes:
        at: instant of arrival.
        fields: deadline header lines.
        wish: the seconds that they ask for; None: nothing valid.
        body: (delay, size) of each message of the body.
        ends: whether the last of them ends the body; otherwise the caller never finishes his upload.
        steps: what the handler does.
        leaves, cancelled: when the caller disconnects and the server cancels the task.
        once: the server tells a disconnect once only.
        wakes_one: it wakes one of several listeners only.
        drops_body: it forgets what was not received when the caller leaves.
        lost: what `send` does when the caller has gone: ignore, raise or hang.
        slow: seconds that each `send` takes.
        inherits: its task is made in the context of the handler that was entered last.
        notes: the handler registers an `on_cancel` callback that notes the instant.
    """

    at: float
    path: str
    method: str
    peer: str
    fields: tuple[tuple[str, bytes], ...]
    wish: float | None
    body: tuple[tuple[float, int], ...]
    ends: bool
    steps: tuple[Step, ...]
    leaves: When | None
    cancelled: When | None
    once: bool
    wakes_one: bool
    drops_body: bool
    lost: str
    slow: float
    inherits: bool
    notes: bool


@dataclass(frozen=True)
class Plan:
    """One sequence.

    Attributes:
        drain_at, drain_within: when the drain begins, and the seconds after which it cancels what still runs.
        reload_at: when there is one slot more, and one place in the queue.
    """

    seed: int
    policy: dict[str, Any]
    early: float
    stack: str
    outer_default: float
    drain_at: float | None
    drain_within: float
    reload_at: float | None
    requests: tuple[RequestPlan, ...]

    def treatment(self, request: RequestPlan) -> tuple[str, int]:
        """Return the class and the cost of a request."""
        path = request.path
        if path == "/health" and request.method != "POST":
            return "exempt", 1
        known = {rule.path for rule in self.policy["routes"]}
        return TREATED[path] if path in known and path in TREATED else ("normal", 1)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.stack}, early={self.early}, outer_default={self.outer_default}",
            f"  drain_at={self.drain_at}, drain_within={self.drain_within}, reload_at={self.reload_at}",
            f"  policy {self.policy}",
        ]
        return "\n".join([*lines, *(f"  {number}: {each}" for number, each in enumerate(self.requests))])


STUBBORN = frozenset({"swallow", "clean_up", "ignore", "wait_for", "section"})
"""Steps that go on after a cancel, or may lose one."""


def has(steps: tuple[Step, ...], names: frozenset[str]) -> bool:
    """Return whether one of these steps is among them, at any depth."""
    return any(
        step[0] in names or any(isinstance(part, tuple) and _has_inside(part, names) for part in step)
        for step in steps
    )


def _has_inside(part: tuple[Any, ...], names: frozenset[str]) -> bool:
    if part and isinstance(part[0], tuple) and part[0] and isinstance(part[0][0], tuple):
        return any(has(branch, names) for branch in part)
    return has(part, names)
