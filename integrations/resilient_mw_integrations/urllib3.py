"""Pools for urllib3: retries, breaker, bulkhead and one deadline around the calls to your dependencies.

Example:
    from resilient_mw import Dependency
    from resilient_mw_integrations.urllib3 import ResilientPoolManager

    prices = Dependency("prices", match="http://prices/*")
    http = ResilientPoolManager([prices])
    http.request("GET", "http://prices/list")

Requests that match no dependency pass as if nothing were here, and get no header of ours; each hop of a redirect is looked
at anew. Retries are the dependency's matter: of a `Retry` of yours its redirects count, and whether the last error comes
in a `MaxRetryError`.

The deadline holds whatever the server does, with the exception of name resolution, which cannot be interrupted.
`wrap()` does the same to a manager that exists, also to that of a proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import urllib3

from resilient_mw.calls.dependency import Dependency
from resilient_mw.transport import errors
from resilient_mw_integrations._urllib3_calls import Urllib3Calls, Urllib3Library, equip

__all__ = ["BudgetTooSmall", "CallExpired", "CallRefused", "ResilientPoolManager", "TransportClosed", "wrap"]


class CallExpired(errors.Expired, urllib3.exceptions.TimeoutError):
    """The deadline passed before the call was over: `DeadlineExceeded` and urllib3's `TimeoutError` at once."""


class CallRefused(errors.Refused, urllib3.exceptions.HTTPError):
    """The circuit is open or the bulkhead full: `resilient_mw.CallRefused` and urllib3's `HTTPError` at once."""


class BudgetTooSmall(CallRefused, urllib3.exceptions.TimeoutError):
    """Too little of the budget was left to begin: `resilient_mw.CallRefused` and urllib3's `TimeoutError` at once."""


class TransportClosed(errors.Closed, urllib3.exceptions.HTTPError):
    """The manager was cleared while a call waited for its next attempt."""


LIBRARY = Urllib3Library(
    "urllib3", expired=CallExpired, refused=CallRefused, too_small=BudgetTooSmall, closed=TransportClosed
)


class ResilientPoolManager(urllib3.PoolManager):
    """A `PoolManager` that makes calls to dependencies. See the module.

    Args:
        dependencies: who is called; the first one that matches a request is the one.
        options: as of `urllib3.PoolManager`.

    Raises:
        ValueError: the dependencies do not go together.
    """

    def __init__(self, dependencies: Sequence[Dependency], **options: Any) -> None:
        super().__init__(**options)
        self._calls = Urllib3Calls(LIBRARY, dependencies)
        equip(self._calls, self)

    def clear(self) -> None:
        """Close what waits in the pools; calls that wait for their next attempt end at once with an error."""
        self._calls.close()
        super().clear()


ManagerT = TypeVar("ManagerT", bound=urllib3.PoolManager)


def wrap(manager: ManagerT, dependencies: Sequence[Dependency]) -> ManagerT:
    """Let an existing manager make calls to dependencies; return it. Its pools so far are forgotten.

    Clearing it wakes nobody who waits for his next attempt.

    Raises:
        ValueError: the dependencies do not go together, or the manager is wrapped already.
    """
    equip(Urllib3Calls(LIBRARY, dependencies), manager)
    return manager
