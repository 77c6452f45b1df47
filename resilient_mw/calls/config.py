"""How one dependency is called: every number of the client half, checked when it is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from resilient_mw.calls.breaker_policy import FAILURE_STATUSES, BreakerPolicy, members
from resilient_mw.core.checks import require_integer, require_number
from resilient_mw.core.errors import ResilienceWarning

__all__ = ["FAILURE_STATUSES", "IDEMPOTENT", "BreakerPolicy", "RetryPolicy"]

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be repeated by definition (RFC 9110 9.2.2)."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that ask for no effect (RFC 9110 9.2.1)."""

JITTERS = ("full", "equal", "decorrelated")


def require_methods(field: str, value: object) -> None:
    """Raise a ValueError if a field does not hold methods."""
    methods = members(field, value)
    if not all(isinstance(method, str) and method.isascii() and method.isalpha() for method in methods):
        raise ValueError(f"{field}={methods!r} is not allowed: it must hold methods, such as 'POST'")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed attempt is followed by another one.

    By default once, after up to 0.1 s, and for at most a tenth of the calls and one a second: a dependency that is down gets
    1.1 times the traffic. `Retry-After` is obeyed up to 5 s.

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
        jitter: how a back-off is drawn. `full`: from 0 to the doubled base; `equal`: from its upper half; `decorrelated`:
            from the base to three times the call's last one. All of them up to the cap.
        not_idempotent: methods that are idempotent by definition but not at this dependency, such as a PUT that appends:
            repeated only where it cannot have acted, or with a key.
        insist: whether to retry although a layer above says that it retries. Attempts then multiply.
        retry_if: a rule of your own, given the library's response or error: True, it may pass; False, it will not. It
            replaces the table of what may pass; all other conditions of a retry stand. Without a response being read.

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
    jitter: Literal["full", "equal", "decorrelated"] = "full"
    not_idempotent: Collection[str] = ()
    insist: bool = False
    retry_if: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        require_integer("RetryPolicy.attempts", self.attempts, low=1, high=10)
        require_number("RetryPolicy.backoff_base", self.backoff_base, low=0, high=60)
        require_number("RetryPolicy.backoff_cap", self.backoff_cap, low=self.backoff_base, high=3600)
        if self.budget_ratio is not None:
            require_number("RetryPolicy.budget_ratio", self.budget_ratio, low=0, high=1)
        require_number("RetryPolicy.budget_per_second", self.budget_per_second, low=0, high=1000)
        require_number("RetryPolicy.max_retry_after", self.max_retry_after, low=0, high=86_400)
        if self.jitter not in JITTERS:
            raise ValueError(
                f"RetryPolicy.jitter={self.jitter!r} is not allowed: it must be 'full', 'equal' or 'decorrelated'"
            )
        if not isinstance(self.insist, bool):
            raise ValueError(f"RetryPolicy.insist={self.insist!r} is not allowed: it must be True or False")
        rule: object = self.retry_if
        if rule is not None and not callable(rule):
            raise ValueError(f"RetryPolicy.retry_if={rule!r} is not allowed: it must be a function or None")
        self._check_methods()

    def _check_methods(self) -> None:
        require_methods("RetryPolicy.unsafe_methods", self.unsafe_methods)
        require_methods("RetryPolicy.not_idempotent", self.not_idempotent)
        for method in self.not_idempotent:
            if method.upper() not in IDEMPOTENT - SAFE or method in self.unsafe_methods:
                raise ValueError(
                    f"RetryPolicy.not_idempotent={self.not_idempotent!r} is not allowed: it may hold 'PUT' and 'DELETE', "
                    "if unsafe_methods does not. Others either do nothing or are not idempotent anyway"
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
        """The methods that may be repeated although the dependency may have acted, in upper case."""
        vouched = {method.upper() for method in self.unsafe_methods}
        return (IDEMPOTENT | vouched) - {method.upper() for method in self.not_idempotent}
