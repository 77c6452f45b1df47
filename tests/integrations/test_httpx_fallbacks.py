"""Fallbacks of httpx clients: the last good answer, a function, a value; never for writes."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from resilient_mw import BreakerPolicy, CallRefused, Dependency, ResilienceWarning, budget
from resilient_mw.calls import Fallback
from tests.integrations.httpx_wires import KINDS, Wire
from tests.transport.tcp_server import Connection, RawServer

URL = "http://prices/list"


class Service:
    """What an inner transport answers, and how many of its bodies are open."""

    def __init__(self, kind: tuple[str, str]) -> None:
        self.wire = Wire(kind)
        self.lib = self.wire.lib
        self.status = 200
        self.fields: list[tuple[str, str]] = []
        self.body = b"fresh"
        self.error: type[BaseException] | None = None
        self.asked = 0
        self.open = 0
        service, lib = self, self.lib

        class Body(lib.SyncByteStream, lib.AsyncByteStream):  # type: ignore[name-defined,misc]
            def __init__(self, body: bytes) -> None:
                self.body, self.closed = body, False
                service.open += 1

            def __iter__(self) -> Iterator[bytes]:
                yield from (self.body[:2], self.body[2:])

            async def __aiter__(self) -> AsyncIterator[bytes]:
                for part in self:
                    yield part

            def close(self) -> None:
                service.open -= not self.closed
                self.closed = True

            async def aclose(self) -> None:
                self.close()

        def answer(_: Any) -> Any:
            service.asked += 1
            if service.error is not None:
                raise service.error("away")
            return lib.Response(service.status, headers=service.fields, stream=Body(service.body))

        self.inner = self.wire.handler(answer)

    def prices(self, fallback: Fallback, **options: Any) -> Dependency:
        options.setdefault("retry", None)
        options.setdefault("breaker", None)
        dependency = Dependency("prices", "http://prices/*", fallback=fallback, bulkhead=1, **options)
        self.wire.open([dependency], self.inner)
        return dependency


@pytest.fixture(params=KINDS, ids="-".join)
def service(request: pytest.FixtureRequest) -> Iterator[Service]:
    made = Service(request.param)
    yield made
    made.wire.shut()
    assert made.open == 0


def test_the_last_good_answer_is_served_on_a_failing_one(service: Service) -> None:
    prices = service.prices(Fallback(stale_for=60))
    service.fields = [("Content-Encoding", "gzip"), ("X-Own", "1"), ("Transfer-Encoding", "chunked")]
    service.body = gzip.compress(b"fresh")
    first = service.wire.get(URL)
    assert (first.text, "X-Degraded" in first.headers) == ("fresh", False)
    service.status, service.fields, service.body = 503, [], b"broken"
    stale = service.wire.get(URL)
    assert (stale.status_code, stale.text) == (200, "fresh")
    assert (stale.headers["X-Degraded"], stale.headers["Age"], stale.headers["X-Own"]) == ("stale", "0", "1")
    assert service.open == 0
    assert prices.snapshot().fallbacks == {"stale": 1}
    assert prices.snapshot().in_use == 0
    assert prices.snapshot().attempts == {"2xx": 1, "5xx": 1}


def test_b50_what_is_replaced_is_closed_at_every_exit(service: Service) -> None:
    prices = service.prices(Fallback(value=b"spare"), breaker=BreakerPolicy(window=2, minimum_calls=2))
    service.status = 500
    for _ in range(2):
        assert service.wire.get(URL).headers["X-Degraded"] == "fallback"
        assert (service.open, prices.snapshot().in_use) == (0, 0)
    assert service.wire.get(URL).content == b"spare"
    assert service.asked == 2
    with budget(0.001):
        assert service.wire.get(URL).content == b"spare"
    assert prices.snapshot().refused == {"circuit_open": 1, "insufficient_budget": 1}
    assert prices.snapshot().fallbacks == {"value": 4}


def test_b50_the_last_failing_response_is_readable_where_nothing_stands_in(service: Service) -> None:
    service.prices(Fallback(stale_for=60, function=lambda *_: None))
    service.status, service.body = 503, b"broken"
    answer = service.wire.get(URL)
    assert (answer.status_code, answer.content) == (503, b"broken")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_stands_in_for_a_write(service: Service, method: str) -> None:
    service.prices(Fallback(value=b"spare", function=lambda *_: b"spare", stale_for=60))
    service.wire.get(URL)
    service.status = 503
    assert service.wire.request(method, URL).status_code == 503
    service.error = service.lib.ConnectError
    with pytest.raises(service.lib.ConnectError):
        service.wire.request(method, URL)


def test_a_write_makes_what_was_kept_of_its_address_worthless(service: Service) -> None:
    service.prices(Fallback(stale_for=60))
    service.wire.get(URL)
    service.wire.request("PUT", URL, content=b"new")
    service.status = 503
    assert service.wire.get(URL).status_code == 503


def test_callers_do_not_get_each_others_answers(service: Service) -> None:
    service.prices(Fallback(stale_for=60))
    service.body = b"of one"
    service.wire.get(URL, headers={"Authorization": "one"})
    service.wire.get(URL + "?cookie", headers={"Cookie": "a=1"})
    service.status = 503
    for url in (URL, URL + "?cookie"):
        for headers in ({}, {"Authorization": "one"}, {"Authorization": "two"}, {"Cookie": "a=1"}):
            assert service.wire.get(url, headers=headers).status_code == 503


def test_a_function_is_given_the_error_and_its_answer_is_made_a_response(service: Service) -> None:
    got: list[Exception] = []

    def instead(error: Exception, left: float) -> dict[str, float]:
        got.append(error)
        return {"left": left}

    service.prices(Fallback(function=instead))
    service.status = 503
    answer = service.wire.get(URL)
    assert 0 < answer.json()["left"] <= 10
    assert answer.headers["X-Degraded"] == "fallback"
    service.error = service.lib.ConnectError
    service.wire.get(URL)
    assert [getattr(error, "status", None) for error in got] == [503, None]
    assert isinstance(got[1], service.lib.ConnectError)


def test_a_response_of_a_function_is_passed_on_and_marked(service: Service) -> None:
    service.prices(Fallback(function=lambda *_: service.lib.Response(203, content=b"mine")))
    service.error = service.lib.ReadError
    answer = service.wire.get(URL)
    assert (answer.status_code, answer.content) == (203, b"mine")
    assert answer.headers["X-Degraded"] == "fallback"


@pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError, ZeroDivisionError])
def test_b79_what_is_no_error_of_the_library_passes(service: Service, error: type[BaseException]) -> None:
    prices = service.prices(Fallback(value=b"spare"))
    service.error = error
    with pytest.raises(error):
        service.wire.get(URL)
    assert prices.snapshot().in_use == 0
    assert prices.snapshot().fallbacks == {}


def test_a_mistake_of_the_caller_passes(service: Service) -> None:
    service.prices(Fallback(value=b"spare"))
    service.error = service.lib.LocalProtocolError
    with pytest.raises(service.lib.LocalProtocolError):
        service.wire.get(URL)


def test_what_was_not_read_to_its_end_or_is_too_large_is_not_kept(service: Service) -> None:
    service.prices(Fallback(stale_for=60, max_bytes=1024))
    wire = service.wire
    wire.close(wire.send("GET", URL))
    service.body = b"x" * 500
    wire.get(URL + "?large")
    service.status = 503
    assert wire.get(URL).status_code == 503
    assert wire.get(URL + "?large").status_code == 503


def test_an_open_circuit_without_a_fitting_answer_says_so(service: Service) -> None:
    service.prices(Fallback(stale_for=60), breaker=BreakerPolicy(window=1, minimum_calls=1))
    service.status = 500
    service.wire.get(URL)
    with pytest.raises(CallRefused):
        service.wire.get(URL)


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_over_a_real_connection_nothing_is_left_behind(wire: Wire) -> None:
    asked: list[str] = []

    def serves_and_breaks(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            asked.append(request.path)
            if len(asked) == 1:
                connection.answer(200)
            elif len(asked) == 2:
                connection.answer(503)
            else:
                connection.hang()
                return

    with RawServer(serves_and_breaks) as server:
        prices = Dependency(
            "prices", f"{server.url}/*", retry=None, timeout=0.2, bulkhead=1, fallback=Fallback(stale_for=60)
        )
        wire.open([prices], limits=wire.lib.Limits(max_connections=1))
        first = wire.get(server.url + "/list")
        for _ in range(3):
            stale = wire.get(server.url + "/list")
            assert (stale.status_code, stale.content) == (200, first.content)
            assert stale.headers["X-Degraded"] == "stale"
            assert prices.snapshot().in_use == 0
    assert prices.snapshot().fallbacks == {"stale": 3}
    assert prices.snapshot().attempts == {"2xx": 1, "5xx": 1, "timeout": 2}


def test_a_client_whose_responses_cannot_be_made_says_so() -> None:
    requests = pytest.importorskip("resilient_mw_integrations.requests")
    with pytest.warns(ResilienceWarning, match=r"Dependency\('prices'\).fallback is not used"):
        requests.ResilientAdapter(
            [Dependency("prices", "http://prices/*", fallback=Fallback(value=b"spare"))]
        )


def test_each_request_gets_a_response_of_its_own(service: Service) -> None:
    spare = service.lib.Response(200, json=["spare"], headers={"X-Own": "1"})
    service.prices(Fallback(value=spare))
    service.status = 503
    answers = [service.wire.get(f"http://prices/{name}") for name in "ab"]
    for answer, path in zip(answers, ["/a", "/b"], strict=True):
        assert (answer.request.url.path, answer.json()) == (path, ["spare"])
        assert (answer.headers["X-Own"], answer.headers["X-Degraded"]) == ("1", "fallback")
        answer.headers["X-Own"] = "changed by a caller"
    assert "X-Degraded" not in spare.headers


def test_an_answer_that_is_whole_from_the_beginning_is_kept(service: Service) -> None:
    statuses = iter([200, 503])
    body = gzip.compress(b"fresh")
    service.inner = service.lib.MockTransport(
        lambda _: service.lib.Response(next(statuses), headers={"Content-Encoding": "gzip"}, content=body)
    )
    service.prices(Fallback(stale_for=60))
    assert service.wire.get(URL).text == "fresh"
    stale = service.wire.get(URL)
    assert (stale.status_code, stale.text) == (200, "fresh")
