"""A dependency behind nginx: what the proxy says in its place, and what it passes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import Wire, every_wire, timed
from tests.integrations.nginx_front import nginx
from tests.transport.tcp_server import Connection, RawServer

pytestmark = every_wire


def script(connection: Connection) -> None:
    """Answer with 200, or not at all."""
    while (request := connection.request()) is not None:
        if request.path.startswith("/slow"):
            connection.hang()
            return
        connection.answer()


class Site:
    """nginx, and what is behind it."""

    def __init__(self, url: str, behind: RawServer, elsewhere: RawServer) -> None:
        self.url = url
        self.behind = behind
        self.elsewhere = elsewhere

    def dependency(self, **keywords: Any) -> Dependency:
        keywords.setdefault("retry", RetryPolicy(attempts=3, backoff_base=0.0, budget_per_second=1000.0))
        return Dependency("site", match=f"{self.url}/*", **keywords)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with (
        RawServer(script) as behind,
        RawServer(script) as elsewhere,
        nginx(tmp_path, behind.port, f"{elsewhere.url}/there") as url,
    ):
        yield Site(url, behind, elsewhere)


def test_what_is_left_reaches_the_service_behind_it(wire: Wire, site: Site) -> None:
    wire.open([site.dependency()])
    with current().within(1.0):
        assert wire.get(f"{site.url}/item").status_code == 200
    (request,) = site.behind.requests
    (told,) = request.all("x-request-timeout-ms")
    assert 0 < int(told) <= 1000
    assert len(request.all("x-request-start")) == 1


def test_connections_that_it_closes_after_three_requests_cost_nothing(wire: Wire, site: Site) -> None:
    dependency = site.dependency(breaker=BreakerPolicy(minimum_calls=1, failure_ratio=0.001))
    wire.open([dependency])
    for number in range(20):
        assert wire.get(f"{site.url}/item/{number}").status_code == 200
    snapshot = dependency.snapshot()
    assert (snapshot.attempts, snapshot.breaker) == ({"2xx": 20}, BreakerState.CLOSED.value)


@pytest.mark.parametrize(("path", "status"), [("/nobody/", 502), ("/slow", 504)])
def test_it_says_that_nobody_answers(wire: Wire, site: Site, path: str, status: int) -> None:
    dependency = site.dependency(breaker=None)
    wire.open([dependency])
    assert wire.get(site.url + path).status_code == status
    assert dependency.snapshot().attempts == {"5xx": 3}
    assert wire.request("POST", site.url + path, content=b"once").status_code == status
    assert dependency.snapshot().attempts == {"5xx": 4}, "the service may have acted"
    assert dependency.snapshot().retries_refused == {"attempts": 1, "unsafe": 1}


def test_the_circuit_opens_on_what_it_says(wire: Wire, site: Site) -> None:
    dependency = site.dependency(retry=None, breaker=BreakerPolicy(window=4, minimum_calls=4))
    wire.open([dependency])
    for _ in range(4):
        assert wire.get(f"{site.url}/nobody/").status_code == 502
    with pytest.raises(CallRefused, match="not asked at the moment"):
        wire.get(f"{site.url}/item")


def test_the_deadline_comes_before_its_own_timeout(wire: Wire, site: Site) -> None:
    wire.open([site.dependency(retry=None)])
    with current().within(0.2):
        error, seconds = timed(lambda: wire.get(f"{site.url}/slow"))
    assert isinstance(error, DeadlineExceeded)
    assert getattr(error, "phase", None) == "head"
    assert seconds < 2.0


def test_a_body_that_is_too_large_is_no_failure(wire: Wire, site: Site) -> None:
    dependency = site.dependency()
    wire.open([dependency])
    for _ in range(3):  # It may close the connection while the body is still being sent, or answer before.
        try:
            assert wire.request("PUT", f"{site.url}/small/", content=b"x" * 100_000).status_code == 413
        except wire.lib.WriteError:
            continue
    assert site.behind.requests == []


def test_its_rate_limit_counts_against_the_site(wire: Wire, site: Site) -> None:
    dependency = site.dependency(breaker=None)
    wire.open([dependency])
    assert wire.get(f"{site.url}/limited/").status_code == 200
    assert wire.get(f"{site.url}/limited/").status_code == 503  # nothing says that it was not begun
    assert dependency.snapshot().attempts == {"2xx": 1, "5xx": 3}


def test_b62_a_redirect_to_somebody_else_takes_no_header_of_ours_along(wire: Wire, site: Site) -> None:
    wire.open([site.dependency()], client={"follow_redirects": True})
    with current().within(5.0):
        assert wire.get(f"{site.url}/elsewhere").status_code == 200
    (request,) = site.elsewhere.requests
    assert request.path == "/there"
    assert not [name for name, _ in request.headers if "timeout" in name or "retry" in name]
