"""Clients that do not hedge say so, and make their attempts one after the other."""

from __future__ import annotations

from time import monotonic

import pytest
import requests

from resilient_mw.calls import HedgePolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw_integrations.requests import ResilientAdapter
from resilient_mw_integrations.urllib3 import ResilientPoolManager
from tests.integrations.hedge_server import HedgeServer


def hedged(origin: str) -> Dependency:
    return Dependency("prices", origin + "/*", hedge=HedgePolicy(delay=0.05))


def test_requests_does_not_hedge_and_says_so() -> None:
    with HedgeServer(lambda number: 0.3) as server, requests.Session() as session:
        dependency = hedged(server.origin)
        with pytest.warns(
            ResilienceWarning, match=r"Dependency\('prices'\).hedge is not used by this client"
        ):
            session.mount("http://", ResilientAdapter([dependency]))
        began = monotonic()
        assert session.get(server.origin + "/a").status_code == 200
        assert monotonic() - began > 0.25
        assert len(server.requests) == 1
        figures = dependency.snapshot().hedges
        assert figures is not None
        assert (figures.made, dict(figures.refused)) == (0, {})


def test_urllib3_does_not_hedge_and_says_so() -> None:
    with HedgeServer(lambda number: 0.3) as server:
        with pytest.warns(ResilienceWarning, match="hedge is not used by this client"):
            manager = ResilientPoolManager([hedged(server.origin)])
        assert manager.request("GET", server.origin + "/a").status == 200
        assert len(server.requests) == 1


@pytest.mark.asyncio
async def test_aiohttp_does_not_hedge_and_says_so() -> None:
    import aiohttp

    from resilient_mw_integrations.aiohttp import ResilientMiddleware

    with HedgeServer(lambda number: 0.3) as server:
        with pytest.warns(ResilienceWarning, match="hedge is not used by this client"):
            middleware = ResilientMiddleware([hedged(server.origin)])
        async with (
            aiohttp.ClientSession(middlewares=[middleware]) as session,
            session.get(server.origin + "/a") as answer,
        ):
            assert answer.status == 200
        assert len(server.requests) == 1
