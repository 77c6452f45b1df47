"""What only urllib3 and requests have: their own retries, proxies, and what their errors look like."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import pytest
import requests
import urllib3

from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.runtime.context import current
from resilient_mw_integrations.requests import CallExpired, ResilientAdapter
from resilient_mw_integrations.urllib3 import ResilientPoolManager, wrap
from tests.transport.tcp_server import Connection, FullBacklog, RawServer, head


def prices(url: str, **keywords: Any) -> Dependency:
    return Dependency("prices", match=f"{url}/*", **{"retry": None, **keywords})


def busy(connection: Connection) -> None:
    while connection.request():
        connection.answer(503)


def answers(connection: Connection) -> None:
    while connection.request():
        connection.answer(200, b'{"price": 7}')


def never_answers(connection: Connection) -> None:
    connection.request()
    connection.hang()


def session(adapter: ResilientAdapter) -> requests.Session:
    made = requests.Session()
    made.trust_env = False
    made.mount("http://", adapter)
    return made


OFTEN = urllib3.Retry(3, status_forcelist=[503], backoff_factor=0)


def test_retries_of_the_library_do_not_multiply_ours() -> None:
    with RawServer(busy) as server:
        manager = ResilientPoolManager([prices(server.url)])
        assert manager.request("GET", server.url + "/", retries=OFTEN).status == 503
        assert len(server.requests) == 1
        with session(ResilientAdapter([prices(server.url)], max_retries=OFTEN)) as made:
            assert made.get(server.url + "/").status_code == 503
        assert len(server.requests) == 2
        other = ResilientPoolManager([prices("http://prices.test")])
        with pytest.raises(urllib3.exceptions.MaxRetryError):
            other.request("GET", server.url + "/", retries=OFTEN)
        assert len(server.requests) == 6


@pytest.mark.parametrize("retries", [None, 2, False])
def test_the_last_error_looks_as_without_us(retries: Any) -> None:
    with RawServer(answers) as server:
        url = server.url + "/"
    caught = []
    for manager in (ResilientPoolManager([prices(server.url)]), urllib3.PoolManager()):
        with pytest.raises(urllib3.exceptions.HTTPError) as raised:
            manager.request("GET", url, retries=0 if retries is None else retries)
        caught.append(raised.value)
    assert type(caught[0]) is type(caught[1])
    assert type(getattr(caught[0], "reason", None)) is type(getattr(caught[1], "reason", None))


def test_a_timeout_of_the_attempt_is_the_librarys_own() -> None:
    with RawServer(never_answers) as server:
        manager = ResilientPoolManager([prices(server.url, timeout=0.3)])
        with pytest.raises(urllib3.exceptions.MaxRetryError) as caught:
            manager.request("GET", server.url + "/")
        assert isinstance(caught.value.reason, urllib3.exceptions.ReadTimeoutError)
        with (
            session(ResilientAdapter([prices(server.url, timeout=0.3)])) as made,
            pytest.raises(requests.ReadTimeout),
        ):
            made.get(server.url + "/")


def test_a_body_that_is_read_in_the_end_or_at_once() -> None:
    with RawServer(answers) as server:
        dependency = prices(server.url, bulkhead=1)
        manager = ResilientPoolManager([dependency])
        assert manager.request("GET", server.url + "/").json() == {"price": 7}
        response = manager.request("GET", server.url + "/", preload_content=False)
        assert json.load(response) == {"price": 7}
        assert dependency.snapshot().in_use == 0
        assert server.connections == 1
        with session(ResilientAdapter([dependency])) as made:
            with made.get(server.url + "/", stream=True) as streamed:
                assert b"".join(streamed.iter_content(3)) == b'{"price": 7}'
            assert made.get(server.url + "/").json() == {"price": 7}
        assert dependency.snapshot().in_use == 0


def test_an_expired_body_of_requests_knows_its_request() -> None:
    def stalls(connection: Connection) -> None:
        connection.request()
        connection.send(head(200, 100) + b"x")
        connection.hang()

    with RawServer(stalls) as server, session(ResilientAdapter([prices(server.url)])) as made:
        with (
            current().within(0.1),
            made.get(server.url + "/", stream=True) as streamed,
            pytest.raises(CallExpired) as caught,
        ):
            list(streamed.iter_content(10))
        request: Any = caught.value.request
        assert isinstance(request, requests.PreparedRequest)
        assert isinstance(caught.value, DeadlineExceeded | requests.Timeout)


def test_an_existing_manager() -> None:
    with RawServer(busy) as server:
        manager = urllib3.PoolManager()
        dependency = prices(server.url)
        assert wrap(manager, [dependency]) is manager
        assert manager.request("GET", server.url + "/").status == 503
        assert dependency.snapshot().calls == 1
        with pytest.raises(ValueError, match="wrapped already"):
            wrap(manager, [dependency])


def test_through_a_proxy_the_dependency_is_the_one_behind_it() -> None:
    with RawServer(answers) as proxy:
        dependency = prices("http://prices.test", timeout=1.0)
        manager = wrap(urllib3.ProxyManager(proxy.url), [dependency])
        assert manager.request("GET", "http://prices.test/price").status == 200
        with session(ResilientAdapter([dependency])) as made:
            assert made.get("http://prices.test/price", proxies={"http": proxy.url}).status_code == 200
        assert dependency.snapshot().calls == 2
        assert [request.path for request in proxy.requests] == ["http://prices.test/price"] * 2
        assert all(request.all("x-request-timeout-ms") for request in proxy.requests)


def test_a_proxy_that_is_silent_does_not_hold_a_call() -> None:
    with RawServer(never_answers) as proxy:
        dependency = prices("https://prices.test", connect_timeout=5.0, reserve=0.0)
        manager = wrap(urllib3.ProxyManager(proxy.url), [dependency])
        with current().within(0.1), pytest.raises(DeadlineExceeded) as caught:
            manager.request("GET", "https://prices.test/")
        assert getattr(caught.value, "phase", None) == "connect"
        owner: Any = dependency.owner[0]
        assert owner.state.bad == 0  # It was the caller's small budget that ended it.


def test_a_proxy_that_never_accepts_ends_with_the_callers_budget() -> None:
    with FullBacklog() as proxy:
        dependency = prices("http://prices.test", connect_timeout=5.0, reserve=0.0)
        manager = wrap(urllib3.ProxyManager(proxy), [dependency])
        with current().within(0.1), pytest.raises(DeadlineExceeded):
            manager.request("GET", "http://prices.test/")
        assert dependency.snapshot().expired == {"connect": 1}


def test_headers_of_requests_go_over_as_they_are() -> None:
    with RawServer(answers) as server, session(ResilientAdapter([prices(server.url)])) as made:
        made.headers.clear()
        made.get(server.url + "/", headers={"X-A": "ä".encode("latin-1"), "X-B": b"\xff"})
        assert [server.requests[0].all(name) for name in ("x-a", "x-b")] == [["ä"], ["ÿ"]]


def test_b62_a_path_that_looks_like_a_url_does_not_make_a_dependency_of_a_stranger() -> None:
    with RawServer(answers) as stranger:
        dependency = prices("http://prices.test")
        manager = ResilientPoolManager([dependency])
        assert manager.request("GET", stranger.url + "/http://prices.test/x").status == 200
        assert stranger.requests[0].all("x-request-timeout-ms") == []


def test_an_adapter_says_that_it_cannot_go_to_another_process() -> None:
    with (
        session(ResilientAdapter([prices("http://prices.test")])) as made,
        pytest.raises(TypeError, match="Mount a new one"),
    ):
        pickle.dumps(made)


def begins_an_answer(connection: Connection) -> None:
    while connection.request():
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n1234")


@pytest.mark.filterwarnings("ignore::resilient_mw.ResilienceWarning")
def test_a_forgotten_response_takes_no_lock_of_its_pool_and_leaves_its_place() -> None:
    with RawServer(begins_an_answer) as server:
        manager = ResilientPoolManager([prices(server.url, bulkhead=1)], maxsize=1, block=True)

        def ask() -> Any:
            return manager.request("GET", server.url + "/", preload_content=False, pool_timeout=1)

        forgotten = [ask()]
        pool = manager.connection_from_url(server.url).pool
        assert pool is not None

        def collected_by_whoever_takes_a_connection() -> None:
            with pool.mutex:
                forgotten.clear()

        thread = threading.Thread(target=collected_by_whoever_takes_a_connection, daemon=True)
        thread.start()
        thread.join(2)
        assert not thread.is_alive()
        for _ in range(2):
            ask().close()
