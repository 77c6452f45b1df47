"""Field cases of pools, connections and redirects, through the transports of both libraries, sync and async."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from resilient_mw.calls import Fallback, ThrottlePolicy
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import REFUSAL_HEADER, Reason
from resilient_mw.runtime.context import current
from tests.field.calls import URL, async_wires, nothing_held, owner, prices, sync_wires
from tests.integrations.httpx_wires import Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, Received

EAGER = BreakerPolicy(window=10, minimum_calls=1, failure_ratio=0.01)
"""Opens at the first failure."""
TWICE = RetryPolicy(attempts=2, backoff_base=0.0, budget_per_second=1000.0)

# -- B58: what is full here is nobody's fault there ------------------------------------------------------------------------


@every_wire
def test_b58_twenty_calls_that_find_no_connection_in_the_pool(wire: Wire) -> None:
    """The pool is held by a slow call: twenty more wait for it in vain, at once. A POST is repeated, and pays for it."""

    def serve(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            if request.path == "/slow":
                connection.server.over.wait(5)
            connection.answer()

    with RawServer(serve) as server:
        dependency = prices(
            f"{server.url}/*",
            breaker=BreakerPolicy(window=10, minimum_calls=5, failure_ratio=0.1),
            retry=RetryPolicy(attempts=2, backoff_base=0.0, budget_ratio=0.0, budget_per_second=0.5),
            timeout=9.0,
        )
        limits = wire.lib.Limits(max_connections=1)
        wire.open([dependency], limits=limits, client={"timeout": wire.lib.Timeout(5.0, pool=0.1)})
        outcomes = wait_for_the_pool(wire, server)
        assert {type(outcome) for outcome in outcomes} == {wire.lib.PoolTimeout}
        snapshot = owner(dependency).snapshot()
        assert snapshot.breaker == "closed"
        assert snapshot.recent_transitions == ()
        assert (snapshot.retries, snapshot.retries_refused) == (2, {"attempts": 2, "budget": 18}), (
            "a timeout costs twice"
        )


def until_asked(server: RawServer) -> None:
    end = time.monotonic() + 5.0
    while not server.requests:
        assert time.monotonic() < end
        time.sleep(0.001)


def wait_for_the_pool(wire: Wire, server: RawServer) -> list[Any]:
    """Hold the only connection, and return what becomes of twenty calls that need it."""
    if wire.is_async:

        async def scenario() -> list[Any]:
            slow = asyncio.ensure_future(wire.client.post(server.url + "/slow"))
            await asyncio.to_thread(until_asked, server)
            calls = (wire.client.post(server.url + "/") for _ in range(20))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert len(server.requests) == 1, "nothing was sent"
            slow.cancel()
            await asyncio.wait((slow,))
            return outcomes

        found: list[Any] = wire.run(scenario())
        return found
    with ThreadPoolExecutor(21) as threads:
        slow = threads.submit(wire.client.post, server.url + "/slow")
        until_asked(server)
        calls = [threads.submit(wire.client.post, server.url + "/") for _ in range(20)]
        outcomes = [call.exception() for call in calls]
        assert len(server.requests) == 1, "nothing was sent"
        server.over.set()
        slow.exception()
        return outcomes


@every_wire
def test_b58_our_own_refusals_say_nothing_about_the_dependency(wire: Wire) -> None:
    """Bulkhead full, no time left, throttled: the circuit that opens at the first failure stays closed."""
    status = 200
    dependency = prices(bulkhead=1, breaker=EAGER, throttle=ThrottlePolicy(per_second=0.0))
    refusal = {REFUSAL_HEADER: "queue_full"}
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(status, headers=refusal)))
    owned = owner(dependency)
    assert owned.state.take_slot()
    with pytest.raises(CallRefused) as full:
        wire.get(URL)
    owned.state.give_slot()
    assert full.value.reason is Reason.BULKHEAD_FULL
    with current().within(0.001), pytest.raises(CallRefused) as broke:
        wire.get(URL)
    assert broke.value.reason is Reason.INSUFFICIENT_BUDGET
    status, reasons = 503, set()
    for _ in range(100):  # Refused there, until most of them are refused here.
        try:
            assert wire.get(URL).status_code == 503
        except CallRefused as error:
            reasons.add(error.reason)
    assert reasons == {Reason.THROTTLED}
    snapshot = owned.snapshot()
    assert (snapshot.breaker, snapshot.recent_transitions) == ("closed", ())
    assert owned.judged()[:2] == (0, 0)
    nothing_held(dependency)


# -- B59: the server closes as the next request arrives --------------------------------------------------------------------


@every_wire
@pytest.mark.parametrize(("method", "attempts"), [("GET", 2), ("PUT", 2), ("POST", 1)])
@pytest.mark.parametrize("said", [b"H", b"HTTP/1.1 200 OK\r\nConte"], ids=["a byte", "half a head"])
def test_b59_a_kept_connection_that_ends_in_the_answer_is_a_failure(
    wire: Wire, method: str, attempts: int, said: bytes
) -> None:
    """One byte of an answer, and the server had the request: a POST is not repeated, and the dependency is blamed."""

    def script(connection: Connection) -> None:
        connection.request()
        connection.answer()
        connection.request()
        connection.send(said)

    with RawServer(script) as server:
        dependency = prices(f"{server.url}/*", retry=TWICE, breaker=None)
        wire.open([dependency])
        assert wire.get(server.url + "/").status_code == 200
        if attempts == 1:
            with pytest.raises(wire.lib.RemoteProtocolError):
                wire.request(method, server.url + "/", content=b"x")
        else:
            assert wire.request(method, server.url + "/").status_code == 200
        assert len(server.requests) == 1 + attempts
        assert owner(dependency).judged()[1] == 1
        nothing_held(dependency)


@every_wire
@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
def test_b59_an_answer_that_ends_in_the_body_reaches_the_caller_and_is_never_repeated(
    wire: Wire, method: str
) -> None:
    def script(connection: Connection) -> None:
        while connection.request() is not None:
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            return

    with RawServer(script) as server:
        dependency = prices(f"{server.url}/*", retry=TWICE, breaker=EAGER)
        wire.open([dependency])
        with pytest.raises(wire.lib.RemoteProtocolError):
            wire.request(method, server.url + "/")
        assert len(server.requests) == 1
        assert owner(dependency).snapshot().breaker == "open", "a body that breaks off counts"
        nothing_held(dependency)


@every_wire
def test_b59_ten_closed_connections_in_a_row_among_answers_do_not_open_the_circuit(wire: Wire) -> None:
    """Each request but the first of a connection meets a server that is just closing; all of them are answered."""

    def script(connection: Connection) -> None:
        if connection.request() is not None:
            connection.answer()
            connection.request()  # Closed exactly when it comes: not one byte of an answer.

    with RawServer(script) as server:
        dependency = prices(f"{server.url}/*", retry=TWICE, breaker=EAGER)
        wire.open([dependency])
        for number in range(11):
            assert wire.request("PUT" if number % 2 else "GET", server.url + "/").status_code == 200
        snapshot = owner(dependency).snapshot()
        assert (snapshot.attempts, snapshot.retries) == ({"2xx": 11, "error": 10}, 10)
        assert (snapshot.breaker, snapshot.recent_transitions) == ("closed", ())


# -- B62: at each hop ------------------------------------------------------------------------------------------------------


OURS = ("x-request-timeout-ms", "idempotency-key", "x-retry-owner", "x-retry-attempt")


def redirecting(connection: Connection) -> None:
    while (request := connection.request()) is not None:
        if request.path.startswith("/to?"):
            location = f"Location: {request.path.removeprefix('/to?')}"
            connection.answer(307, b"", location, "X-Request-Timeout-Ms: 9", "Set-Cookie: a=b")
        else:
            connection.answer()


def said(request: Received) -> set[str]:
    names = [name for name, _ in request.headers if name in OURS]
    assert len(set(names)) == len(names), "doubled"
    return set(names)


@every_wire
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1"])
def test_b62_key_deadline_and_owner_go_to_ours_alone_at_each_hop(wire: Wire, host: str) -> None:
    """Ours to theirs to ours, by 307 with a body: the foreign server may be on the same host, on another port."""
    with RawServer(redirecting) as ours, RawServer(redirecting, bind="127.0.0.1", host=host) as evil:
        dependency = prices(f"{ours.url}/*", retry=RetryPolicy(attempts=2), idempotency_key="Idempotency-Key")
        wire.open([dependency], client={"follow_redirects": True})
        with current().within(5.0):
            response = wire.request(
                "POST", f"{ours.url}/to?{ours.url}/to?{evil.url}/to?{ours.url}/end", content=b"order"
            )
        assert response.status_code == 200
        first, second, last = ours.requests
        (foreign,) = evil.requests
        assert said(first) == said(second) == set(OURS)
        assert said(foreign) == set()
        assert foreign.body == last.body == b"order"
        assert first.all("idempotency-key") == second.all("idempotency-key"), "the same work"
        assert not {*map(str.lower, response.request.headers)} & set(OURS), (
            "the caller's request is as he made it"
        )


@every_wire
def test_b62_the_callers_own_fields_are_neither_doubled_nor_overwritten(wire: Wire) -> None:
    with RawServer(redirecting) as server:
        dependency = prices(
            f"{server.url}/*", retry=RetryPolicy(attempts=2), idempotency_key="Idempotency-Key", reserve=0.0
        )
        wire.open([dependency])
        own = {"Idempotency-Key": '"mine"', "X-Request-Timeout-Ms": "700", "X-Retry-Owner": "batch"}
        with current().within(5.0):
            wire.request("POST", server.url + "/", headers=own)
        (request,) = server.requests
        said(request)
        assert request.all("idempotency-key") == ['"mine"']
        assert request.all("x-retry-owner") == ["batch"]
        (left,) = request.all("x-request-timeout-ms")
        assert 400 < int(left) <= 700, "the shorter of the two"


# -- B64: a pool from which many calls are torn --------------------------------------------------------------------------------


def ten_milliseconds(connection: Connection) -> None:
    while connection.request() is not None:
        if connection.server.over.wait(0.008) or not connection.answer(200, b"x" * 2000):
            return


WAYS = ["budget", "timeout", "cancel", "stream"]


async def tear(wire: Wire, url: str, way: str, after: float) -> None:
    """Make a call that ends after a while, however far it is."""
    if way == "budget":
        with current().within(after):
            await wire.client.get(url)
    elif way == "timeout":
        async with asyncio.timeout(after):
            await wire.client.get(url)
    elif way == "cancel":
        task = asyncio.ensure_future(wire.client.get(url))
        await asyncio.sleep(after)
        task.cancel()
        await asyncio.wait((task,))
    else:
        async with asyncio.timeout(after), wire.client.stream("GET", url) as response:
            async for _ in response.aiter_raw(100):
                await asyncio.sleep(0)


@async_wires
def test_b64_two_seconds_of_calls_torn_at_random_points_leave_every_connection_usable(wire: Wire) -> None:
    """Twenty workers on ten connections; three in ten calls end early: by their budget, a timeout or a cancellation."""
    random = Random(64)
    with RawServer(ten_milliseconds) as server:
        dependency = prices(f"{server.url}/*", breaker=None, smallest_budget=0.0, reserve=0.0)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=10))
        url, torn, done = server.url + "/", 0, 0

        async def worker(end: float) -> None:
            nonlocal torn, done
            while time.monotonic() < end:
                if random.random() < 0.3:
                    torn += 1
                    # On a machine that is busy nothing may be left of a budget before it is used.
                    with contextlib.suppress(wire.lib.TimeoutException, TimeoutError, CallRefused):
                        await tear(wire, url, random.choice(WAYS), random.uniform(0.0, 0.02))
                else:
                    await wire.client.get(url)
                    done += 1

        async def scenario() -> None:
            end = time.monotonic() + 2.0
            await asyncio.gather(*(worker(end) for _ in range(20)))
            # All ten connections at once, twice: none of them is lost to a call that was torn.
            for _ in range(2):
                calls = (wire.client.get(url, timeout=2.0) for _ in range(10))
                assert [response.status_code for response in await asyncio.gather(*calls)] == [200] * 10

        wire.run(scenario())
        assert torn > 50
        assert done > 100
        assert len(wire.pool().connections) <= 10
        assert all(connection.is_idle() for connection in wire.pool().connections)
        nothing_held(dependency)


@sync_wires
def test_b64_threads_whose_calls_expire_at_random_points_leave_every_connection_usable(wire: Wire) -> None:
    with RawServer(ten_milliseconds) as server:
        dependency = prices(f"{server.url}/*", breaker=None, smallest_budget=0.0, reserve=0.0)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=10))
        url, expired, counting = server.url + "/", 0, threading.Lock()

        def worker(seed: int) -> None:
            nonlocal expired
            random, end = Random(seed), time.monotonic() + 1.5
            while time.monotonic() < end:
                if random.random() >= 0.3:
                    wire.client.get(url)
                    continue
                try:
                    with (
                        current().within(random.uniform(0.001, 0.02)),
                        wire.client.stream("GET", url) as response,
                    ):
                        response.read()
                except (DeadlineExceeded, CallRefused):
                    with counting:
                        expired += 1

        with ThreadPoolExecutor(20) as threads:
            list(threads.map(worker, range(20)))
            calls = [threads.submit(wire.client.get, url, timeout=2.0) for _ in range(10)]
            assert [call.result().status_code for call in calls] == [200] * 10
        assert expired > 20
        assert all(connection.is_idle() for connection in wire.pool().connections)
        nothing_held(dependency)


# -- B50: what is closed at the exits that are not tested elsewhere -----------------------------------------------------------


@every_wire
def test_b50_the_answer_that_a_fallback_replaces_gives_its_connection_back(wire: Wire) -> None:
    with RawServer(refusing) as server:
        fallback = Fallback(function=lambda error, left: wire.lib.Response(203, content=b"else"))
        dependency = prices(f"{server.url}/*", retry=TWICE, breaker=EAGER, fallback=fallback)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))
        for _ in range(3):
            assert wire.get(server.url + "/").content == b"else"
        assert all(connection.is_idle() for connection in wire.pool().connections)
        nothing_held(dependency)


def refusing(connection: Connection) -> None:
    while connection.request() is not None:
        connection.answer(503, b"x" * 5000, f"{REFUSAL_HEADER}: draining")
