"""How one dependency is called: every number of the client half, checked when it is made."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass, field

from resilient_mw.core.checks import require_integer, require_number
from resilient_mw.core.errors import ResilienceWarning

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be repeated by definition (RFC 9110 9.2.2)."""

FAILURE_STATUSES = frozenset(range(500, 600)) - {501, 505}
"""Statuses that count against a dependency. One that does not know a method or version (501, 505) is not ill."""


def _members(field: str, value: object) -> Collection[object]:
    """Return the members of a collection that was given for a field; text is none."""
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError(f"{field}={value!r} is not allowed: it must be a collection, such as a set")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt is followed by another one.

    Attributes:
        attempts: most attempts of one call, the first included.
        backoff_base: seconds; the first back-off is drawn from 0 to this (full jitter), doubling with each attempt.
            0: no back-off.
        backoff_cap: seconds; the most a back-off is drawn from.
        budget_ratio: retries begun in any 10 s per call begun in them. None: no budget, which multiplies the load of
            a failing dependency.
        budget_per_second: retries per second that are always within the budget.
        max_retry_after: seconds; a `Retry-After` above it means giving up. It is never shortened.
        unsafe_methods: methods that may be repeated although they are not idempotent and the request carries no key;
            needs a dependency that recognises repeats.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    attempts: int = 2
    backoff_base: float = 0.1
    backoff_cap: float = 2.0
    budget_ratio: float | None = 0.1
    budget_per_second: float = 1.0
    max_retry_after: float = 5.0
    unsafe_methods: Collection[str] = ()

    def __post_init__(self) -> None:
        require_integer("RetryPolicy.attempts", self.attempts, low=1, high=10)
        require_number("RetryPolicy.backoff_base", self.backoff_base, low=0, high=60)
        require_number("RetryPolicy.backoff_cap", self.backoff_cap, low=self.backoff_base, high=3600)
        if self.budget_ratio is not None:
            require_number("RetryPolicy.budget_ratio", self.budget_ratio, low=0, high=1)
        require_number("RetryPolicy.budget_per_second", self.budget_per_second, low=0, high=1000)
        require_number("RetryPolicy.max_retry_after", self.max_retry_after, low=0, high=86_400)
        self._check_methods()

    def _check_methods(self) -> None:
        methods = _members("RetryPolicy.unsafe_methods", self.unsafe_methods)
        if not all(isinstance(method, str) and method.isascii() and method.isalpha() for method in methods):
            raise ValueError(
                f"RetryPolicy.unsafe_methods={methods!r} is not allowed: it must hold methods, such as 'POST'"
            )
        for method in self.unsafe_methods:
            if method.upper() in IDEMPOTENT:
                problem = "without effect: it may be repeated by definition. Leave it out of RetryPolicy.unsafe_methods"
            else:
                problem = (
                    "not safe without an idempotency key. Let the caller send one (a keyed request is repeated without "
                    "this), or make sure that the dependency recognises a repeated request"
                )
            warnings.warn(f"repeating {method.upper()} is {problem}", ResilienceWarning, stacklevel=4)

    @property
    def repeatable(self) -> frozenset[str]:
        """The methods that the user vouches for, in upper case."""
        return frozenset(method.upper() for method in self.unsafe_methods)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a dependency is no longer asked, and how it is tried again.

    Attributes:
        window: outcomes that are looked at, the most recent ones.
        failure_ratio: share of failures among them at which the circuit opens.
        failure_statuses: statuses from 400 to 599 that are failures; by default all 5xx but 501 and 505. Failures
            without an answer always count.
        minimum_calls: outcomes that must be known before it can open.
        open_for: seconds for which nothing is asked.
        open_jitter: share by which the open time is lengthened at random, so that processes do not return together.
        trials: attempts that are let through afterwards; all succeed: closed, one fails: open again.
        trial_lease: seconds after which a trial without a result counts as lost and its place is given on; at least
            the timeout of the dependency, within which every attempt ends.

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

    def __post_init__(self) -> None:
        require_integer("BreakerPolicy.window", self.window, low=1, high=10_000)
        require_number("BreakerPolicy.failure_ratio", self.failure_ratio, low=0.001, high=1)
        require_integer("BreakerPolicy.minimum_calls", self.minimum_calls, low=1)
        require_number("BreakerPolicy.open_for", self.open_for, low=0.001, high=86_400)
        require_number("BreakerPolicy.open_jitter", self.open_jitter, low=0, high=10)
        require_integer("BreakerPolicy.trials", self.trials, low=1, high=1000)
        require_number("BreakerPolicy.trial_lease", self.trial_lease, low=0.001, high=86_400)
        statuses = _members("BreakerPolicy.failure_statuses", self.failure_statuses)
        checked = frozenset(
            require_integer("BreakerPolicy.failure_statuses", status, low=400, high=599)
            for status in statuses
        )
        object.__setattr__(self, "failure_statuses", checked)
        if self.minimum_calls > self.window:
            raise ValueError(
                f"BreakerPolicy.minimum_calls={self.minimum_calls!r} is not allowed: it must be at most the window, "
                f"{self.window}, or the circuit could never open"
            )
