"""What the numbers of a dependency mean. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.calls.backoff import SPREAD
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.cli.explained_policies import PoliciesReport, longest_attempt, policies_report
from resilient_mw.cli.facts import DependencyFacts, Question
from resilient_mw.cli.treatments import mean

LAYERS = 3
"""Services above each other in the example of what retries do to the last one."""


@dataclass(frozen=True, slots=True)
class DependencyReport:
    """One dependency.

    Attributes:
        name: as in the code.
        match: its patterns.
        timeout, connect_timeout, total_timeout: seconds; None: no bound.
        attempts: most attempts of one call.
        budget_ratio, budget_per_second: the retry budget; None: there is none, or no retries.
        amplification: attempts per call at worst, over any 10 s: see `amplification`.
        longest_call: seconds that a call outside any request takes at most; None: no bound.
        longest_in_request: seconds that a call inside a request takes at most; None: no bound.
        bulkhead, bulkhead_of_all: attempts at once in one process, and in all; None: no bound.
        minimum_calls, open_for: of the breaker; None: there is none.
        judges_after: seconds until one process has seen `minimum_calls`; None: no breaker, or no rate given.
        observed: seconds that an attempt took on average in this process; None: there was none.
        trusted: whether it is a service of the same chain, which is told who retries.
        owned: whether the layers below are told that this one retries; `layered`: the amplification of three such layers.
        policies: what the other policies mean.
    """

    name: str
    match: tuple[str, ...]
    timeout: float | None
    connect_timeout: float | None
    total_timeout: float | None
    attempts: int
    budget_ratio: float | None
    budget_per_second: float | None
    amplification: float
    longest_call: float | None
    longest_in_request: float | None
    bulkhead: int | None
    bulkhead_of_all: int | None
    minimum_calls: int | None
    open_for: float | None
    judges_after: float | None
    observed: float | None
    trusted: bool
    owned: bool
    layered: float
    policies: PoliciesReport


def dependency_report(facts: DependencyFacts, question: Question, longest: float | None) -> DependencyReport:
    """Return what the numbers of one dependency mean.

    Args:
        facts: the dependency.
        question: what the user says.
        longest: seconds; the longest deadline of any route, None if there is none.
    """
    dependency, retry, breaker = facts.dependency, facts.dependency.retry, facts.dependency.breaker
    rate = None if question.rate is None else question.rate / question.workers
    budgeted = retry is not None and retry.budget_ratio is not None
    worst = amplification(retry, rate, 0 if dependency.hedge is None else dependency.hedge.hedges)
    owned = dependency.fields.tells and not (retry is not None and retry.insist)
    attempts = longest_call(dependency)
    in_request = None if longest is None else max(0.0, longest - dependency.reserve)
    outside = None if dependency.total_timeout is None else dependency.total_timeout - dependency.reserve
    return DependencyReport(
        name=dependency.name,
        match=tuple(rule.pattern for rule in dependency.rules),
        timeout=dependency.timeout,
        connect_timeout=dependency.connect_timeout,
        total_timeout=dependency.total_timeout,
        attempts=1 if retry is None else retry.attempts,
        budget_ratio=retry.budget_ratio if retry is not None else None,
        budget_per_second=retry.budget_per_second if retry is not None and budgeted else None,
        amplification=worst,
        longest_call=_least(attempts, outside),
        longest_in_request=_least(attempts, in_request),
        bulkhead=dependency.most_attempts,
        bulkhead_of_all=None
        if dependency.most_attempts is None
        else dependency.most_attempts * question.workers,
        minimum_calls=None if breaker is None else breaker.minimum_calls,
        open_for=None if breaker is None else breaker.open_for,
        judges_after=None if breaker is None or rate is None else breaker.minimum_calls / rate,
        observed=mean(facts.snapshot.seconds),
        trusted=dependency.trusted,
        owned=owned,
        layered=worst if owned else worst**LAYERS,
        policies=policies_report(dependency, rate),
    )


def amplification(retry: RetryPolicy | None, rate: float | None, hedges: int = 0) -> float:
    """Return how many attempts a dependency gets per call at worst, over any 10 s.

    Without a retry budget it is the number of attempts. With one it is 1 + `budget_ratio`; the `budget_per_second` that
    are always allowed come on top where the rate of the calls is known, since they count for little traffic only. Hedges
    spend the same budget; without one each call may have all of them.
    """
    most = float(hedges + (1 if retry is None else retry.attempts))
    if retry is None or retry.budget_ratio is None:
        return most
    free = 0.0 if rate is None else retry.budget_per_second / rate
    return min(most, 1.0 + retry.budget_ratio + free)


def longest_call(dependency: Dependency) -> float | None:
    """Return how long all attempts of a call and the waits between them take at most, in seconds; None: no bound.

    A wait is a back-off, or the longest `Retry-After` that is obeyed, whichever is longer. Each attempt may wait for a slot,
    and the hedges of the call begin each its delay after the one before: at most the time of an attempt.
    """
    attempt = longest_attempt(dependency)
    if attempt is None:
        return None
    hedge, hedged = dependency.hedge, 0.0
    if hedge is not None:
        hedged = hedge.hedges * (attempt if hedge.delay is None else min(attempt, hedge.delay))
    if isinstance(dependency.bulkhead, BulkheadPolicy):
        attempt += dependency.bulkhead.max_wait
    retry = dependency.retry
    if retry is None:
        return attempt + hedged
    told = retry.max_retry_after * (1.0 + SPREAD)
    waits = (
        max(told, min(retry.backoff_cap, retry.backoff_base * 2.0**made))
        for made in range(retry.attempts - 1)
    )
    return attempt * retry.attempts + hedged + sum(waits)


def _least(*bounds: float | None) -> float | None:
    return min((bound for bound in bounds if bound is not None), default=None)
