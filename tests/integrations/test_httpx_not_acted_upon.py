"""What the other side did not act upon, on real connections: streams that HTTP/2 refuses, kept connections that close."""

from __future__ import annotations

import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import httpx
import pytest

from resilient_mw import BreakerPolicy, Dependency, RetryPolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw_integrations.httpx import ResilientTransport
from tests.transport.tcp_server import Connection, RawServer

POLICY = RetryPolicy(attempts=2, backoff_base=0.0, budget_per_second=1000.0)
RESETS = {"refused": 7, "cancelled": 8}


def _serve(sock: socket.socket, first: str, asked: list[str]) -> None:
    machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    machine.initiate_connection()
    sock.sendall(machine.data_to_send())
    while data := sock.recv(65_536):
        for event in machine.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                asked.append("ok" if asked else first)
                _answer(machine, event.stream_id, asked[-1])
        sock.sendall(machine.data_to_send())


def _answer(machine: h2.connection.H2Connection, stream: int, how: str) -> None:
    if how in RESETS:
        machine.reset_stream(stream, error_code=RESETS[how])
    elif how == "goaway":
        machine.close_connection(last_stream_id=0)
    else:
        machine.send_headers(stream, [(":status", "200")], end_stream=True)


@contextmanager
def http2_server(first: str) -> Iterator[tuple[str, list[str]]]:
    """A server that refuses the first stream in some way and answers all others; its URL, and what it was asked."""
    asked: list[str] = []

    def one(sock: socket.socket) -> None:
        with sock:
            try:
                _serve(sock, first, asked)
            except (OSError, h2.exceptions.ProtocolError):
                pass

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=(sock,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5.0)


@pytest.mark.parametrize(("first", "requests"), [("refused", 2), ("goaway", 2), ("cancelled", 1)])
def test_a_post_is_repeated_where_http2_says_that_it_was_not_acted_upon(first: str, requests: int) -> None:
    with http2_server(first) as (url, asked):
        dependency = Dependency("peer", f"{url}/*", retry=POLICY, breaker=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResilienceWarning)
            transport = ResilientTransport([dependency], http1=False, http2=True)
        with httpx.Client(transport=transport) as client:
            if requests == 1:
                with pytest.raises(httpx.RemoteProtocolError):
                    client.post(url)
            else:
                assert client.post(url).status_code == 200
        assert len(asked) == requests
        owner: Any = dependency.owner[0]
        assert owner.judged()[1] == (1 if first == "cancelled" else 0)


def test_b59_ten_closed_connections_among_a_thousand_answers() -> None:
    def script(connection: Connection) -> None:
        for _ in range(100):
            if connection.request() is None:
                return
            connection.answer()
        connection.request()  # Closed exactly when the next one comes.

    with RawServer(script) as server:
        breaker = BreakerPolicy(window=20, minimum_calls=5, failure_ratio=0.05)
        dependency = Dependency("peer", f"{server.url}/*", retry=POLICY, breaker=breaker)
        with httpx.Client(transport=ResilientTransport([dependency])) as client:
            for number in range(1000):
                assert client.request("PUT" if number % 2 else "GET", server.url).status_code == 200
        snapshot = dependency.snapshot()
        assert snapshot.attempts == {"2xx": 1000, "error": 9}
        assert snapshot.retries == 9
        assert snapshot.breaker == "closed"
        assert snapshot.recent_transitions == ()


@pytest.mark.parametrize(("method", "attempts"), [("GET", 2), ("POST", 1)])
def test_b59_half_a_head_is_another_class(method: str, attempts: int) -> None:
    def script(connection: Connection) -> None:
        connection.request()
        connection.answer()
        connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\nConte")

    with RawServer(script) as server:
        dependency = Dependency("peer", f"{server.url}/*", retry=POLICY, breaker=None)
        with httpx.Client(transport=ResilientTransport([dependency])) as client:
            assert client.get(server.url).status_code == 200
            if attempts == 1:
                with pytest.raises(httpx.RemoteProtocolError):
                    client.request(method, server.url)
            else:
                assert client.request(method, server.url).status_code == 200
        assert len(server.requests) == 1 + attempts
        owner: Any = dependency.owner[0]
        assert owner.judged()[1] == 1, "the dependency is blamed: it had begun to answer"
