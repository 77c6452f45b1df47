"""What is told to whom: our headers go to the dependencies they are meant for, and to nobody else."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.calls.dependency import Dependency
from resilient_mw.runtime.context import current
from resilient_mw.testing import ScriptedASGI
from tests.integrations.httpx_wires import Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, Received, head

FIELD = "x-request-timeout-ms"


def serve(connection: Connection) -> None:
    while (request := connection.request()) is not None:
        if request.path.startswith("/to?"):
            connection.answer(307, b"", f"Location: {request.path.removeprefix('/to?')}")
        else:
            connection.answer()


def told(request: Received, field: str = FIELD) -> list[int]:
    return [int(value) for value in request.all(field)]


@every_wire
def test_the_dependency_is_told_what_is_left_less_the_reserve(wire: Wire) -> None:
    with RawServer(serve) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*", reserve=1.0, timeout=20.0)])
        with current().within(10.0):
            wire.get(server.url + "/")
        (left,) = told(server.requests[0])
        assert 7000 <= left <= 9000


@every_wire
def test_a_dependency_without_a_bound_is_told_nothing(wire: Wire) -> None:
    with RawServer(serve) as server:
        wire.open(
            [
                Dependency("a", match=f"{server.url}/a", timeout=None, total_timeout=None, breaker=None),
                Dependency("b", match=f"{server.url}/b", deadline_header=None),
                Dependency("c", match=f"{server.url}/c", deadline_header="Time-Left"),
            ]
        )
        for path in ("/a", "/b", "/c"):
            wire.get(server.url + path)
        a, b, c = server.requests
        assert told(a) == told(b) == told(c) == []
        assert len(told(c, "time-left")) == 1


@every_wire
def test_what_is_told_is_a_matter_of_the_last_moment(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(host: Any, port: Any, *rest: Any, **keywords: Any) -> Any:
        server.over.wait(0.15)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with RawServer(serve) as server:
        url = f"http://prices.test:{server.port}"
        wire.open([Dependency("prices", match=f"{url}/*", reserve=0.0, timeout=20.0, connect_timeout=10.0)])
        with current().within(5.0):
            wire.get(url + "/")
        assert told(server.requests[0])[0] <= 4850


@every_wire
@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (["1000"], 1000),
        (["99999"], 10_000),
        (["soon"], 10_000),
        (["3000", "2000"], 2000),
        (["0"], 0),
    ],
)
def test_the_callers_own_field_is_neither_doubled_nor_lengthened(
    wire: Wire, own: list[str], expected: int
) -> None:
    with RawServer(serve) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*", reserve=0.0, timeout=20.0)])
        with current().within(10.0):
            wire.get(server.url + "/", headers=[("X-REQUEST-Timeout-Ms", value) for value in own])
        (left,) = told(server.requests[0])
        assert max(0, expected - 3000) <= left <= expected


@every_wire
def test_the_callers_field_ages_with_the_call(wire: Wire) -> None:
    def slow(connection: Connection) -> None:
        while connection.request() is not None:
            connection.server.over.wait(0.1)
            connection.answer(503)

    with RawServer(slow) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*", reserve=0.0)])
        wire.get(server.url + "/", headers={FIELD: "1900"})
        first, second = server.requests
        assert told(second)[0] <= told(first)[0] - 95


@every_wire
def test_the_callers_field_alone_passes_where_we_have_no_bound(wire: Wire) -> None:
    with RawServer(serve) as server:
        free = Dependency("a", match=f"{server.url}/*", timeout=None, total_timeout=None, breaker=None)
        wire.open([free])
        wire.get(server.url + "/", headers={FIELD: "5000"})
        assert 2500 <= told(server.requests[0])[0] <= 5000


@every_wire
def test_b62_each_hop_of_a_redirect_is_looked_at_anew(wire: Wire) -> None:
    with RawServer(serve) as ours, RawServer(serve) as evil, RawServer(serve) as other:
        wire.open(
            [Dependency("ours", match=f"{ours.url}/*"), Dependency("other", match=f"{other.url}/*")],
            client={"follow_redirects": True},
        )
        response = wire.get(f"{ours.url}/to?{evil.url}/to?{other.url}/end")
        assert response.status_code == 200
        assert [len(told(server.requests[0])) for server in (ours, evil, other)] == [1, 0, 1]
        assert FIELD not in response.request.headers


@every_wire
def test_b62_other_ports_hosts_and_user_information_are_somebody_else(wire: Wire) -> None:
    with RawServer(serve) as ours, RawServer(serve) as evil:
        wire.open([Dependency("ours", match=f"http://127.0.0.1:{ours.port}/v1/*")])
        own = f"127.0.0.1:{ours.port}"
        urls = [
            f"http://{own}/v1/a",
            f"http://{own}/v1/../b",
            f"http://localhost:{ours.port}/v1/a",
            f"http://{own}@127.0.0.1:{evil.port}/v1/a",
            f"http://127.0.0.1:{evil.port}/v1/a?http://{own}/v1/",
        ]
        for url in urls:
            wire.get(url)
        assert [bool(told(request)) for request in ours.requests] == [True, False, False]
        assert [bool(told(request)) for request in evil.requests] == [False, False]


@every_wire
def test_b62_another_scheme_is_somebody_else(wire: Wire) -> None:
    with RawServer(serve) as server:
        wire.open([Dependency("ours", match=f"https://127.0.0.1:{server.port}/*")])
        with current().within(1.0):
            wire.get(server.url + "/a")
        assert told(server.requests[0]) == []


@every_wire
def test_b62_what_goes_to_nobody_of_ours_passes_as_it_is(wire: Wire) -> None:
    """Neither the budget of the request that is served nor anything else is told; the caller's own field is his."""
    with RawServer(serve) as ours, RawServer(serve) as evil:
        wire.open([Dependency("ours", match=f"{ours.url}/*")], client={"follow_redirects": True})
        with current().within(1.0):
            wire.get(evil.url + "/a", headers={FIELD: "77777"})
            wire.get(f"{ours.url}/to?{evil.url}/b")
            wire.get(evil.url + "/c")
        own, redirected, plain = evil.requests
        assert told(own) == [77777]
        assert {name for name, _ in redirected.headers} == {name for name, _ in plain.headers}
        assert told(plain) == []


