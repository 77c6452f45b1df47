"""Every error of the library and of ours: what is retried, who is blamed, and who catches it."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded, ResilienceError, ResilienceWarning
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import Wire, every_wire

ROOT = Path(__file__).resolve().parents[2]
URL = "http://prices.test/"
METHODS = ("GET", "PUT", "DELETE", "POST", "PATCH", "POST with a key")

YES, SAFE, NO = set(METHODS), set(METHODS) - {"POST", "PATCH"}, set[str]()
BLAMED, NEUTRAL = True, False

TABLE = {
    # Never sent: anything may be tried again.
    "ConnectError": (YES, BLAMED),
    "ConnectTimeout": (YES, BLAMED),
    "ProxyError": (YES, BLAMED),
    "PoolTimeout": (YES, NEUTRAL),
    # The dependency may have acted: what is safe, or keyed.
    "CloseError": (SAFE, BLAMED),
    "NetworkError": (SAFE, BLAMED),
    "ProtocolError": (SAFE, BLAMED),
    "ReadError": (SAFE, BLAMED),
    "ReadTimeout": (SAFE, BLAMED),
    "RemoteProtocolError": (SAFE, BLAMED),
    "TimeoutException": (SAFE, BLAMED),
    "TransportError": (SAFE, BLAMED),
    "SSEError": (SAFE, BLAMED),
    "WriteError": (SAFE, BLAMED),
    "WriteTimeout": (SAFE, BLAMED),
    # A mistake of the caller: it would come again.
    "LocalProtocolError": (NO, NEUTRAL),
    "UnsupportedProtocol": (NO, NEUTRAL),
    # No errors of a transport: whoever raises them there is not the dependency.
    "CookieConflict": (NO, NEUTRAL),
    "DecodingError": (NO, NEUTRAL),
    "HTTPError": (NO, NEUTRAL),
    "HTTPStatusError": (NO, NEUTRAL),
    "InvalidURL": (NO, NEUTRAL),
    "RequestError": (NO, NEUTRAL),
    "RequestNotRead": (NO, NEUTRAL),
    "ResponseNotRead": (NO, NEUTRAL),
    "StreamClosed": (NO, NEUTRAL),
    "StreamConsumed": (NO, NEUTRAL),
    "StreamError": (NO, NEUTRAL),
    "TooManyRedirects": (NO, NEUTRAL),
}


def errors_of(wire: Wire) -> dict[str, type[Exception]]:
    found = ((name, getattr(wire.lib, name)) for name in wire.lib.__all__)
    return {
        name: each
        for name, each in found
        if isinstance(each, type) and issubclass(each, Exception) and "WebSocket" not in name
    }


def made(kind: type[Exception]) -> Exception:
    for args in (("wrong",), ()):
        try:
            return kind(*args)
        except TypeError:
            continue
    return kind("wrong", request=None, response=None)  # type: ignore[call-arg]


def prices(**keywords: Any) -> Dependency:
    keywords.setdefault("retry", RetryPolicy(attempts=3, backoff_base=0.0, budget_per_second=1000.0))
    keywords.setdefault("breaker", BreakerPolicy(window=1000, minimum_calls=3, failure_ratio=1.0))
    return Dependency("prices", match=URL + "*", **keywords)


@every_wire
def test_b58_every_error_of_the_library_is_in_the_table(wire: Wire) -> None:
    assert set(errors_of(wire)) <= set(TABLE)


@every_wire
@pytest.mark.parametrize("name", TABLE)
def test_b58_what_is_retried_and_who_is_blamed(wire: Wire, name: str) -> None:
    if name not in errors_of(wire):
        pytest.skip(f"{wire.name} has no {name}")
    kind = errors_of(wire)[name]
    retried, blamed = TABLE[name]
    for method in METHODS:
        sent: list[Any] = []

        def answer(request: Any, sent: list[Any] = sent) -> Any:
            sent.append(request)
            raise made(kind)

        dependency = prices()
        wire.open([dependency], wire.handler(answer))
        verb, _, key = method.partition(" with ")
        with pytest.raises(kind):
            wire.request(verb, URL, headers={"Idempotency-Key": "k"} if key else {})
        assert len(sent) == (3 if method in retried else 1), method
        owner: Any = dependency.owner[0]
        snapshot = owner.snapshot()
        if blamed:
            assert snapshot.breaker == ("open" if len(sent) == 3 else "closed")
            assert set(snapshot.attempts) <= {"error", "timeout"}
        else:
            assert snapshot.breaker == "closed"
        assert snapshot.in_use == 0


@every_wire
@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), TimeoutError("x"), OSError("x"), KeyboardInterrupt()]
)
def test_other_errors_pass_as_they_are(wire: Wire, error: BaseException) -> None:
    if wire.is_async and isinstance(error, KeyboardInterrupt):
        pytest.skip("the runner turns it into something else")

    def answer(request: Any) -> Any:
        raise error

    dependency = prices()
    wire.open([dependency], wire.handler(answer))
    with pytest.raises(type(error)) as caught:
        wire.get(URL)
    assert caught.value is error
    owner: Any = dependency.owner[0]
    assert owner.snapshot().in_use == 0
    assert owner.snapshot().attempts == {"cancelled": 1}


@every_wire
def test_an_open_circuit_is_caught_by_both_trees(wire: Wire) -> None:
    dependency = prices(retry=None, breaker=BreakerPolicy(window=1, minimum_calls=1, open_for=30.0))
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(500)))
    assert wire.get(URL).status_code == 500
    with pytest.raises(CallRefused) as caught:
        wire.get(URL)
    error: Any = caught.value
    assert isinstance(error, wire.lib.TransportError)
    assert isinstance(error, wire.ours.CallRefused)
    assert (error.reason, error.dependency) == (Reason.CIRCUIT_OPEN, "prices")
    assert 29 < error.retry_in < 34
    assert error.request.url == URL
    assert "Dependency(breaker=...)" in str(error)


@every_wire
def test_a_full_bulkhead_is_caught_by_both_trees(wire: Wire) -> None:
    stream = wire.lib.AsyncByteStream() if wire.is_async else wire.lib.SyncByteStream()
    dependency = prices(bulkhead=1)
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(200, stream=stream)))
    first = wire.send("GET", URL)
    with pytest.raises(wire.ours.CallRefused, match=r"all 1 that may be under way") as caught:
        wire.get(URL)
    assert caught.value.reason is Reason.BULKHEAD_FULL
    wire.close(first)
    wire.close(wire.send("GET", URL))


@every_wire
def test_a_discarded_response_before_a_refusal_is_told(wire: Wire) -> None:
    dependency = prices(retry=RetryPolicy(attempts=2, backoff_base=0.01), bulkhead=1)
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(503)))
    owner: Any = dependency.owner[0]
    resume = owner.resume

    def taken_meanwhile(call: Any, at: float) -> Any:
        owner.state.take_slot()
        return resume(call, at)

    owner.resume = taken_meanwhile
    with pytest.raises(CallRefused, match=r"1 attempt\(s\) were made before") as caught:
        wire.get(URL)
    assert caught.value.reason is Reason.BULKHEAD_FULL


@every_wire
def test_our_errors_survive_the_way_between_two_processes(wire: Wire) -> None:
    def late(request: Any) -> Any:
        sleep(0.21)
        raise wire.lib.ReadTimeout("late")

    dependency = prices(retry=None, breaker=BreakerPolicy(window=1, minimum_calls=1, open_for=30.0))
    wire.open([dependency], wire.handler(late))
    caught: list[Any] = []
    for left in (0.2, 0.001, 5.0, 5.0):
        with current().within(left), pytest.raises(wire.lib.TransportError) as raised:
            wire.get(URL, headers={"X-Own": "1"})
        if isinstance(raised.value, ResilienceError):
            caught.append(raised.value)
    closed = wire.ours.TransportClosed("closed", "prices")
    closed.request = caught[0].request
    caught.append(closed)
    ours = wire.ours
    assert [type(error) for error in caught] == [
        ours.CallExpired, ours.BudgetTooSmall, ours.CallRefused, ours.TransportClosed,
    ]  # fmt: skip
    for error in caught:
        there = pickle.loads(pickle.dumps(error))
        assert type(there) is type(error)
        assert (str(there), there.reason, there.dependency) == (str(error), error.reason, "prices")
        assert (there.request.url, there.request.headers["x-own"]) == (URL, "1")
    assert pickle.loads(pickle.dumps(caught[0])).phase == caught[0].phase
    assert pickle.loads(pickle.dumps(caught[2])).retry_in == caught[2].retry_in > 0


def test_the_trees() -> None:
    for name in ("httpx", "httpx2"):
        wire = Wire((name, "sync"))
        lib, ours = wire.lib, wire.ours
        for error, bases in (
            (ours.CallExpired, (DeadlineExceeded, lib.TimeoutException, TimeoutError)),
            (ours.CallRefused, (CallRefused, lib.TransportError)),
            (ours.BudgetTooSmall, (ours.CallRefused, lib.TimeoutException)),
            (ours.TransportClosed, (ResilienceError, lib.TransportError)),
        ):
            for base in bases:
                assert issubclass(error, base)
        assert not issubclass(ours.CallRefused, lib.TimeoutException)


# -- construction ----------------------------------------------------------------------------------------------------------


@every_wire
def test_bad_input(wire: Wire) -> None:
    prices_, other = prices(), Dependency("prices", match="http://other.test/*")
    with pytest.raises(ValueError, match="twice"):
        wire.open([prices_, other], wire.handler(lambda request: None))
    with pytest.raises(ValueError, match="covers it"):
        wire.open([prices_, Dependency("b", match=URL + "b")], wire.handler(lambda request: None))
    with pytest.raises(ValueError, match="verify"):
        wire.open([prices_], wire.handler(lambda request: None), verify=False)
    client = wire.client_class(transport=wire.handler(lambda request: None))
    wire.client = wire.ours.wrap(client, [prices_])
    with pytest.raises(ValueError, match="wrapped already"):
        wire.ours.wrap(client, [prices_])


@every_wire
def test_a_transport_that_cannot_be_bounded_is_warned_about(wire: Wire) -> None:
    if wire.is_async:
        wire.open([prices()], wire.lib.AsyncBaseTransport())  # A coroutine can always be cancelled.
        return

    class Own(wire.lib.BaseTransport):  # type: ignore[misc, name-defined]
        pass

    with pytest.warns(ResilienceWarning, match=r"Own.*send.* one byte after the other"):
        wire.ours.ResilientTransport([prices()], Own())
    locked = wire.lib.HTTPTransport(verify=False)
    del locked._pool._network_backend
    with pytest.warns(ResilienceWarning, match="HTTPTransport"):
        wire.ours.ResilientTransport([prices()], locked)
    wire.ours.ResilientTransport([prices()], wire.lib.MockTransport(lambda request: None))
    wire.ours.ResilientTransport([prices()], wire.lib.WSGITransport(lambda environ, start: []))


# -- import httpx may be httpx2 ----------------------------------------------------------------------------------------------

ALIASED = """
import httpx2
httpx2.alias_httpx()
import httpx
from resilient_mw.calls.dependency import Dependency
from resilient_mw_integrations.httpx import CallExpired, ResilientTransport, wrap
from tests.transport.tcp_server import RawServer

def serve(connection):
    while connection.request():
        connection.answer()

assert httpx.Client is httpx2.Client
assert issubclass(CallExpired, httpx2.TimeoutException)
with RawServer(serve) as server:
    prices = Dependency("prices", match=server.url + "/*")
    with httpx.Client(transport=ResilientTransport([prices], verify=False)) as client:
        assert client.get(server.url + "/").text == "ok"
    with wrap(httpx2.Client(verify=False), [prices]) as client:
        assert client.get(server.url + "/").text == "ok"
    assert all(request.all("x-request-timeout-ms") for request in server.requests)
print("fine")
"""


def test_import_httpx_may_give_httpx2() -> None:
    if not hasattr(importlib.import_module("httpx2"), "alias_httpx"):
        pytest.skip("this version of httpx2 cannot take the place of httpx")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALIASED],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", "integrations"])},
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr
