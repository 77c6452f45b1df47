"""Overload protection, deadlines and cancellation for ASGI and WSGI services."""

from resilient_mw._version import __version__
from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import Band, OverloadPolicy
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.deadline import Deadline
from resilient_mw.core.errors import (
    CallRefused,
    DeadlineExceeded,
    RequestCancelled,
    ResilienceError,
    ResilienceWarning,
    UnsupportedEventLoop,
)
from resilient_mw.core.marks import deadline, exempt, priority
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import RouteRule
from resilient_mw.runtime.context import RequestContext, budget, current
from resilient_mw.runtime.degrade import degradable
from resilient_mw.runtime.guarding import use_guards

use_guards()
del use_guards

__all__ = [
    "Band",
    "BreakerPolicy",
    "CallRefused",
    "CancelReason",
    "Deadline",
    "DeadlineExceeded",
    "Dependency",
    "OverloadPolicy",
    "PriorityClass",
    "Reason",
    "RequestCancelled",
    "RequestContext",
    "ResilienceError",
    "ResilienceWarning",
    "RetryPolicy",
    "RouteRule",
    "ServerPolicy",
    "UnsupportedEventLoop",
    "__version__",
    "budget",
    "current",
    "deadline",
    "degradable",
    "exempt",
    "priority",
]