@every_wire
def test_b62_the_field_of_the_request_that_is_served_is_never_copied(wire: Wire) -> None:
    """It is computed anew for each call, from what is left by now."""
    with RawServer(serve) as server:
        wire.open([Dependency("ours", match=f"{server.url}/*", reserve=0.0, timeout=20.0)])

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await asyncio.sleep(0.1)
            if wire.is_async:
                await wire.client.get(server.url + "/")
            else:
                await asyncio.to_thread(wire.client.get, server.url + "/")
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async def request() -> int:
            served: Any = ResilienceMiddleware(app, ServerPolicy())
            return (await ScriptedASGI(served, headers=[(FIELD, "9000")]).run()).status

        assert (wire.run(request()) if wire.is_async else asyncio.run(request())) == 200
        (left,) = told(server.requests[0])
        assert 5000 <= left <= 8900


@every_wire
def test_the_request_of_the_caller_is_not_changed(wire: Wire) -> None:
    with RawServer(serve) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*")])
        request = wire.client.build_request(
            "GET", server.url + "/", headers={"X-Own": "1"}, extensions={"own": 1}
        )
        headers, extensions = list(request.headers.raw), dict(request.extensions)
        response = wire.run(wire.client.send(request))
        assert (request.headers.raw, request.extensions) == (headers, extensions)
        assert response.request is request
        assert server.requests[0].all("x-own") == ["1"]


@every_wire
def test_the_callers_trace_and_extensions_are_passed_on(wire: Wire) -> None:
    events: list[str] = []

    def note(event: str, info: Any) -> None:
        events.append(event)

    async def note_async(event: str, info: Any) -> None:
        events.append(event)

    with RawServer(serve) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*")])
        wire.get(server.url + "/", extensions={"trace": note_async if wire.is_async else note})
        assert "http11.send_request_headers.started" in events
        assert "connection.connect_tcp.complete" in events


# -- proxies ---------------------------------------------------------------------------------------------------------------


@every_wire
def test_a_proxy_passes_the_field_on_to_the_dependency(wire: Wire) -> None:
    with RawServer(serve) as proxy:
        wire.open(
            [Dependency("prices", match="http://prices.test/*", reserve=0.0, timeout=20.0)], proxy=proxy.url
        )
        with current().within(10.0):
            assert wire.get("http://prices.test/a").status_code == 200
        (request,) = proxy.requests
        assert request.path == "http://prices.test/a"
        assert 7000 <= told(request)[0] <= 10_000


@every_wire
def test_a_tunnel_is_no_dependency(wire: Wire) -> None:
    def refuse(connection: Connection) -> None:
        connection.request()
        connection.answer(502)

    with RawServer(refuse) as proxy:
        dependency = Dependency("prices", match="https://prices.test/*")
        wire.open([dependency], proxy=proxy.url)
        with pytest.raises(wire.lib.ProxyError):
            wire.request("POST", "https://prices.test/a")
        # The dependency has not seen anything, so a POST was repeated, and the proxy was told nothing.
        assert [(request.method, told(request)) for request in proxy.requests] == [("CONNECT", [])] * 2


@every_wire
def test_a_tunnel_that_never_opens_is_bounded(wire: Wire) -> None:
    def drip(connection: Connection) -> None:
        connection.request()
        connection.drip(head(200, 0, *(f"X-{index}: {index}" for index in range(100))))

    with RawServer(drip) as proxy:
        wire.open([Dependency("prices", match="https://prices.test/*", retry=None)], proxy=proxy.url)
        with current().within(0.2), pytest.raises(wire.lib.TimeoutException) as caught:
            wire.get("https://prices.test/a")
        assert getattr(caught.value, "phase", None) == "connect"
