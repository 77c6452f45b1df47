"""The policy of a circuit breaker: every number of it, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from resilient_mw.core.checks import require_flag, require_function, require_integer, require_number
from resilient_mw.core.snapshot import Transition

FAILURE_STATUSES = frozenset(range(500, 600)) - {501, 505}
"""Statuses that count against a dependency. One that does not know a method or version (501, 505) is not ill."""

Listener = Callable[[str, Transition], object]
"""Is told of each change of a circuit: the name and the change."""


def members(field: str, value: object) -> Collection[object]:
    """Return the members of a collection that was given for a field; text is none."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError(f"{field}={value!r} is not allowed: it must be a collection, such as a set")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a dependency is no longer asked, and how it is tried again.

    By default it opens for 5 s, up to a tenth longer, when half of at least 10 of the last 20 outcomes failed, and closes
    when three trials succeed. Slowness alone does not open it: that needs `slow_after`.

    Attributes:
        window: outcomes that are looked at, the most recent ones. Not used where `window_seconds` is set.
        window_seconds: seconds; the outcomes of the last so many are looked at instead, in ten steps. None: `window`.
        failure_ratio: share of failures among them at which the circuit opens.
        failure_statuses: statuses from 400 to 599 that are failures; by default all 5xx but 501 and 505. Failures
            without an answer always count.
        slow_after: seconds after which an attempt is slow, its body included. It is counted the moment it has run so
            long, not when it ends. None: slowness does not count.
        slow_ratio: share of slow attempts at which the circuit opens; needs `slow_after`.
        consecutive_failures: failures in a row that open it whatever the ratio, the window and `minimum_calls` are.
            None: only ratios count.
        minimum_calls: outcomes that must be known before a ratio can open it.
        open_for: seconds for which nothing is asked.
        open_factor: by how much the open time grows each time it opens again. 1: not at all. It begins at `open_for`
            again after the circuit was closed for at least as long as it was last open.
        open_cap: seconds; the most that it grows to.
        open_jitter: share by which the open time is lengthened at random, so that processes do not return together.
        trials: attempts that are let through afterwards; all succeed: closed, one fails or is slow: open again.
        trial_lease: seconds after which a trial without a result counts as lost and its place is given on; at least
            the timeout of the dependency, within which every attempt ends.
        ramp: seconds after closing in which the share of attempts that pass grows from a tenth to all. 0: all at once.
        exclude: exceptions of a guarded function that say nothing about what it calls.
        shadow: whether it only counts what it would have refused, and refuses nothing.
        listeners: functions that are told of each change, outside every lock.

    Raises:
        ValueError: naming the field, the value and the allowed range; also for a breaker that could never open.
    """

    window: int = 20
    failure_ratio: float = 0.5
    failure_statuses: Collection[int] = field(default=FAILURE_STATUSES, repr=False)
    minimum_calls: int = 10
    open_for: float = 5.0
    open_jitter: float = 0.1
    trials: int = 3
    trial_lease: float = 30.0
    window_seconds: float | None = None
    slow_after: float | None = None
    slow_ratio: float = 0.5
    consecutive_failures: int | None = None
    open_factor: float = 1.0
    open_cap: float = 60.0
    ramp: float = 0.0
    exclude: Collection[type[BaseException]] = ()
    shadow: bool = False
    listeners: Collection[Listener] = ()

    def __post_init__(self) -> None:
        require_integer("BreakerPolicy.window", self.window, low=1, high=10_000)
        require_number("BreakerPolicy.failure_ratio", self.failure_ratio, low=0.001, high=1)
        require_number("BreakerPolicy.slow_ratio", self.slow_ratio, low=0.001, high=1)
        require_integer("BreakerPolicy.minimum_calls", self.minimum_calls, low=1)
        require_number("BreakerPolicy.open_for", self.open_for, low=0.001, high=86_400)
        require_number("BreakerPolicy.open_factor", self.open_factor, low=1, high=10)
        lowest = self.open_for if self.open_factor > 1 else 0.001
        require_number("BreakerPolicy.open_cap", self.open_cap, low=lowest, high=86_400)
        require_number("BreakerPolicy.open_jitter", self.open_jitter, low=0, high=10)
        require_integer("BreakerPolicy.trials", self.trials, low=1, high=1000)
        require_number("BreakerPolicy.trial_lease", self.trial_lease, low=0.001, high=86_400)
        require_number("BreakerPolicy.ramp", self.ramp, low=0, high=86_400)
        require_flag("BreakerPolicy.shadow", self.shadow)
        if self.window_seconds is not None:
            require_number("BreakerPolicy.window_seconds", self.window_seconds, low=0.01, high=86_400)
        if self.slow_after is not None:
            require_number("BreakerPolicy.slow_after", self.slow_after, low=0.001, high=86_400)
        if self.consecutive_failures is not None:
            require_integer("BreakerPolicy.consecutive_failures", self.consecutive_failures, low=1)
        self._check_members()
        if self.window_seconds is None and self.minimum_calls > self.window:
            raise ValueError(
                f"BreakerPolicy.minimum_calls={self.minimum_calls!r} is not allowed: it must be at most the window, "
                f"{self.window}, or the circuit could never open"
            )

    def _check_members(self) -> None:
        statuses = members("BreakerPolicy.failure_statuses", self.failure_statuses)
        checked = frozenset(
            require_integer("BreakerPolicy.failure_statuses", status, low=400, high=599)
            for status in statuses
        )
        object.__setattr__(self, "failure_statuses", checked)
        excluded = tuple(members("BreakerPolicy.exclude", self.exclude))
        for each in excluded:
            if not (isinstance(each, type) and issubclass(each, BaseException)):
                raise ValueError(
                    f"BreakerPolicy.exclude={self.exclude!r} is not allowed: it must hold classes of exceptions"
                )
        object.__setattr__(self, "exclude", excluded)
        listeners = tuple(members("BreakerPolicy.listeners", self.listeners))
        for listener in listeners:
            require_function("BreakerPolicy.listeners", listener, "the name and the change")
        object.__setattr__(self, "listeners", listeners)
