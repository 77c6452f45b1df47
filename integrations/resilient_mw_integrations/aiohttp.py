"""A middleware for aiohttp's client: retries, breaker, bulkhead and one deadline around the calls to your dependencies.

Example:
    import aiohttp
    from resilient_mw import Dependency
    from resilient_mw_integrations.aiohttp import ResilientMiddleware

    prices = Dependency("prices", match="http://prices/*")
    session = aiohttp.ClientSession(middlewares=[ResilientMiddleware([prices])])

It needs aiohttp 3.12, the first with client middlewares: only there a request can be sent again, and each hop of a redirect
is seen. Put it last, next to the network: a middleware after it is asked anew for each attempt, one before it once.

Requests that match no dependency pass as if it were not there, and get no header of ours. A call gets what is left of the
request that it is made for (`current()`, `budget()`), outside of both the dependency's `total_timeout`; the timeouts of
the session count as well. The response holds its bulkhead slot until its body has come in, or it is closed.
"""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp

from resilient_mw.calls.dependency import Dependency
from resilient_mw.transport import errors
from resilient_mw.transport.aio import AsyncCalls
from resilient_mw_integrations._aiohttp_calls import (
    OWN,
    AiohttpLibrary,
    Sender,
    Sending,
    keep_from_repeating,
    pass_on,
    stream_of,
)
from resilient_mw_integrations._facade import Headers, Request, Response, Url

__all__ = ["BudgetTooSmall", "CallExpired", "CallRefused", "ResilientMiddleware", "TransportClosed"]


class CallExpired(errors.Expired, aiohttp.ServerTimeoutError):
    """The deadline passed before the call was over: `DeadlineExceeded` and `aiohttp.ServerTimeoutError` at once."""


class CallRefused(errors.Refused, aiohttp.ClientConnectionError):
    """The circuit is open or the bulkhead full: `resilient_mw.CallRefused` and `aiohttp.ClientConnectionError` at once."""


class BudgetTooSmall(CallRefused, aiohttp.ServerTimeoutError):
    """Too little of the budget was left to begin: `CallRefused` and `aiohttp.ServerTimeoutError` at once."""


class TransportClosed(errors.Closed, aiohttp.ClientConnectionError):
    """The middleware was closed while a call waited for its next attempt."""


LIBRARY = AiohttpLibrary(
    expired=CallExpired, refused=CallRefused, too_small=BudgetTooSmall, closed=TransportClosed
)


class ResilientMiddleware:
    """A client middleware. See the module.

    Args:
        dependencies: who is called; the first one that matches a request is the one.

    Raises:
        ValueError: the dependencies do not go together.
    """

    def __init__(self, dependencies: Sequence[Dependency]) -> None:
        self._calls: _Calls = _Calls(LIBRARY, dependencies, Sender(), bounded=False)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response.

        Raises:
            aiohttp.ClientError: those that are of `resilient_mw` as well are listed in `transport/errors.py`.
        """
        url = Url(str(request.url))
        if not self._calls.wants(url):
            return await pass_on(request, handler)
        keep_from_repeating(request)
        call = Request(
            request.method,
            url,
            headers=Headers(request.headers.items()),
            stream=stream_of(request),
            extensions={OWN: Sending(request, handler).attempt},
        )
        answer: aiohttp.ClientResponse = (await self._calls.handle_async_request(call)).original
        return answer

    async def aclose(self) -> None:
        """Let calls that wait for their next attempt end at once with an error. The session is closed by its owner."""
        await self._calls.aclose()


class _Calls(AsyncCalls[Request, Response]):
    def wants(self, url: Url) -> bool:
        """Return whether a request goes to one of the dependencies."""
        return self._directory.find(url) is not None
