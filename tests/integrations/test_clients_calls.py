"""Retries, bodies, slots and headers of calls by requests, urllib3 and aiohttp: the machine is the one of httpx."""

from __future__ import annotations

import gc
import pickle
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, ResilienceError, ResilienceWarning
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.context import current
from resilient_mw_integrations.httpx import ResilientTransport
from tests.integrations.client_wires import client, every_client, sync_clients
from tests.integrations.test_httpx_deadlines import names
from tests.transport.tcp_server import Connection, RawServer, head

__all__ = ["client", "names"]

QUICK = RetryPolicy(attempts=2, backoff_base=0.01, backoff_cap=0.02)


def prices(url: str, **keywords: Any) -> Dependency:
    return Dependency("prices", match=f"{url}/*", **{"retry": QUICK, **keywords})


def busy_once(connection: Connection) -> None:
    """503 for the first request of the server, 200 for every other."""
    while connection.request():
        connection.answer(503 if len(connection.server.requests) == 1 else 200, b"x" * 1000)


def always_busy(connection: Connection) -> None:
    while connection.request():
        connection.answer(503)


def half_then_whole(connection: Connection) -> None:
    """Half a body for /half, a complete answer for everything else."""
    while (request := connection.request()) is not None:
        if request.path == "/half":
            connection.send(head(200, 1000) + b"x" * 500)
            connection.hang()
            return
        connection.answer()


# -- attempts ----------------------------------------------------------------------------------------------------------


@every_client
def test_b50_a_retried_answer_gives_its_connection_back(client: Any) -> None:
    with RawServer(busy_once) as server:
        dependency = prices(server.url)
        client.open([dependency], 1)
        assert client.get(server.url + "/")[:2] == (200, b"x" * 1000)
        assert len(server.requests) == 2
        assert server.connections == 1
        assert dependency.snapshot().retries == 1
        assert dependency.snapshot().in_use == 0


@every_client
@pytest.mark.parametrize("size", [1, 500_000])
def test_b50_a_discarded_body_that_does_not_end_takes_no_place_in_the_pool(client: Any, size: int) -> None:
    def script(connection: Connection) -> None:
        while connection.request():
            if len(connection.server.requests) == 1:
                connection.send(head(503, 1_000_000) + b"x" * size)
                connection.hang()
                return
            connection.answer()

    with RawServer(script) as server:
        client.open([prices(server.url)], 1)
        assert client.get(server.url + "/").status == 200
        assert client.get(server.url + "/").status == 200


@every_client
def test_b52_a_body_that_can_be_sent_once_is_sent_once(client: Any) -> None:
    with RawServer(busy_once) as server:
        dependency = prices(server.url)
        client.open([dependency])
        assert client.request("PUT", server.url + "/", data=client.once()).status == 503
        assert [request.body.replace(b"\r\n", b"") for request in server.requests] == [b"1a1b"] or [
            request.body for request in server.requests
        ] == [b"ab"]


@every_client
def test_a_body_of_bytes_is_sent_again(client: Any) -> None:
    with RawServer(busy_once) as server:
        client.open([prices(server.url)])
        assert client.request("PUT", server.url + "/", data=b"all").status == 200
        assert [request.body for request in server.requests] == [b"all", b"all"]


@every_client
def test_a_post_is_not_repeated_without_a_key(client: Any) -> None:
    with RawServer(busy_once) as server:
        client.open([prices(server.url)])
        assert client.request("POST", server.url + "/", data=b"all").status == 503
        server.requests.clear()
        headers = {"Idempotency-Key": "one"}
        assert client.request("POST", server.url + "/", data=b"all", headers=headers).status == 200
        assert [request.all("idempotency-key") for request in server.requests] == [["one"], ["one"]]


@every_client
def test_a_connection_that_went_stale_is_no_failure_of_the_dependency(client: Any) -> None:
    first = threading.Event()

    def closes(connection: Connection) -> None:
        connection.request()
        if not first.is_set():
            first.set()
            connection.answer()
            connection.request()  # The second one is read, and never answered.
            return
        connection.answer()

    with RawServer(closes) as server:
        dependency = prices(server.url)
        client.open([dependency])
        assert client.get(server.url + "/").status == 200
        assert client.get(server.url + "/").status == 200
        assert len(server.requests) == 3
        assert dependency.snapshot().retries == 1
        owner: Any = dependency.owner[0]
        assert owner.state.bad == 0


