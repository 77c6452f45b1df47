"""Why a retry is not made."""

from __future__ import annotations

from enum import StrEnum


class RetryRefusal(StrEnum):
    """Why a failed attempt was not followed by another one. The values are stable labels."""

    ATTEMPTS = "attempts"
    """The most attempts of one call were made."""
    UNSAFE = "unsafe"
    """The dependency may have acted, the method is not idempotent and the request carries no key."""
    BODY = "body"
    """The request body cannot be sent a second time."""
    RETRY_AFTER = "retry_after"
    """The dependency asked for more patience than the policy has."""
    DEADLINE = "deadline"
    """Back-off, a typical attempt and the reserve do not fit into what is left."""
    CIRCUIT_OPEN = "circuit_open"
    """The circuit will still be open then, or was when the back-off was over."""
    BULKHEAD_FULL = "bulkhead_full"
    """When the back-off was over, as many attempts were under way as the bulkhead allows."""
    THROTTLED = "throttled"
    """When the back-off was over, the throttle refused it: the dependency refuses most of what it gets."""
    BUDGET = "budget"
    """The retry budget is spent."""
    NOT_OWNER = "not_owner"
    """A layer above says that it retries."""
    TOLD_NOT_TO = "told_not_to"
    """The answer says that a retry is useless."""
