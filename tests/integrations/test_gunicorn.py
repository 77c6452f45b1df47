"""The ready configuration on real gunicorn workers: a dead backlog is refused and not worked on; count, drain, fork."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

gunicorn = pytest.importorskip("resilient_mw_integrations.gunicorn")

from resilient_mw.runtime.clocks import MONOTONIC  # noqa: E402  only where there is gunicorn
from tests.wsgi import servers  # noqa: E402
from tests.wsgi.servers import Reply, Server, serve  # noqa: E402

APP = "tests.integrations.backlogged_app:application"


@contextmanager
def running(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Iterator[Server]:
    """Run gunicorn with the ready configuration and four threads, or as the arguments say."""
    usual = servers.command
    more = ["--config", "python:resilient_mw_integrations.gunicorn", "--graceful-timeout", "30", *arguments]

    def command(kind: str, app: str, listening: socket.socket) -> list[str]:
        made = usual(kind, app, listening)
        bind = made[made.index("--bind") : made.index("--bind") + 2]
        return [*made[: made.index("gunicorn") + 1], *bind, *more, app]

    monkeypatch.setattr(servers, "command", command)
    monkeypatch.setenv("HOLD", str(folder))
    with serve("gunicorn", APP) as server:
        yield server


def held(folder: Path, server: Server, pool: ThreadPoolExecutor, count: int) -> list[Future[Reply]]:
    """Occupy threads until `let_go`."""
    held = [pool.submit(server.get, "/hold") for _ in range(count)]
    until(lambda: len(list(folder.glob("held-*"))) == count)
    return held


def let_go(folder: Path) -> None:
    (folder / "let-go").touch()


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it has not come to that")


def ask_all(server: Server, stack: ExitStack, count: int, path: str, budget_ms: int) -> list[socket.socket]:
    """Send requests, each on a connection of its own, and do not wait for an answer."""
    wires = []
    for _ in range(count):
        wire = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        wire.sendall(request(path, budget_ms))
        wires.append(wire)
    return wires


def request(path: str, budget_ms: int) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nX-Request-Timeout-Ms: {budget_ms}\r\nConnection: close\r\n\r\n".encode()


def answers(wires: list[socket.socket]) -> Counter[tuple[int, str]]:
    """Return the statuses of the responses, with the reason of each that is a refusal.

    All are read at once: gunicorn's loop waits a while for each caller to close his end of a connection that it closes.
    """
    with ThreadPoolExecutor(len(wires)) as pool:
        return Counter(pool.map(answer, wires))


def answer(wire: socket.socket) -> tuple[int, str]:
    with wire:
        text = b"".join(iter(lambda: wire.recv(4096), b"")).decode()
    reason = re.search(r"^X-Refusal-Reason: (\w+)", text, re.IGNORECASE | re.MULTILINE)
    return int(text.split()[1]), "" if reason is None else reason[1]


def test_a_dead_backlog_is_refused_without_reaching_the_application(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        running(monkeypatch, tmp_path, "--threads", "4") as server,
        ThreadPoolExecutor(8) as pool,
        ExitStack() as stack,
    ):
        assert server.state()["threads"] == 4
        busy = held(tmp_path, server, pool, 4)
        backlog = ask_all(server, stack, 200, "/0", budget_ms=1000)
        time.sleep(1.2)
        let_go(tmp_path)
        assert answers(backlog) == {(504, "expired_on_arrival"): 200}
        assert {future.result().status for future in busy} == {200}
        state = server.state()
    assert state["served"] == 0
    assert state["refused"] == {"expired_on_arrival": 200}


def test_what_did_not_wait_too_long_is_served_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with running(monkeypatch, tmp_path, "--threads", "4") as server, ThreadPoolExecutor(8) as pool:
        busy = held(tmp_path, server, pool, 4)
        late = pool.submit(server.get, "/0", {"X-Request-Timeout-Ms": "30000"})
        time.sleep(1.5)
        let_go(tmp_path)
        assert {future.result().status for future in busy} == {200}
        assert late.result().status == 200
        assert float(late.result().body) < 29.2


def test_a_caller_who_connects_first_and_asks_later_is_not_charged_for_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        running(monkeypatch, tmp_path, "--threads", "4") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=30) as wire,
    ):
        time.sleep(3.0)
        wire.sendall(request("/0", budget_ms=30_000))
        text = b"".join(iter(lambda: wire.recv(4096), b"")).decode()
    assert text.startswith("HTTP/1.1 200 ")
    assert float(text.split("\r\n\r\n")[1]) > 27.3


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel does not tell when bytes came in")
def test_sync_workers_say_that_nothing_is_left_to_admit_and_keep_deadlines(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    arguments = ["--worker-class", "sync", "--error-logfile", str(log), "--capture-output"]
    with (
        running(monkeypatch, tmp_path, *arguments) as server,
        ThreadPoolExecutor(8) as pool,
        ExitStack() as stack,
    ):
        assert server.state()["threads"] == 1
        assert log.read_text().count("app: gunicorn's sync worker gives this process one worker thread") == 1
        old = {"X-Request-Start": f"t={time.time() - 30:.3f}", "X-Request-Timeout-Ms": "9000"}
        assert server.get("/0", old).header("X-Refusal-Reason") == "expired_on_arrival"
        late = server.get("/0.5", {"X-Request-Timeout-Ms": "300"})
        assert late.status == 504
        busy = held(tmp_path, server, pool, 1)
        backlog = ask_all(server, stack, 10, "/0", budget_ms=1000)
        time.sleep(1.2)
        let_go(tmp_path)
        assert answers(backlog) == {(504, "expired_on_arrival"): 10}
        assert busy[0].result().status == 200


def test_b94_forked_workers_of_a_loaded_application_count_drain_and_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        running(monkeypatch, tmp_path, "--threads", "5", "--preload") as server,
        ThreadPoolExecutor(8) as pool,
    ):
        state = server.state()
        assert (state["preloaded"], state["threads"]) == (True, 5)
        busy = held(tmp_path, server, pool, 3)
        server.process.send_signal(signal.SIGTERM)
        until((tmp_path / "draining").exists)
        let_go(tmp_path)
        assert {future.result().status for future in busy} == {200}
        assert server.process.wait(40) == 0


def test_at_sigterm_what_stands_before_the_threads_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (
        running(monkeypatch, tmp_path, "--threads", "4") as server,
        ThreadPoolExecutor(8) as pool,
        ExitStack() as stack,
    ):
        busy = held(tmp_path, server, pool, 4)
        backlog = ask_all(server, stack, 12, "/5", budget_ms=60_000)
        time.sleep(1.5)  # for the worker to accept them
        server.process.send_signal(signal.SIGTERM)
        until((tmp_path / "draining").exists)
        let_go(tmp_path)
        assert {future.result().status for future in busy} == {200}
        assert answers(backlog) == {(503, "draining"): 12}


# -- without a server -------------------------------------------------------------------------------------------------


def test_names_of_the_configuration_are_settings_of_gunicorn() -> None:
    from gunicorn.config import Config

    settings = set(Config().settings)
    assert set(gunicorn.__all__) <= settings
    assert {name for name in vars(gunicorn) if name in settings} == set(gunicorn.__all__)


def test_the_time_since_the_last_bytes() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
    ):
        theirs, _ = listening.accept()
        with theirs:
            ours.sendall(b"a")
            time.sleep(0.3)
            assert 0.2 < gunicorn.since_last_data(theirs) < 10
    assert gunicorn.since_last_data(theirs) == 0.0  # closed
    assert gunicorn.since_last_data(None) == 0.0
    one, other = socket.socketpair()
    with one, other:
        assert gunicorn.since_last_data(one) == 0.0


def connection(sock: Any, **more: Any) -> Any:
    return SimpleNamespace(
        sock=sock, queued_at=MONOTONIC.now() - 5.0, initialized=False, data_ready=False, **more
    )


def test_over_a_unix_socket_the_time_since_the_connection_was_queued_counts() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        assert gunicorn._waited(connection(theirs)) == 0.0  # nothing was asked for yet
        ours.sendall(b"GET")
        assert gunicorn._waited(connection(theirs)) >= 5.0
        kept = connection(theirs)
        kept.initialized = True
        assert theirs.recv(3) == b"GET"
        assert gunicorn._waited(kept) >= 5.0  # its bytes may have been read ahead


def test_a_grace_that_is_too_short_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = SimpleNamespace(name="app", drain_delay=5.0, drain_timeout=20.0, drain_on_signal=lambda: None)
    monkeypatch.setattr(gunicorn, "wsgi_policies", lambda: [policy])
    monkeypatch.setattr(gunicorn, "tell_threads", lambda *told: None)
    settings = SimpleNamespace(worker_class_str="gthread", threads=40, graceful_timeout=24)
    gunicorn.post_worker_init(SimpleNamespace(cfg=settings, wsgi=None))
    assert re.search("take 25 s, .*graceful_timeout=24 s", caplog.text)
    caplog.clear()
    settings.graceful_timeout = 25
    gunicorn.post_worker_init(SimpleNamespace(cfg=settings, wsgi=None))
    assert not caplog.text


@pytest.mark.parametrize("kind", ["asgi", "gevent", "uvicorn_worker.UvicornWorker"])
def test_workers_of_other_kinds_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(gunicorn, "wsgi_policies", lambda: [SimpleNamespace()])
    worker = SimpleNamespace(cfg=SimpleNamespace(worker_class_str=kind, threads=1), wsgi=len)
    gunicorn.post_worker_init(worker)
    assert worker.wsgi is len


def test_nothing_is_done_where_everything_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gunicorn, "wsgi_policies", lambda: [SimpleNamespace()])
    monkeypatch.setattr(gunicorn.switch, "DISABLED", True)
    worker = SimpleNamespace(cfg=SimpleNamespace(worker_class_str="gthread", threads=8), wsgi=len)
    gunicorn.post_worker_init(worker)
    assert worker.wsgi is len