@every_client
def test_the_library_sends_nothing_again_by_itself(client: Any) -> None:
    first = threading.Event()

    def closes(connection: Connection) -> None:
        connection.request()
        if not first.is_set():
            first.set()
            connection.answer()
            connection.request()

    with RawServer(closes) as server:
        client.open([prices(server.url, retry=None)])
        assert client.get(server.url + "/").status == 200
        with pytest.raises(client.failure):
            client.get(server.url + "/")
        assert len(server.requests) == 2


@every_client
def test_the_last_error_is_the_librarys_own(client: Any) -> None:
    with RawServer(always_busy) as server:
        url = server.url
    client.open([prices(url)])
    with pytest.raises(client.failure) as caught:
        client.get(url + "/")
    assert not isinstance(caught.value, ResilienceError)


# -- what is told ------------------------------------------------------------------------------------------------------


@every_client
def test_the_deadline_is_told_with_each_attempt(client: Any) -> None:
    with RawServer(busy_once) as server:
        client.open([prices(server.url, timeout=None, breaker=None)])
        with current().within(5.0):
            client.get(server.url + "/", headers={"X-Own": "1"})
        told = [int(request.all("x-request-timeout-ms")[0]) for request in server.requests]
        assert all(len(request.all("x-request-timeout-ms")) == 1 for request in server.requests)
        assert all(request.all("x-own") == ["1"] for request in server.requests)
        assert 2000 < told[1] < told[0] <= 4990


@every_client
def test_the_deadline_is_told_as_it_is_after_connecting(client: Any, names: dict[str, Any]) -> None:
    def slow() -> list[str]:
        server.over.wait(0.3)
        return ["127.0.0.1"]

    names["prices.test"] = slow
    with RawServer(busy_once) as server:
        url = f"http://prices.test:{server.port}"
        client.open([prices(url, retry=None, timeout=4.0, connect_timeout=None)])
        client.get(url + "/")
        assert int(server.requests[0].all("x-request-timeout-ms")[0]) <= 3710


@every_client
def test_the_caller_may_tell_less(client: Any) -> None:
    with RawServer(busy_once) as server:
        client.open([prices(server.url)])
        client.get(server.url + "/", headers={"x-request-timeout-ms": "200"})
        assert all(int(each.all("x-request-timeout-ms")[0]) <= 200 for each in server.requests)


