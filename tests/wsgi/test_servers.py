"""The middleware on real servers: field cases B26, B35 and B43 over the wire, lateness, and what servers differ in."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.wsgi import served_app
from tests.wsgi.servers import Reply, Server, ask, serve


@pytest.fixture(scope="module", params=["gunicorn", "waitress", "granian"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve(request.param, "tests.wsgi.served_app:application") as running:
        yield running


@pytest.fixture
def users() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def test_b26_a_full_server_queues_and_refuses_while_health_checks_pass(
    server: Server, users: ThreadPoolExecutor
) -> None:
    served: list[Future[Reply]] = [users.submit(server.get, "/long/held") for _ in range(4)]
    server.wait_for(slots=2, queued=2)
    health = [server.get("/health") for _ in range(5)]
    refused = [server.get("/long/held") for _ in range(3)]
    assert not any(future.done() for future in served)  # nobody has waited for a slot
    assert [reply.status for reply in health] == [200] * 5
    for reply in refused:
        assert reply.status == 503
        assert reply.header("X-Refusal-Reason") == "queue_full"
        assert int(reply.header("Retry-After") or "") >= 1
        assert json.loads(reply.body)["reason"] == "queue_full"
    server.get("/let_go")
    server.wait_for(slots=2, queued=0)  # those who waited
    assert sum(future.done() for future in served) <= 2
    server.get("/let_go")
    assert [future.result().status for future in served] == [200] * 4
    server.wait_for(slots=0)


def test_a_refusal_keeps_the_connection(server: Server) -> None:
    with contextlib.closing(server.connect()) as connection:
        assert ask(connection, "/sleep").body == b"slept"
        kept = connection.sock
        assert kept is not None
        for method in ("GET", "HEAD", "GET"):
            reply = ask(connection, "/sleep", {"X-Request-Timeout-Ms": "0"}, method)
            assert (reply.status, reply.header("X-Refusal-Reason")) == (504, "expired_on_arrival")
            assert reply.header("Content-Length") != "0"
        assert ask(connection, "/sleep").body == b"slept"
        assert connection.sock is kept


def test_an_answer_that_comes_too_late_is_replaced(server: Server) -> None:
    before = server.state()
    reply = server.get("/sleep?s=0.5", {"X-Request-Timeout-Ms": "200"})
    assert reply.status == 504
    assert json.loads(reply.body)["reason"] == "deadline_exceeded"
    assert reply.header("X-Refusal-Reason") is None
    server.wait_for(slots=0, late=before["late"] + 1)
    assert server.state()["outcomes"]["deadline"] == before["outcomes"].get("deadline", 0) + 1


def test_check_makes_the_504_come_on_time(server: Server) -> None:
    before = server.state()["late"]
    reply = server.get("/check", {"X-Request-Timeout-Ms": "200"})
    assert reply.status == 504
    assert reply.took < 5.0  # it would take ten seconds
    server.wait_for(slots=0)
    assert server.state()["late"] == before


def test_a_stream_passes_whole(server: Server) -> None:
    reply = server.get("/long/stream")
    assert (reply.status, len(reply.body), reply.header("X-Lazy")) == (200, 20 * 65_536, "1")
    server.wait_for(slots=0)


def test_a_stream_that_goes_on_after_its_deadline_is_cut_off(server: Server) -> None:
    closed = server.state()["closed"]
    reply = server.get("/stream?s=0.1")
    assert reply.status == 200
    assert reply.cut_off
    assert len(reply.body) < 20 * 65_536
    server.wait_for(slots=0, closed=closed + 1)


def test_b43_a_caller_who_leaves_gives_the_slot_back(server: Server) -> None:
    before = server.state()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /long/stream?s=0.2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert server.state()["slots"] == 1
    server.wait_for(slots=0, closed=before["closed"] + 1)
    outcome = server.state()["outcomes"]
    assert outcome["client_disconnect"] == before["outcomes"].get("client_disconnect", 0) + 1


@pytest.mark.parametrize("path", ["loop", "deaf"])
def test_b29_work_learns_that_its_caller_has_gone(server: Server, path: str) -> None:
    if server.kind == "granian":
        pytest.skip("granian tells nobody")
    before = server.state()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"GET /long/{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        server.wait_for(slots=1)
    server.wait_for(slots=0)  # long before the work would have ended by itself
    after = server.state()
    assert after["outcomes"]["client_disconnect"] == before["outcomes"].get("client_disconnect", 0) + 1
    expected = {"callback client_disconnect"} | ({"check client_disconnect"} if path == "loop" else set())
    assert set(after["told"][len(before["told"]) :]) == expected


def test_b29_a_body_that_has_begun_ends_when_its_caller_leaves(server: Server) -> None:
    if server.kind == "granian":
        pytest.skip("granian tells nobody")
    before = server.state()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /long/begun HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"begun" not in received:
            received += connection.recv(1000)
    server.wait_for(slots=0)
    after = server.state()
    assert after["outcomes"]["client_disconnect"] == before["outcomes"].get("client_disconnect", 0) + 1
    assert "check client_disconnect" in after["told"][len(before["told"]) :]


def test_b29_who_leaves_the_queue_takes_no_place_in_it(server: Server, users: ThreadPoolExecutor) -> None:
    if server.kind == "granian":
        pytest.skip("granian tells nobody")
    before = server.state()["left"]
    blocking = [users.submit(server.get, "/long/held") for _ in range(2)]
    server.wait_for(slots=2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /long/held HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server.wait_for(queued=1)
    server.wait_for(queued=0, left=before + 1)
    server.get("/let_go")
    assert [future.result().status for future in blocking] == [200, 200]
    server.wait_for(slots=0)


def test_b35_streams_in_progress_are_bounded(server: Server, users: ThreadPoolExecutor) -> None:
    streams = [users.submit(server.get, "/long/stream?s=0.1") for _ in range(2)]
    server.wait_for(slots=2)
    late = server.get("/sleep", {"X-Request-Timeout-Ms": "100"})
    assert (late.status, late.header("X-Refusal-Reason")) == (504, "expired_in_queue")
    assert [len(future.result().body) for future in streams] == [20 * 65_536] * 2
    server.wait_for(slots=0)


def test_slow_uploads_hold_no_slot(server: Server) -> None:
    request = (
        b"POST /long/echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nConnection: close\r\n\r\n01234"
    )
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10))
            for _ in range(4)
        ]
        for connection in connections:
            connection.sendall(request)
        # As many as may run and wait together.
        for _ in range(5):
            server.wait_for(slots=0, queued=0)
            assert server.get("/sleep").status == 200
        for connection in connections:
            connection.sendall(b"56789")
            answer = b""
            while data := connection.recv(65_536):
                answer += data
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"0123456789" in answer
    server.wait_for(slots=0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_file_is_sent_by_the_server_itself(server: Server, method: str) -> None:
    before = server.state()
    reply = server.get("/file", method=method)
    assert reply.body == (Path(served_app.__file__).read_bytes() if method == "GET" else b"")
    server.wait_for(slots=0)
    after = server.state()
    assert after["outcomes"]["completed"] == before["outcomes"].get("completed", 0) + 1
    if server.kind == "gunicorn":
        assert after["reads"] == before["reads"], "the kernel copies it"


def test_b46_a_replaced_response_is_one_response(server: Server) -> None:
    reply = server.get("/replaced")
    assert (reply.status, reply.body) == (500, b"sorry")
    assert reply.header("Content-Type") == "text/plain"
    assert reply.header("X-First") is None


@pytest.mark.parametrize(("path", "method"), [("/empty", "GET"), ("/sleep", "HEAD"), ("/stream", "HEAD")])
def test_answers_without_a_body_give_the_slot_back(server: Server, path: str, method: str) -> None:
    server.wait_for(slots=0)
    before = server.state()["outcomes"]
    reply = server.get(path, method=method)
    assert reply.body == b""
    server.wait_for(slots=0)
    assert server.state()["outcomes"] == before | {"completed": before.get("completed", 0) + 1}


def test_b10_path_tricks_reach_no_exempt_route(server: Server, users: ThreadPoolExecutor) -> None:
    blocking = [users.submit(server.get, "/long/held") for _ in range(4)]
    server.wait_for(slots=2, queued=2)
    for path in ("/health/", "/healthz-admin", "/HEALTH", "/health%2f", "/health/../admin", "/health%20"):
        assert server.get(path).status == 503, path
    assert server.get("/health").status == 200
    server.get("/let_go")
    server.wait_for(slots=2, queued=0)
    server.get("/let_go")
    for future in blocking:
        future.result()


def test_b95_a_deadline_that_stands_twice_is_ignored(server: Server) -> None:
    request = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Request-Timeout-Ms: 0\r\nX-Request-Timeout-Ms: 0\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(65_536):
            answer += data
    assert b" 200 " in answer.split(b"\r\n")[0]
    assert b"'/x' 1.0" in answer
