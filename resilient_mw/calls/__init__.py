"""F1: outgoing calls, as pure decisions: when to try, when to try again, when not to ask at all."""

from resilient_mw.calls.adaptive import AdaptivePolicy
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.fallback import Fallback
from resilient_mw.calls.hedge import HedgePolicy
from resilient_mw.calls.key import IdempotencyKeys
from resilient_mw.calls.ownership import RetryOwnership
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.calls.timeout import TimeoutPolicy

__all__ = [
    "AdaptivePolicy",
    "BulkheadPolicy",
    "Fallback",
    "HedgePolicy",
    "IdempotencyKeys",
    "RetryOwnership",
    "ThrottlePolicy",
    "TimeoutPolicy",
]
