"""The checks of a dependency's fields, each of which names the field, the value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from resilient_mw.calls.adaptive import AdaptivePolicy
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.fallback import Fallback
from resilient_mw.calls.guarded import check_exceptions
from resilient_mw.calls.hedge import HedgePolicy
from resilient_mw.calls.key import IdempotencyKeys
from resilient_mw.calls.ownership import RetryOwnership
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.calls.timeout import TimeoutPolicy
from resilient_mw.core.checks import require_integer, require_number

if TYPE_CHECKING:
    from resilient_mw.calls.dependency import Dependency

_FIELD_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


POLICIES: Mapping[str, type] = {
    "retry": RetryPolicy,
    "breaker": BreakerPolicy,
    "throttle": ThrottlePolicy,
    "adaptive": AdaptivePolicy,
    "ownership": RetryOwnership,
    "adaptive_timeout": TimeoutPolicy,
    "fallback": Fallback,
    "hedge": HedgePolicy,
}
"""Fields that hold one of these, or None."""


def check_types(dependency: Dependency) -> None:
    """Raise `ValueError` for a field of the wrong type."""
    header: object = dependency.deadline_header
    keys: object = dependency.idempotency_key
    most: object = dependency.bulkhead
    checks = [
        (
            "match",
            isinstance(dependency.match, (str, Sequence)),
            "a pattern like 'http://prices/*', or several",
        ),
        ("trusted", isinstance(dependency.trusted, bool), "True or False"),
        (
            "deadline_header",
            header is None or (isinstance(header, str) and _FIELD_NAME.fullmatch(header) is not None),
            "the name of a header field or None",
        ),
        (
            "idempotency_key",
            keys is None or isinstance(keys, (str, IdempotencyKeys)),
            "the name of a header field, IdempotencyKeys or None",
        ),
        (
            "bulkhead",
            most is None or isinstance(most, (int, float, BulkheadPolicy)),
            "a number of attempts, a BulkheadPolicy or None",
        ),
    ]
    for name, policy in POLICIES.items():
        value = getattr(dependency, name)
        article = "an" if policy.__name__[0] in "AEIOU" else "a"
        allowed = f"{article} {policy.__name__} or None"
        checks.append((name, value is None or isinstance(value, policy), allowed))
    field_of = f"Dependency({dependency.name!r})."
    for name, right, allowed in checks:
        if not right:
            raise ValueError(
                f"{field_of}{name}={getattr(dependency, name)!r} is not allowed: it must be {allowed}"
            )
    check_exceptions(field_of + "exceptions", dependency.exceptions)


def check_numbers(dependency: Dependency) -> None:
    """Raise `ValueError` for a number out of its range, or numbers that do not go together."""
    field_of = f"Dependency({dependency.name!r})."
    for name in ("timeout", "connect_timeout", "total_timeout"):
        value = getattr(dependency, name)
        if value is not None:
            require_number(field_of + name, value, low=0.001, high=86_400)
    if dependency.bulkhead is not None and not isinstance(dependency.bulkhead, BulkheadPolicy):
        require_integer(field_of + "bulkhead", dependency.bulkhead, low=1)
    require_number(field_of + "reserve", dependency.reserve, low=0, high=60)
    require_number(field_of + "smallest_budget", dependency.smallest_budget, low=0, high=60)
    kept = dependency.reserve + dependency.smallest_budget
    if dependency.total_timeout is not None and dependency.total_timeout <= kept:
        raise ValueError(
            f"{field_of}total_timeout={dependency.total_timeout!r} is not allowed: it must be above reserve + "
            f"smallest_budget, {kept:g}, or nothing would ever be sent"
        )
    _check_load(dependency)


def _check_load(dependency: Dependency) -> None:
    field_of = f"Dependency({dependency.name!r})."
    throttle, timeout = dependency.throttle, dependency.timeout
    if throttle is not None and timeout is not None and throttle.window <= timeout:
        raise ValueError(
            f"{field_of}throttle={throttle!r} is not allowed: its window must be longer than the timeout, {timeout:g}, or "
            "what times out would never be in it"
        )
    adaptive, most = dependency.adaptive, dependency.most_attempts
    if adaptive is not None and (most is None or most < adaptive.floor):
        raise ValueError(
            f"{field_of}adaptive={adaptive!r} is not allowed with bulkhead={most!r}: the bulkhead is the most that the limit "
            f"may become, and must be a number of at least its floor, {adaptive.floor}"
        )


def warnings_of(dependency: Dependency) -> Iterator[str]:
    """Say what has no effect, or less than it seems."""
    if dependency.breaker is not None and dependency.timeout is None:
        yield (
            "breaker can never open on slow answers: timeout is None, so only the caller's budget ends an attempt, "
            "which says nothing about the dependency. Set a timeout"
        )
    if dependency.throttle is not None and not dependency.trusted:
        yield (
            "throttle hears of timeouts and lost connections alone: trusted=False means that its refusals are not "
            "believed. Trust it, or leave the throttle out"
        )
    yield from _hedge_warnings(dependency)
    for rule in dependency.rules:
        if rule.path == "/" and not rule.below:
            yield (
                f"match={rule.pattern!r} means the path '/' alone. Write {rule.pattern + '*'!r} for all paths below it"
            )


def _hedge_warnings(dependency: Dependency) -> Iterator[str]:
    hedge, timeout, retry = dependency.hedge, dependency.timeout, dependency.retry
    if hedge is None:
        return
    if hedge.delay is not None and timeout is not None and hedge.delay >= timeout:
        yield f"hedge has no effect: its delay, {hedge.delay:g}, is not below the timeout, {timeout:g}. Take a shorter delay"
    if dependency.most_attempts == 1:
        yield "hedge has no effect: the bulkhead lets one attempt through at a time. Give it room for two"
    if retry is not None and retry.budget_ratio is None:
        yield (
            "hedge has no budget: RetryPolicy(budget_ratio=None) lets hedges double the load of a dependency that becomes "
            "slow. Set a budget_ratio"
        )
