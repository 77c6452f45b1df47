"""What the optional policies of a dependency mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.calls.breaker_policy import BreakerPolicy
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.fallback import UNSET, Fallback
from resilient_mw.calls.groups import MOST_STATES
from resilient_mw.calls.hedge import HedgePolicy
from resilient_mw.calls.key import IdempotencyKeys
from resilient_mw.cli.words import function_name


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """When the circuit opens, and for how long.

    Attributes:
        window, window_seconds: outcomes that are looked at, or the seconds; the other one is None.
        failure_ratio: share of failures at which it opens.
        slow_after, slow_ratio: seconds after which an attempt is slow, and the share at which it opens; None: never.
        consecutive_failures: failures in a row that open it; None: however many.
        longest_open: seconds that it stays open at most, jitter included, before it is tried again.
        ramp: seconds in which traffic comes back.
        shadow: whether it only counts.
    """

    window: int | None
    window_seconds: float | None
    failure_ratio: float
    slow_after: float | None
    slow_ratio: float | None
    consecutive_failures: int | None
    longest_open: float
    ramp: float
    shadow: bool


@dataclass(frozen=True, slots=True)
class MeasuredReport:
    """A measured timeout.

    Attributes:
        floor, cap: seconds that it lies between; `cap` None: no bound.
        false_timeouts: the share of attempts that it may cut off.
        samples: ended attempts of a group before it acts.
        acts_after: seconds until one process has seen them; None: no rate given.
    """

    floor: float
    cap: float | None
    false_timeouts: float
    samples: int
    acts_after: float | None


@dataclass(frozen=True, slots=True)
class HedgeReport:
    """When an attempt gets company.

    Attributes:
        hedges: of one call, at most.
        delay: seconds after which; None: measured.
        quantile, samples: of the times until a head, and how many must be known; None: the delay is fixed.
        budgeted: whether a budget bounds them.
    """

    hedges: int
    delay: float | None
    quantile: float | None
    samples: int | None
    budgeted: bool


@dataclass(frozen=True, slots=True)
class FallbackReport:
    """What stands in for an error.

    Attributes:
        kinds: in this order: `stale`, `function`, `value`.
        stale_for: seconds; the age up to which the last good answer is used; None: none is kept.
        max_bytes: bytes of memory that kept answers take at most, in each process; None: none are kept.
    """

    kinds: tuple[str, ...]
    stale_for: float | None
    max_bytes: int | None


@dataclass(frozen=True, slots=True)
class PoliciesReport:
    """The optional policies of a dependency; None: it has none of the kind.

    Attributes:
        attempt: seconds that one attempt may take at most; None: no bound.
        breaker, measured, fallback, hedge: see there.
        bulkhead_wait, bulkhead_queue: seconds that an attempt waits for a slot at most, and how many may wait.
        adaptive_floor: the fewest attempts at once; the bulkhead is the most.
        most_throttled: the largest share that the throttle refuses.
        throttled_from: calls a second of one process below which it never does.
        groups: the named route groups.
        group_key: what a group is made for: `host`, or the name of a function.
        states: circuits and measured timeouts that may be in memory at once, in each process.
        key_header, key_methods: the field of the idempotency key, and the methods that get one.
        unsafe_methods: methods that are repeated although they are not idempotent.
        insists: whether it retries although a layer above does.
    """

    attempt: float | None
    breaker: BreakerReport | None
    measured: MeasuredReport | None
    bulkhead_wait: float | None
    bulkhead_queue: int | None
    adaptive_floor: int | None
    most_throttled: float | None
    throttled_from: float | None
    groups: tuple[str, ...]
    group_key: str | None
    states: int
    key_header: str | None
    key_methods: tuple[str, ...]
    unsafe_methods: tuple[str, ...]
    insists: bool
    fallback: FallbackReport | None
    hedge: HedgeReport | None


def policies_report(dependency: Dependency, rate: float | None) -> PoliciesReport:
    """Return what the policies of one dependency mean.

    Args:
        dependency: the dependency.
        rate: calls a second that one process makes; None: unknown.
    """
    line = dependency.bulkhead if isinstance(dependency.bulkhead, BulkheadPolicy) else None
    waits = line is not None and line.max_wait > 0
    throttle, retry, keys = dependency.throttle, dependency.retry, dependency.idempotency_key
    if isinstance(keys, str):
        keys = IdempotencyKeys(header=keys)
    key = dependency.group_key
    names = tuple(dependency.groups or ())
    return PoliciesReport(
        attempt=longest_attempt(dependency),
        breaker=None if dependency.breaker is None else _breaker(dependency.breaker),
        measured=_measured(dependency, rate),
        bulkhead_wait=line.max_wait if line is not None and waits else None,
        bulkhead_queue=(line.limit if line.queue is None else line.queue)
        if line is not None and waits
        else None,
        adaptive_floor=None if dependency.adaptive is None else dependency.adaptive.floor,
        most_throttled=None if throttle is None else throttle.most_refused,
        throttled_from=None if throttle is None else throttle.per_second,
        groups=names,
        group_key=key if key is None or isinstance(key, str) else function_name(key),
        states=1 + len(names) + (0 if key is None else MOST_STATES),
        key_header=None if keys is None else keys.header,
        key_methods=() if keys is None else tuple(sorted(keys.methods)),
        unsafe_methods=()
        if retry is None
        else tuple(sorted(method.upper() for method in retry.unsafe_methods)),
        insists=retry is not None and retry.insist and retry.attempts > 1,
        fallback=None if dependency.fallback is None else _fallback(dependency.fallback),
        hedge=None if dependency.hedge is None else _hedge(dependency.hedge, dependency.retry),
    )


def longest_attempt(dependency: Dependency) -> float | None:
    """Return the seconds that one attempt may take at most; None: no bound of its own."""
    measured = dependency.adaptive_timeout
    bounds = (dependency.timeout, None if measured is None else measured.cap)
    return min((bound for bound in bounds if bound is not None), default=None)


def _breaker(policy: BreakerPolicy) -> BreakerReport:
    longest = policy.open_cap if policy.open_factor > 1 else policy.open_for
    return BreakerReport(
        window=policy.window if policy.window_seconds is None else None,
        window_seconds=policy.window_seconds,
        failure_ratio=policy.failure_ratio,
        slow_after=policy.slow_after,
        slow_ratio=None if policy.slow_after is None else policy.slow_ratio,
        consecutive_failures=policy.consecutive_failures,
        longest_open=longest * (1.0 + policy.open_jitter),
        ramp=policy.ramp,
        shadow=policy.shadow,
    )


def _measured(dependency: Dependency, rate: float | None) -> MeasuredReport | None:
    policy = dependency.adaptive_timeout
    if policy is None:
        return None
    acts_after = None if rate is None else policy.samples / rate
    cap = longest_attempt(dependency)
    return MeasuredReport(policy.floor, cap, policy.false_timeouts, policy.samples, acts_after)


def _hedge(policy: HedgePolicy, retry: RetryPolicy | None) -> HedgeReport:
    measured = policy.delay is None
    return HedgeReport(
        hedges=policy.hedges,
        delay=policy.delay,
        quantile=policy.quantile if measured else None,
        samples=policy.samples if measured else None,
        budgeted=retry is not None and retry.budget_ratio is not None,
    )


def _fallback(policy: Fallback) -> FallbackReport:
    there = {
        "stale": policy.stale_for is not None,
        "function": policy.function is not None,
        "value": policy.value is not UNSET,
    }
    kinds = tuple(kind for kind, is_there in there.items() if is_there)
    return FallbackReport(kinds, policy.stale_for, None if policy.stale_for is None else policy.max_bytes)
