"""Retry: whether an attempt that did not succeed is followed by another one, and after how long.

Only what may pass, and was not acted upon or may be repeated; only if it can finish; only within the retry budget. The
first rule that says no is the one that is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.calls.breaker import Breaker
from resilient_mw.calls.classify import Verdict
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.refusals import RetryRefusal
from resilient_mw.calls.state import DependencyState


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known after an attempt.

    Attributes:
        attempts: attempts made so far.
        verdict: what the last one says.
        retry_after: seconds that the dependency asked to wait; None: it did not.
        safe: whether the request may be repeated although the dependency may have acted on it.
        resendable: whether the body can be sent (again).
        deadline_at: the instant at which the answer becomes worthless.
        waited: the last back-off of this call, in seconds; 0: there was none.
        owned: whether a layer above says that it retries.
    """

    attempts: int
    verdict: Verdict
    retry_after: float | None
    safe: bool
    resendable: bool
    deadline_at: float
    waited: float = 0.0
    owned: bool = False


def retry_delay(state: DependencyState, now: float, tried: Tried, breaker: Breaker | None) -> float | None:
    """Return seconds after which to try again, reserved in the retry budget; None to leave it at this outcome.

    `Retry-After` is obeyed with jitter on top, or the retry is given up; it is never shortened.
    """
    policy = state.retry
    if policy is None or not tried.verdict.passing:
        return None  # Nothing was hoped for, so nothing is counted.
    decorrelated = policy.jitter == "decorrelated"
    delay = state.backoff_after(tried.waited) if decorrelated else state.backoff(tried.attempts)
    if tried.retry_after is not None:
        delay = max(delay, state.spread(tried.retry_after))
    refusal = _refusal(state, policy, now, now + delay, tried, breaker=breaker)
    if refusal is None:
        return delay
    state.retry_refused(refusal)
    return None


def _refusal(
    state: DependencyState,
    policy: RetryPolicy,
    now: float,
    begin: float,
    tried: Tried,
    *,
    breaker: Breaker | None,
) -> RetryRefusal | None:
    if tried.attempts >= policy.attempts:
        return RetryRefusal.ATTEMPTS
    if tried.owned and not policy.insist:
        return RetryRefusal.NOT_OWNER
    if tried.verdict.told_not_to:
        return RetryRefusal.TOLD_NOT_TO
    if tried.verdict.acted and not tried.safe:
        return RetryRefusal.UNSAFE
    if not tried.resendable:
        return RetryRefusal.BODY
    if tried.retry_after is not None and tried.retry_after > policy.max_retry_after:
        return RetryRefusal.RETRY_AFTER
    if tried.deadline_at - begin - state.reserve < max(state.typical(), state.least):
        return RetryRefusal.DEADLINE
    if breaker is not None and not breaker.would_allow(begin):
        return RetryRefusal.CIRCUIT_OPEN
    if state.budget is not None and not state.budget.reserve(now, begin, tried.verdict.price):
        return RetryRefusal.BUDGET
    return None
