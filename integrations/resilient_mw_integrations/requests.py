"""An adapter for requests: retries, breaker, bulkhead and one deadline around the calls to your dependencies.

Example:
    import requests
    from resilient_mw import Dependency
    from resilient_mw_integrations.requests import ResilientAdapter

    prices = Dependency("prices", match="http://prices/*")
    session = requests.Session()
    session.mount("http://", ResilientAdapter([prices]))

Requests that match no dependency pass as if the adapter were an `HTTPAdapter`, and get no header of ours; each hop of a
redirect is looked at anew. A call gets what is left of the request that it is made for (`current()`, `budget()`), outside
of both the dependency's `total_timeout`. Retries are the dependency's matter: `max_retries` counts for other requests.

The deadline holds whatever the server does, the body included, with the exception of name resolution, which cannot be
interrupted. With `stream=True` a response holds its bulkhead slot until its body has ended or it is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import EmptyPoolError

from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import ResilienceError
from resilient_mw.transport import errors
from resilient_mw_integrations._urllib3_bodies import ResilientResponse
from resilient_mw_integrations._urllib3_calls import Urllib3Calls, Urllib3Library, equip

__all__ = ["BudgetTooSmall", "CallExpired", "CallRefused", "ResilientAdapter", "TransportClosed"]


class CallExpired(errors.Expired, requests.exceptions.Timeout):
    """The deadline passed before the call was over: `DeadlineExceeded` and `requests.Timeout` at once."""


class CallRefused(errors.Refused, requests.exceptions.ConnectionError):
    """The circuit is open or the bulkhead full: `resilient_mw.CallRefused` and `requests.ConnectionError` at once."""


class BudgetTooSmall(CallRefused, requests.exceptions.Timeout):
    """Too little of the budget was left to begin: `resilient_mw.CallRefused` and `requests.Timeout` at once."""


class TransportClosed(errors.Closed, requests.exceptions.ConnectionError):
    """The adapter was closed while a call waited for its next attempt."""


LIBRARY = Urllib3Library(
    "requests",
    expired=CallExpired,
    refused=CallRefused,
    too_small=BudgetTooSmall,
    closed=TransportClosed,
)


class ResilientAdapter(HTTPAdapter):
    """An `HTTPAdapter` that makes calls to dependencies. See the module.

    Args:
        dependencies: who is called; the first one that matches a request is the one.
        options: as of `requests.adapters.HTTPAdapter`.

    Raises:
        ValueError: the dependencies do not go together.
    """

    def __init__(self, dependencies: Sequence[Dependency], **options: Any) -> None:
        self._calls = Urllib3Calls(LIBRARY, dependencies)
        super().__init__(**options)

    def __getstate__(self) -> Any:
        raise TypeError(
            "a ResilientAdapter cannot be pickled or copied: its dependencies hold the state of this process. Mount a new one"
        )

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """Make the pools."""
        super().init_poolmanager(*args, **options)
        equip(self._calls, self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: Any) -> Any:
        """Return the pools of a proxy."""
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **options)
        if not known:
            equip(self._calls, manager)
        return manager

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        """Send a request and return the response.

        Raises:
            requests.RequestException: those that are of `resilient_mw` as well are listed in `transport/errors.py`.
        """
        try:
            response = super().send(request, *args, **options)
        except requests.exceptions.RequestException as error:
            # The adapter below takes every OSError for one of the network, and ours are one, too.
            inner = error.args[0] if error.args else None
            told: Any = error
            if not isinstance(inner, ResilienceError):
                told.phase = getattr(error, "phase", None) or getattr(inner, "phase", None)
                raise
            told = inner
            told.request = request
            raise told from told.__cause__
        except EmptyPoolError as error:
            told = requests.exceptions.ConnectionError(error, request=request)
            told.phase = getattr(error, "phase", None)
            raise told from error
        raw = response.raw
        if isinstance(raw, ResilientResponse) and raw.resilient_body is not None:
            raw.resilient_body.request = request
        return response

    def close(self) -> None:
        """Close what waits in the pools; calls that wait for their next attempt end at once with an error."""
        self._calls.close()
        super().close()
