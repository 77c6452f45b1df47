"""Attempts through a real connection: what is repeated, with which body, and what becomes of the rest."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from time import sleep, time
from typing import Any

import pytest

from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import REFUSAL_HEADER, Reason
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import Wire, every_wire, timed
from tests.transport.tcp_server import Connection, RawServer, Received, head

Answer = Callable[[Connection, Received], bool | None]


def prices(url: str, **keywords: Any) -> Dependency:
    """A dependency with quick retries and without a retry budget."""
    keywords.setdefault("retry", quick())
    return Dependency("prices", match=f"{url}/*", **keywords)


def quick(**keywords: Any) -> RetryPolicy:
    return RetryPolicy(**{"attempts": 4, "backoff_base": 0.0, "budget_per_second": 1000.0, **keywords})


def server_of(*answers: Answer) -> RawServer:
    """A server that gives each request the next answer, the last one for ever."""

    def script(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            number = len(connection.server.requests) - 1
            if answers[min(number, len(answers) - 1)](connection, request) is False:
                return

    return RawServer(script)


def ok(connection: Connection, request: Received) -> None:
    connection.answer()


def busy(*lines: str, body: bytes = b"busy", status: int = 503) -> Answer:
    return lambda connection, request: connection.answer(status, body, *lines)


def hang_up(connection: Connection, request: Received) -> bool:
    return False


def figures(dependency: Dependency) -> Any:
    owner: Any = dependency.owner[0]
    return owner.snapshot()


# -- B50: discarded responses --------------------------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize(
    ("size", "connections"), [(0, 1), (60_000, 1), (1 << 20, 4)], ids=["empty", "small", "large"]
)
def test_b50_discarded_responses_give_their_connection_back(wire: Wire, size: int, connections: int) -> None:
    failing = busy(body=b"x" * size)
    with server_of(failing, failing, failing, ok) as server:
        dependency = prices(server.url)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))
        response = wire.get(server.url + "/")
        assert response.content == b"ok"
        assert len(server.requests) == 4
        assert (
            server.connections == connections
        )  # A small body is read, so that its connection can be used again.
        assert len(wire.pool().connections) == 1
        assert wire.pool().connections[0].is_idle()
        assert figures(dependency).in_use == 0
        assert figures(dependency).attempts == {"5xx": 3, "2xx": 1}


@every_wire
def test_b50_a_discarded_body_that_stalls_is_closed_instead(wire: Wire) -> None:
    def stall(connection: Connection, request: Received) -> bool:
        connection.send(head(503, 100) + b"x")
        connection.hang()
        return False

    with server_of(stall, ok) as server:
        wire.open([prices(server.url)], limits=wire.lib.Limits(max_connections=1))
        error, took = timed(lambda: wire.get(server.url + "/"))
        assert error is None
        assert took < 3.0  # it would hang for ten
        assert server.connections == 2


@every_wire
def test_b50_the_last_failing_response_is_returned_readable(wire: Wire) -> None:
    with server_of(busy(body=b"y" * 100_000)) as server:
        dependency = prices(server.url, retry=quick(attempts=3))
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))
        response = wire.send("GET", server.url + "/")
        assert len(server.requests) == 3
        assert figures(dependency).in_use == 1
        assert wire.read(response) == b"y" * 100_000
        assert figures(dependency).in_use == 0
        assert figures(dependency).retries_refused == {"attempts": 1}


@every_wire
def test_b50_every_discarded_response_of_a_foreign_transport_is_closed_once(wire: Wire) -> None:
    closed: list[int] = []
    sync_base, async_base = wire.lib.SyncByteStream, wire.lib.AsyncByteStream

    class Stream(sync_base, async_base):  # type: ignore[misc, valid-type]
        def __init__(self, number: int) -> None:
            self.number = number

        def __iter__(self) -> Iterator[bytes]:
            yield b"body"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"body"

        def close(self) -> None:
            closed.append(self.number)

        async def aclose(self) -> None:
            closed.append(self.number)

    count = iter(range(10))

    def answer(request: Any) -> Any:
        number = next(count)
        return wire.lib.Response(503 if number < 3 else 200, stream=Stream(number))

    wire.open([prices("http://prices.test")], wire.handler(answer))
    assert wire.get("http://prices.test/").content == b"body"
    assert closed == [0, 1, 2, 3]


@every_wire
def test_a_refusal_after_a_discarded_response_holds_nothing(wire: Wire) -> None:
    with server_of(busy(body=b"z" * 100_000)) as server:
        breaker = BreakerPolicy(window=2, minimum_calls=2, open_for=60.0)
        dependency = prices(server.url, breaker=breaker)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))
        # The second failure opens the circuit, so it is the answer.
        assert wire.get(server.url + "/").status_code == 503
        with pytest.raises(CallRefused) as caught:
            wire.get(server.url + "/")
        assert caught.value.reason is Reason.CIRCUIT_OPEN
        assert isinstance(caught.value, wire.lib.TransportError)
        assert not isinstance(caught.value, wire.lib.TimeoutException)
        assert len(server.requests) == 2
        assert figures(dependency).in_use == 0
        assert all(connection.is_idle() for connection in wire.pool().connections)


class Interrupted(BaseException):
    """What nobody expects."""


def _opened_meanwhile(owner: Any) -> None:
    breaker = owner.state.breaker
    breaker._change(owner.clock.now(), BreakerState.OPEN)


def _interrupted(owner: Any) -> None:
    raise Interrupted


EXITS: dict[str, tuple[Callable[[Any], object], type[BaseException]]] = {
    "the circuit opened": (_opened_meanwhile, CallRefused),
    "the bulkhead filled up": (lambda owner: owner.state.take_slot(), CallRefused),
    "interrupted": (_interrupted, Interrupted),
}


@every_wire
@pytest.mark.parametrize("exit_", [*EXITS, "the budget ended"])
def test_b50_a_retry_that_is_not_made_in_the_end_has_closed_the_response_before(
    wire: Wire, exit_: str
) -> None:
    """Whatever comes between: what was discarded for a retry was closed, once, before the wait."""
    closed: list[str] = []
    bases = (wire.lib.SyncByteStream, wire.lib.AsyncByteStream)

    class Stream(*bases):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b"busy"

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"busy"

        def close(self) -> None:
            closed.append("response")

        async def aclose(self) -> None:
            closed.append("response")

    dependency = prices("http://prices.test", bulkhead=1, retry=quick(backoff_base=0.001))
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(503, stream=Stream())))
    owner: Any = dependency.owner[0]
    owner.state.backoff = lambda attempts: 0.001
    resume = owner.resume
    meanwhile, error = EXITS.get(exit_, (None, DeadlineExceeded))

    def resumed(call: Any, at: float) -> Any:
        closed.append("resumed")
        if meanwhile is None:
            return resume(call, at + 1000.0)
        meanwhile(owner)
        return resume(call, at)

    owner.resume = resumed
    with pytest.raises(error):
        wire.get("http://prices.test/")
    assert closed == ["response", "resumed"]
    assert figures(dependency).in_use == (exit_ == "the bulkhead filled up")


@every_wire
def test_b50_an_answer_that_the_retry_budget_leaves_is_returned_open(wire: Wire) -> None:
    with server_of(busy(body=b"y" * 100_000)) as server:
        dependency = prices(server.url, retry=quick(budget_ratio=0.0, budget_per_second=0.0))
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))
        for _ in range(2):
            response = wire.send("GET", server.url + "/")
            assert not response.is_closed
            assert wire.read(response) == b"y" * 100_000
        assert figures(dependency).retries_refused == {"budget": 2}
        assert len(wire.pool().connections) == 1


# -- B52: bodies -----------------------------------------------------------------------------------------------------------


def once(wire: Wire, *, error: Exception | None = None) -> Any:
    if wire.is_async:

        async def parts() -> AsyncIterator[bytes]:
            yield b"one"
            if error is not None:
                raise error
            yield b"two"

        return parts()

    def sync_parts() -> Iterator[bytes]:
        yield b"one"
        if error is not None:
            raise error
        yield b"two"

    return sync_parts()


REPLAYED: dict[str, dict[str, Any]] = {
    "bytes": {"content": b"onetwo"},
    "json": {"json": {"one": 2}},
    "form": {"data": {"one": "two"}},
    "multipart": {"data": {"a": "b"}, "files": {"f": ("f.txt", b"onetwo" * 1000)}},
}


def busy_before_the_body(connection: Connection, request: Received) -> None:
    """Says 503 when it has the head; takes the body afterwards."""
    connection.answer(503, b"busy")
    request.body = connection._body(request)


def body_of(request: Received) -> bytes:
    """The body of a request that was perhaps answered before it was read."""
    for _ in range(200):
        if request.body:
            break
        sleep(0.01)
    return request.body


def early(*answers: Answer) -> RawServer:
    """A server that gives the first answer before it has read the body."""

    def script(connection: Connection) -> None:
        while True:
            first = not connection.server.requests
            request = connection.request(body=not first)
            if request is None:
                return
            number = len(connection.server.requests) - 1
            if answers[min(number, len(answers) - 1)](connection, request) is False:
                return

    return RawServer(script)


def gone_before_the_body(connection: Connection, request: Received) -> bool:
    connection.answer(503, b"busy", "Connection: close")
    return False


@every_wire
@pytest.mark.parametrize("body", REPLAYED)
@pytest.mark.parametrize("when", ["before", "after"])
def test_b52_what_can_be_replayed_is_sent_again_byte_by_byte(wire: Wire, body: str, when: str) -> None:
    with early(busy_before_the_body, ok) if when == "before" else server_of(busy(), ok) as server:
        wire.open([prices(server.url)])
        assert wire.request("PUT", server.url + "/", **REPLAYED[body]).status_code == 200
        first, second = server.requests
        assert body_of(first) == body_of(second) != b""


@pytest.fixture
def pipe() -> Iterator[Any]:
    """The end of a pipe that somebody has written into: it cannot be wound back."""
    reading, writing = os.pipe()
    os.write(writing, b"onetwo")
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        yield file


@every_wire
@pytest.mark.parametrize("body", ["generator", "file", "pipe", "multipart file"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_b52_a_body_that_can_be_sent_once_is_not_sent_again(
    wire: Wire, body: str, when: str, pipe: Any
) -> None:
    keywords: dict[str, Any] = {"content": once(wire)}
    if body in {"file", "pipe"} and not wire.is_async:  # An async client takes no files.
        keywords = {"content": io.BytesIO(b"onetwo")}
        if body == "pipe":  # The library takes its size for that of a file, which is nothing.
            keywords = {"content": pipe, "headers": {"Content-Length": "6"}}
    elif body == "multipart file":
        keywords = {"files": {"f": io.BytesIO(b"onetwo")}}
    with early(busy_before_the_body, ok) if when == "before" else server_of(busy(), ok) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        response = wire.request("PUT", server.url + "/", **keywords)
        assert (response.status_code, response.content) == (503, b"busy")
        assert len(server.requests) == 1
        assert b"onetwo" in body_of(server.requests[0])
        assert figures(dependency).retries_refused == {"body": 1}


@every_wire
@pytest.mark.parametrize("body", ["bytes", "generator"])
def test_b52_a_server_that_leaves_before_it_has_read_the_body(wire: Wire, body: str) -> None:
    """Its answer may be lost on the way; in no case a half of the body is sent as if it were all of it."""
    large = b"x" * 3_000_000

    def parts() -> Iterator[bytes]:
        yield large

    async def parts_async() -> AsyncIterator[bytes]:
        yield large

    with early(gone_before_the_body, ok) as server:
        statuses: list[Any] = []
        wire.open([prices(server.url)])
        once_ = parts_async() if wire.is_async else parts()
        content = large if body == "bytes" else once_
        error, _ = timed(lambda: statuses.append(wire.request("PUT", server.url + "/", content=content)))
        if body == "bytes":
            assert error is None
            assert statuses[0].status_code == 200
            assert server.requests[1].body == large
        else:
            assert len(server.requests) == 1
            assert isinstance(error, wire.lib.TransportError) if error else statuses[0].status_code == 503


@every_wire
def test_b52_a_body_that_was_not_begun_is_sent_in_a_second_attempt(wire: Wire) -> None:
    with server_of(ok) as server:
        calls: list[bytes] = []
        make = wire.lib.AsyncHTTPTransport if wire.is_async else wire.lib.HTTPTransport
        real = make(verify=False)

        def refuse_first(request: Any) -> Any:
            calls.append(b"")
            if len(calls) == 1:
                raise wire.lib.ConnectError("not today")
            return real.handle_async_request(request) if wire.is_async else real.handle_request(request)

        wire.open([prices(server.url)], _transport(wire, refuse_first))
        assert wire.request("POST", server.url + "/", content=once(wire)).status_code == 200
        assert [request.body for request in server.requests] == [b"onetwo"]
        wire.run(real.aclose() if wire.is_async else real.close())


@every_wire
def test_b52_a_body_that_somebody_has_taken_before_the_connection_failed(wire: Wire) -> None:
    def take_and_fail(
        request: Any,
    ) -> Any:  # An in-process transport reads the request before it asks its handler.
        raise wire.lib.ConnectError("not today")

    wire.open([prices("http://prices.test")], wire.handler(take_and_fail))
    with pytest.raises(wire.lib.ConnectError):
        wire.request("POST", "http://prices.test/", content=once(wire))


@every_wire
def test_an_error_of_the_body_itself_passes_as_it_is(wire: Wire) -> None:
    with server_of(ok) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        with pytest.raises(ZeroDivisionError):
            wire.request("PUT", server.url + "/", content=once(wire, error=ZeroDivisionError()))
        assert figures(dependency).attempts == {"cancelled": 1}
        assert figures(dependency).in_use == 0


def _transport(wire: Wire, handle: Callable[[Any], Any]) -> Any:
    if wire.is_async:

        class Async(wire.lib.AsyncBaseTransport):  # type: ignore[misc, name-defined]
            async def handle_async_request(self, request: Any) -> Any:
                return await handle(request)

        return Async()

    class Sync(wire.lib.MockTransport):  # type: ignore[misc, name-defined]
        def handle_request(self, request: Any) -> Any:
            return handle(request)

    return Sync(handle)


# -- B55: Retry-After ------------------------------------------------------------------------------------------------------


NOW = time()


def date(ahead: float) -> str:
    return formatdate(NOW + ahead, usegmt=True)


@every_wire
@pytest.mark.parametrize(
    ("lines", "waits"),
    [
        (["Retry-After: -5"], 0),
        (["Retry-After: -0"], 0),
        (["Retry-After: soon"], 0),
        (["Retry-After: 0"], 0),
        ([f"Retry-After: {date(-100)}"], 0),
        (["Retry-After: Sun, 06 Nov 1994 08:49:37"], 0),
        (["Retry-After: Sunday, 06-Nov-94 08:49:37 GMT"], 0),
        ([f"Date: {date(3600)}", f"Retry-After: {date(3601)}"], 1),
        ([f"Date: {date(-3600)}", f"Retry-After: {date(0)}"], None),
        (["Retry-After: 99999999999999999999"], None),
    ],
)
def test_b55_retry_after(wire: Wire, lines: list[str], waits: int | None) -> None:
    with server_of(busy(*lines), ok) as server:
        dependency = prices(server.url, retry=quick(max_retry_after=3.0))
        wire.open([dependency])
        error, took = timed(lambda: wire.get(server.url + "/"))
        assert error is None
        if waits is None:
            assert figures(dependency).retries_refused == {"retry_after": 1}
        else:
            assert len(server.requests) == 2
            assert waits <= took < waits * 1.25 + 0.5


@every_wire
@pytest.mark.parametrize(
    "line", ["0", "-0", "-5", "soon", "Sun, 06 Nov 1994 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"]
)
def test_b55_no_wait_is_the_ordinary_back_off_and_no_hot_loop(wire: Wire, line: str) -> None:
    with server_of(busy(f"Retry-After: {line}"), ok) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        owner: Any = dependency.owner[0]
        owner.state.backoff = lambda attempts: 0.06
        error, took = timed(lambda: wire.get(server.url + "/"))
        assert error is None
        assert len(server.requests) == 2
        assert took >= 0.06


# -- B58, B59: what is nobody's fault ----------------------------------------------------------------------------------------


@every_wire
def test_b58_waiting_for_our_own_pool_is_no_failure_of_the_dependency(wire: Wire) -> None:
    with server_of(lambda connection, request: connection.send(head(200, 10) + b"x")) as server:
        breaker = BreakerPolicy(window=5, minimum_calls=5)
        dependency = prices(server.url, breaker=breaker, retry=quick(attempts=2))
        wire.open(
            [dependency],
            limits=wire.lib.Limits(max_connections=1),
            client={"timeout": wire.lib.Timeout(5, pool=0.01)},
        )
        first = wire.send("GET", server.url + "/slow")
        for _ in range(10):
            with pytest.raises(wire.lib.PoolTimeout):
                wire.request("POST", server.url + "/")
        assert figures(dependency).breaker == "closed"
        assert figures(dependency).retries == 10  # Nothing was sent, so a POST may be repeated, too.
        wire.close(first)


@every_wire
@pytest.mark.parametrize(("method", "attempts"), [("GET", 2), ("PUT", 2), ("POST", 1)])
def test_b59_a_kept_connection_that_the_server_closes(wire: Wire, method: str, attempts: int) -> None:
    with server_of(ok, hang_up, ok) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        assert wire.get(server.url + "/").status_code == 200
        if attempts == 2:
            assert wire.request(method, server.url + "/").status_code == 200
            assert server.connections == 2
        else:
            with pytest.raises(wire.lib.RemoteProtocolError):
                wire.request(method, server.url + "/")
        assert len(server.requests) == 1 + attempts


@every_wire
def test_b59_a_post_with_a_key_is_repeated(wire: Wire) -> None:
    with server_of(ok, hang_up, ok) as server:
        wire.open([prices(server.url)])
        assert wire.get(server.url + "/").status_code == 200
        assert wire.request("POST", server.url + "/", headers={"Idempotency-Key": '"k1"'}).status_code == 200
        assert [request.all("idempotency-key") for request in server.requests[1:]] == [['"k1"'], ['"k1"']]


@every_wire
def test_b59_closed_kept_connections_do_not_open_the_circuit(wire: Wire) -> None:
    answers: list[Answer] = []
    for _ in range(10):
        answers += [ok, hang_up]
    with server_of(*answers, ok) as server:
        dependency = prices(server.url, breaker=BreakerPolicy(window=10, minimum_calls=4, failure_ratio=0.3))
        wire.open([dependency])
        for _ in range(11):
            assert wire.get(server.url + "/").status_code == 200
        assert figures(dependency).attempts["error"] >= 9
        assert figures(dependency).breaker == "closed"


@every_wire
def test_a_new_connection_that_is_closed_without_an_answer_is_a_failure(wire: Wire) -> None:
    with server_of(hang_up) as server:
        dependency = prices(server.url, retry=None, breaker=BreakerPolicy(window=4, minimum_calls=4))
        wire.open([dependency])
        for _ in range(4):
            with pytest.raises(wire.lib.RemoteProtocolError):
                wire.get(server.url + "/")
        assert figures(dependency).breaker == "open"


@every_wire
def test_a_body_that_breaks_off_is_a_failure_and_is_not_repeated(wire: Wire) -> None:
    def half(connection: Connection, request: Received) -> bool:
        connection.send(head(200, 100) + b"x" * 50)
        return False

    with server_of(half) as server:
        dependency = prices(server.url, breaker=BreakerPolicy(window=4, minimum_calls=4))
        wire.open([dependency])
        for _ in range(4):
            with pytest.raises(wire.lib.RemoteProtocolError):
                wire.get(server.url + "/")
        assert len(server.requests) == 4
        assert figures(dependency).attempts == {"body": 4}
        assert figures(dependency).breaker == "open"


# -- refused, not executed -------------------------------------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize(("trusted", "attempts"), [(True, 2), (False, 1)])
def test_a_refusal_of_a_trusted_dependency_may_be_repeated_whatever_the_method(
    wire: Wire, trusted: bool, attempts: int
) -> None:
    with server_of(busy(f"{REFUSAL_HEADER}: queue_full"), ok) as server:
        wire.open([prices(server.url, trusted=trusted)])
        assert wire.request("POST", server.url + "/").status_code == (200 if trusted else 503)
        assert len(server.requests) == attempts


# -- the budget of a retry ---------------------------------------------------------------------------------------------------


@every_wire
def test_all_attempts_spend_one_budget(wire: Wire) -> None:
    with server_of(
        lambda connection, request: connection.server.over.wait(0.3) or connection.answer(503)
    ) as server:
        dependency = prices(server.url, retry=quick(attempts=10))
        wire.open([dependency])
        with current().within(1.5):
            error, took = timed(lambda: wire.get(server.url + "/"))
        assert took < 1.5 + 1.5
        assert 2 <= len(server.requests) <= 5
        told = [int(request.all("x-request-timeout-ms")[0]) for request in server.requests]
        assert told == sorted(told, reverse=True)
        assert told[0] <= 1490
        assert told[1] <= 1190
        assert error is None or isinstance(error, wire.lib.TimeoutException)


@every_wire
def test_too_small_a_budget_sends_nothing(wire: Wire) -> None:
    with server_of(ok) as server:
        wire.open([prices(server.url)])
        with current().within(0.012), pytest.raises(CallRefused) as caught:
            wire.get(server.url + "/")
        assert caught.value.reason is Reason.INSUFFICIENT_BUDGET
        assert isinstance(caught.value, wire.lib.TimeoutException)
        assert caught.value.dependency == "prices"
        assert "Nothing was sent" in str(caught.value)
        assert not server.requests
