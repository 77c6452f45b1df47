"""The closed set of refusal reasons and the one table of what each means on the wire.

Everything that says no (both middlewares, the metrics, later the clients) reads this table; nothing else may
decide a status or whether `Retry-After` is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType


class Reason(StrEnum):
    """Why a request was not answered by the application. The values are stable labels."""

    QUEUE_FULL = "queue_full"
    """No slot was free and no place in the wait queue was left for this class."""
    PUSHED_OUT = "pushed_out"
    """It waited, and a request of a higher class took its place in a full queue."""
    TENANT_SHARE = "tenant_share"
    """It waited, its tenant with more requests than any other, and a request of another one took its place."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited as long as it may and no slot came free."""
    PREDICTED_LATE = "predicted_late"
    """Predicted wait plus the route's typical run time exceed what is left of its deadline."""
    EXEMPT_LIMIT = "exempt_limit"
    """More exempt requests (health checks) at once than their own hard bound."""
    WEBSOCKET_LIMIT = "websocket_limit"
    """As many websockets are open as may be, or as this class may have."""
    STREAM_LIMIT = "stream_limit"
    """As many requests as may be are open on routes whose slot is held for the head of the response only."""
    QUOTA_EXCEEDED = "quota_exceeded"
    """Its tenant has sent as many requests as its quota allows."""
    QUOTA_UNKNOWN = "quota_unknown"
    """What counts the quotas is away, and the policy lets nobody pass then."""
    OVERLOADED = "overloaded"
    """The service is overloaded, and the lowest class waits in none but its own few places of the queue."""
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    """The circuit of a dependency that the route cannot do without is open."""
    DRAINING = "draining"
    """The server is about to stop and takes no new work."""
    EXPIRED_ON_ARRIVAL = "expired_on_arrival"
    """The deadline that the caller sent had already passed."""
    INSUFFICIENT_BUDGET = "insufficient_budget"
    """The budget that the caller sent is below the smallest useful one."""
    EXPIRED_IN_QUEUE = "expired_in_queue"
    """The deadline passed while it waited for a slot."""
    BODY_TOO_LARGE = "body_too_large"
    """The request body is larger than the route takes."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The deadline passed while the application worked on it."""
    CIRCUIT_OPEN = "circuit_open"
    """A dependency that fails is not asked at the moment."""
    BULKHEAD_FULL = "bulkhead_full"
    """As many calls to a dependency are under way as it may get."""
    THROTTLED = "throttled"
    """A dependency refuses most of what it gets, so a part of it is not sent."""
    IDEMPOTENCY_KEY_MISSING = "idempotency_key_missing"
    """The route asks for an idempotency key and the request has none."""
    IDEMPOTENCY_KEY_INVALID = "idempotency_key_invalid"
    """The idempotency key is malformed, too long, or there are several."""
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    """Another request, not a repeat of this one, has used the idempotency key."""
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    """The first request with this idempotency key is still at work."""
    IDEMPOTENCY_BODY_NOT_KEPT = "idempotency_body_not_kept"
    """The work of this idempotency key is done; its answer was too large to be kept."""
    IDEMPOTENCY_UNKNOWN = "idempotency_unknown"
    """The work of this idempotency key was begun, and whether it was done is not known."""
    IDEMPOTENCY_STORE_UNAVAILABLE = "idempotency_store_unavailable"
    """What keeps the idempotency keys is away, and the policy lets nothing run without it."""
    IDEMPOTENCY_TOO_MANY = "idempotency_too_many"
    """Its caller has as many live idempotency keys as it may."""
    IDEMPOTENCY_NO_CALLER = "idempotency_no_caller"
    """The route asks for an idempotency key, and whose it would be is not known."""


OF_KEYS = frozenset(reason for reason in Reason if reason.startswith("idempotency_"))
"""The reasons by which an application, too, can refuse (`IdempotencyRefused`)."""


class RetryAfter(Enum):
    """Where the value of a `Retry-After` header comes from."""

    NEVER = "never"
    """No header: coming back with the same budget would not help."""
    DRAIN = "drain"
    """The backlog divided by the measured drain rate, jittered."""
    TRIAL = "trial"
    """The seconds until the dependency is tried again, jittered."""
    QUOTA = "quota"
    """The instant at which the quota has room again."""
    RUN = "run"
    """When the run of the same work has ended, as long as such runs take, or when its lease is over."""


@dataclass(frozen=True, slots=True)
class RefusalRule:
    """What one reason means on the wire.

    Attributes:
        status: the HTTP status code.
        title: the RFC 9457 title, the same for all occurrences.
        retry_after: where the `Retry-After` value comes from.
        executed: whether the application may have begun the work. Only a refusal that was *not* executed carries
            `X-Refusal-Reason`, so that a client may repeat it whatever the method.
        close: whether the connection should be closed (HTTP/1.1), because no later request on it will be served.
    """

    status: int
    title: str
    retry_after: RetryAfter
    executed: bool = False
    close: bool = False


REFUSAL_RULES: Mapping[Reason, RefusalRule] = MappingProxyType(
    {
        Reason.QUEUE_FULL: RefusalRule(503, "The wait queue is full", RetryAfter.DRAIN),
        Reason.PUSHED_OUT: RefusalRule(
            503, "A request of a higher class took the place in the queue", RetryAfter.DRAIN
        ),
        Reason.TENANT_SHARE: RefusalRule(
            503, "A request of another tenant took the place in the queue", RetryAfter.DRAIN
        ),
        Reason.QUEUE_TIMEOUT: RefusalRule(503, "No slot came free in time", RetryAfter.DRAIN),
        Reason.PREDICTED_LATE: RefusalRule(503, "The answer would come after the deadline", RetryAfter.DRAIN),
        Reason.EXEMPT_LIMIT: RefusalRule(503, "Too many exempt requests at once", RetryAfter.DRAIN),
        Reason.WEBSOCKET_LIMIT: RefusalRule(503, "Too many open websockets", RetryAfter.DRAIN),
        Reason.STREAM_LIMIT: RefusalRule(503, "Too many open streams", RetryAfter.DRAIN),
        Reason.QUOTA_EXCEEDED: RefusalRule(429, "The quota of the tenant is used up", RetryAfter.QUOTA),
        Reason.QUOTA_UNKNOWN: RefusalRule(503, "The quota of the tenant cannot be checked", RetryAfter.QUOTA),
        Reason.OVERLOADED: RefusalRule(503, "The service sheds its lowest class", RetryAfter.DRAIN),
        Reason.DEPENDENCY_UNAVAILABLE: RefusalRule(
            503, "A dependency that this needs is not available", RetryAfter.TRIAL
        ),
        Reason.DRAINING: RefusalRule(503, "The server is shutting down", RetryAfter.DRAIN, close=True),
        Reason.EXPIRED_ON_ARRIVAL: RefusalRule(504, "The deadline had passed on arrival", RetryAfter.NEVER),
        Reason.INSUFFICIENT_BUDGET: RefusalRule(
            504, "The budget is too small to be useful", RetryAfter.NEVER
        ),
        Reason.EXPIRED_IN_QUEUE: RefusalRule(504, "The deadline passed in the wait queue", RetryAfter.NEVER),
        Reason.BODY_TOO_LARGE: RefusalRule(413, "The request body is too large", RetryAfter.NEVER),
        Reason.CIRCUIT_OPEN: RefusalRule(
            503, "A dependency is not asked at the moment", RetryAfter.NEVER, executed=True
        ),
        Reason.BULKHEAD_FULL: RefusalRule(
            503, "Too many calls to a dependency at once", RetryAfter.NEVER, executed=True
        ),
        Reason.THROTTLED: RefusalRule(
            503, "A dependency refuses most of what it gets", RetryAfter.NEVER, executed=True
        ),
        Reason.DEADLINE_EXCEEDED: RefusalRule(504, "The deadline passed", RetryAfter.NEVER, executed=True),
        Reason.IDEMPOTENCY_KEY_MISSING: RefusalRule(400, "An idempotency key is required", RetryAfter.NEVER),
        Reason.IDEMPOTENCY_KEY_INVALID: RefusalRule(
            400, "The idempotency key is malformed", RetryAfter.NEVER
        ),
        Reason.IDEMPOTENCY_KEY_REUSED: RefusalRule(
            422, "The idempotency key was used for another request", RetryAfter.NEVER
        ),
        Reason.IDEMPOTENCY_IN_PROGRESS: RefusalRule(
            409, "The first request with this idempotency key is at work", RetryAfter.RUN, executed=True
        ),
        Reason.IDEMPOTENCY_BODY_NOT_KEPT: RefusalRule(
            409, "The work is done and its answer was not kept", RetryAfter.NEVER, executed=True
        ),
        Reason.IDEMPOTENCY_UNKNOWN: RefusalRule(
            409, "Whether the work was done is not known", RetryAfter.NEVER, executed=True
        ),
        Reason.IDEMPOTENCY_STORE_UNAVAILABLE: RefusalRule(
            503, "Idempotency keys cannot be checked", RetryAfter.RUN
        ),
        Reason.IDEMPOTENCY_TOO_MANY: RefusalRule(
            429, "Too many idempotency keys of one caller", RetryAfter.QUOTA
        ),
        Reason.IDEMPOTENCY_NO_CALLER: RefusalRule(
            400, "The idempotency key has no known caller", RetryAfter.NEVER
        ),
    }
)

REFUSAL_HEADER = "X-Refusal-Reason"
"""Names the reason of an answer to a request whose work was not begun."""


def problem_type(reason: Reason) -> str:
    """Return the RFC 9457 `type` of a reason: a stable identifier, not a link."""
    return f"urn:resilient-mw:refusal:{reason.value}"