@every_client
def test_b62_each_hop_of_a_redirect_is_looked_at_anew(client: Any) -> None:
    def answers(connection: Connection) -> None:
        while connection.request():
            connection.answer()

    def redirects(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            to = stranger.url if request.path == "/away" else server.url
            connection.answer(302 if request.path != "/there" else 200, b"ok", f"Location: {to}/there")

    with RawServer(answers) as stranger, RawServer(redirects) as server:
        dependency = prices(server.url)
        client.open([dependency])
        assert client.get(server.url + "/away").status == 200
        assert [len(each.all("x-request-timeout-ms")) for each in server.requests] == [1]
        assert stranger.requests[0].all("x-request-timeout-ms") == []
        assert client.get(server.url + "/").status == 200
        assert dependency.snapshot().calls == 3
        assert dependency.snapshot().in_use == 0


# -- slots -------------------------------------------------------------------------------------------------------------


@every_client
def test_a_response_holds_its_slot_until_its_body_has_ended(client: Any) -> None:
    with RawServer(half_then_whole) as server:
        dependency = prices(server.url, bulkhead=1)
        client.open([dependency])
        held = client.send("GET", server.url + "/half")
        assert dependency.snapshot().in_use == 1
        with pytest.raises(client.failure) as caught:
            client.get(server.url + "/")
        assert isinstance(caught.value, CallRefused)
        assert caught.value.reason is Reason.BULKHEAD_FULL
        client.close(held)
        assert dependency.snapshot().in_use == 0
        for _ in range(3):
            assert client.get(server.url + "/").status == 200


@every_client
def test_one_state_for_all_clients(client: Any) -> None:
    with RawServer(half_then_whole) as server:
        dependency = prices(server.url, bulkhead=1)
        client.open([dependency])
        with httpx.Client(transport=ResilientTransport([dependency], verify=False)) as other:
            with other.stream("GET", server.url + "/half"), pytest.raises(CallRefused):
                client.get(server.url + "/")
            assert client.get(server.url + "/").status == 200
            held = client.send("GET", server.url + "/half")
            with pytest.raises(CallRefused):
                other.get(server.url + "/")
            client.close(held)
            assert other.get(server.url + "/").status_code == 200


@every_client
def test_a_body_that_is_cut_off_is_a_failure(client: Any) -> None:
    def cuts(connection: Connection) -> None:
        connection.request()
        connection.send(head(200, 1000) + b"x" * 500)

    with RawServer(cuts) as server:
        dependency = prices(server.url, breaker=BreakerPolicy(window=1, minimum_calls=1, open_for=30.0))
        client.open([dependency])
        with pytest.raises(client.failure) as caught:
            client.get(server.url + "/")
        assert not isinstance(caught.value, ResilienceError)
        with pytest.raises(CallRefused) as refused:
            client.get(server.url + "/")
        assert refused.value.reason is Reason.CIRCUIT_OPEN
        assert isinstance(refused.value, client.failure)
        assert dependency.snapshot().in_use == 0


@sync_clients
def test_a_response_that_is_thrown_away_gives_its_slot_back(client: Any) -> None:
    with RawServer(half_then_whole) as server:
        dependency = prices(server.url, bulkhead=1)
        client.open([dependency], 1)
        held = [client.send("GET", server.url + "/half")]
        with pytest.warns(ResilienceWarning, match="thrown away"):
            held.clear()
        gc.collect()
        assert dependency.snapshot().in_use == 0


@sync_clients
def test_a_head_without_a_body_holds_nothing(client: Any) -> None:
    def script(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            connection.send(head(204, None) if request.method == "GET" else head(200, 1000))

    with RawServer(script) as server:
        dependency = prices(server.url, bulkhead=1)
        client.open([dependency])
        for method in ("GET", "HEAD", "GET"):
            client.send(method, server.url + "/")
            assert dependency.snapshot().in_use == 0


# -- ends --------------------------------------------------------------------------------------------------------------


@sync_clients
def test_b53_closing_wakes_who_waits_for_his_next_attempt(client: Any) -> None:
    with RawServer(always_busy) as server:
        dependency = prices(
            server.url,
            retry=RetryPolicy(attempts=2, backoff_base=30.0, backoff_cap=30.0),
            total_timeout=None,
            timeout=None,
            breaker=None,
        )
        client.open([dependency])
        caught: list[BaseException] = []

        def call() -> None:
            try:
                client.get(server.url + "/")
            except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
                caught.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not server.requests:
            server.over.wait(0.01)
        for _ in range(100):
            client.end()
            thread.join(0.02)
            if not thread.is_alive():
                break
        assert isinstance(caught[0], client.ours.TransportClosed)
        assert isinstance(caught[0], client.failure)
        assert dependency.snapshot().in_use == 0


@every_client
def test_our_errors_survive_the_way_between_two_processes(client: Any) -> None:
    with RawServer(half_then_whole) as server:
        dependency = prices(server.url, bulkhead=1)
        client.open([dependency])
        caught: list[Any] = []
        for left in (0.1, 0.001):
            with current().within(left), pytest.raises(client.timeout) as raised:
                client.get(server.url + "/half", headers={"X-Own": "1"})
            caught.append(raised.value)
        held = client.send("GET", server.url + "/half")
        with pytest.raises(client.failure) as raised:
            client.get(server.url + "/half", headers={"X-Own": "1"})
        client.close(held)
        caught.append(raised.value)
        ours = client.ours
        assert [type(error) for error in caught] == [ours.CallExpired, ours.BudgetTooSmall, ours.CallRefused]
        for error in caught:
            there = pickle.loads(pickle.dumps(error))
            assert type(there) is type(error)
            assert (str(there), there.reason, there.dependency) == (str(error), error.reason, "prices")
            assert str(there.request.url) == server.url + "/half"
            assert there.request.headers["X-Own"] == "1"


@every_client
def test_many_calls_leave_nothing_behind(client: Any) -> None:
    """Half of them too short, in one pool of two connections."""

    def slow(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            if request.path == "/slow":
                connection.server.over.wait(0.05)
            connection.answer()

    with RawServer(slow) as server:
        dependency = prices(server.url, retry=None, breaker=None)
        client.open([dependency], 2)
        for index in range(20):
            with current().within(0.03 if index % 2 else 1.0), suppress(client.failure):
                client.get(server.url + ("/slow" if index % 2 else "/"))
        assert client.get(server.url + "/").status == 200
        assert dependency.snapshot().in_use == 0
