"""What an outcome says: about the dependency, and about whether another attempt may be made.

"Could the server have acted?" decides what may be repeated. One table for statuses:

| status | blames the dependency | may pass | may have acted | why |
|---|---|---|---|---|
| 1xx to 4xx, 501, 505 | no | no | yes | an answer, if not the one that was hoped for |
| 408 | neither | yes | yes | sent for a slow request as well as for a slow handler |
| 425 | neither | yes | no | it declined to act on what might be a replay (RFC 8470) |
| 429 | neither | with `Retry-After` | yes | our quota, not its health; nothing says that a proxy sent it first |
| 500 | yes | yes | yes | passing fault or defect: only a repeat can tell |
| 502, 503, 504 | yes | yes | yes | a proxy may have passed the request on before |
| other 5xx | yes | no | yes | not known to pass |
| 4xx or 5xx, refused by a trusted dependency | neither | yes | no | it says itself that it has not begun |
| 413, refused by a trusted dependency | neither | no | no | the same body will be as large next time |

A refusal of a trusted dependency does not count against it: it answers, it protects itself, and the less important
requests that it sheds must not cut off the important ones.

A refused stream of HTTP/2 (RFC 9113 8.7) reads like a refusal of a trusted dependency: the protocol itself says that
nothing was done with it.

A rule of the user (`RetryPolicy.retry_if`) decides what may pass, and nothing else: neither whom an outcome blames nor
whether the dependency may have acted.

What counts against it can be set (`BreakerPolicy.failure_statuses`). Failures without a head: see `classify_failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from resilient_mw.calls.budget import PRICE, TIMEOUT_PRICE
from resilient_mw.calls.config import FAILURE_STATUSES
from resilient_mw.calls.events import UNSENT, Failure, Head
from resilient_mw.core.errors import ResilienceError


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reading of one outcome.

    Attributes:
        failed: whether the dependency failed; None if the outcome says nothing about it.
        passing: whether it may be different next time.
        acted: whether the dependency may have acted on the request.
        price: what a retry costs the budget.
        told_not_to: whether the answer says that a retry is useless.
    """

    failed: bool | None
    passing: bool
    acted: bool
    price: int = PRICE
    told_not_to: bool = False


TOO_LARGE = Verdict(failed=None, passing=False, acted=False)
OK = Verdict(failed=False, passing=False, acted=True)
NOT_BEGUN = Verdict(failed=None, passing=True, acted=False)

PASSING = frozenset({408, 425, 500, 502, 503, 504})
SAYS_NOTHING = frozenset({408, 425, 429})


def classify_head(head: Head, failures: Collection[int] = FAILURE_STATUSES) -> Verdict:
    """Return what a response head says.

    Args:
        head: the head.
        failures: statuses that count against the dependency.
    """
    status = head.status
    if head.told_not_to or head.wanted is not None:
        verdict = classify_head(replace(head, told_not_to=False, wanted=None), failures)
        passing = verdict.passing if head.wanted is None else head.wanted
        return replace(verdict, passing=passing, told_not_to=head.told_not_to)
    if status < 400:
        return OK
    if head.refused:
        return TOO_LARGE if status == 413 else NOT_BEGUN
    failed = True if status in failures else None if status in SAYS_NOTHING else False
    passing = status in PASSING or (status == 429 and head.retry_after is not None)
    return Verdict(failed=failed, passing=passing, acted=status != 425)


def classify_failure(failure: Failure, *, cut_short: bool) -> Verdict:
    """Return what a failed attempt says.

    Args:
        failure: where and how it failed.
        cut_short: whether the caller's budget ended it long before the time was up that the dependency is usually
            given: that says nothing about the dependency.
    """
    acted = failure.phase not in UNSENT and not failure.refused
    blameless = failure.ours or failure.refused or cut_short
    price = TIMEOUT_PRICE if failure.timed_out else PRICE
    return Verdict(None if blameless else True, failure.wanted is not False, acted, price)


def asked(rule: Callable[[Any], object], outcome: object) -> bool:
    """Ask the user's own rule about what may pass. It runs without a lock, and what it raises ends the call.

    Raises:
        TypeError: it returned something else than True or False.
    """
    answer = rule(outcome)
    if not isinstance(answer, bool):
        raise TypeError(f"RetryPolicy.retry_if returned {answer!r}: it must return True or False")
    return answer


def classify_exception(error: BaseException, exclude: Collection[type[BaseException]] = ()) -> bool | None:
    """Return whether an exception of a guarded function is a failure of what it calls; None if it says nothing.

    What cancels or ends the caller (`CancelledError`, `KeyboardInterrupt`, `GeneratorExit`) says nothing, nor do our own
    refusals and deadlines, nor what only ends an iteration.

    Args:
        error: the exception.
        exclude: classes that say nothing either.
    """
    if not isinstance(error, Exception) or isinstance(
        error, (ResilienceError, StopIteration, StopAsyncIteration)
    ):
        return None
    return None if isinstance(error, tuple(exclude)) else True
