"""SIGTERM with requests in flight, on real servers: who finishes, who is refused, and that the process ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.processes import COMMANDS, Server, launched
from tests.servers.test_matrix import until
from tests.servers.wire import Answer, ask

pytestmark = pytest.mark.slow

# With time to finish, unlike those of the other tests.
PATIENT = {
    "uvicorn-h11": lambda app, port: ["uvicorn", app, "--port", str(port), "--http", "h11", "--loop", "asyncio"],
    "uvicorn-httptools": lambda app, port: [
        "uvicorn", app, "--port", str(port), "--http", "httptools", "--loop", "uvloop",
    ],
    "hypercorn": lambda app, port: ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "--graceful-timeout", "30"],
    "granian": lambda app, port: [
        "granian", app, "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port),
    ],
    "gunicorn": lambda app, port: [
        "gunicorn", app, "--worker-class", "asgi", "--bind", f"127.0.0.1:{port}", "--graceful-timeout", "30",
        "--no-control-socket",
    ],
    "gunicorn-uvicorn_worker": lambda app, port: [
        "gunicorn", app, "--worker-class", "uvicorn_worker.UvicornWorker", "--bind", f"127.0.0.1:{port}",
        "--graceful-timeout", "30", "--no-control-socket",
    ],
}  # fmt: skip
DRAINING = ["uvicorn-h11", "uvicorn-httptools", "gunicorn", "gunicorn-uvicorn_worker"]
"""Whose workers get the signal and go on listening."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, command in PATIENT.items():
        monkeypatch.setitem(COMMANDS, name, command)


@contextlib.contextmanager
def _serving(name: str, folder: Path, **environment: object) -> Iterator[Server]:
    pytest.importorskip(name.split("-", maxsplit=1)[0])
    given = [(key, str(value)) for key, value in environment.items()]
    with launched(name, folder, source="tests.servers.stopping", environment=given) as server:
        yield server


async def _ready(server: Server) -> None:
    end = time.monotonic() + 40
    while await _asked(server, "/readyz") is None:
        assert time.monotonic() < end, server.logged()
        assert server.process.poll() is None, server.logged()
        await asyncio.sleep(0.05)


async def _asked(server: Server, path: str) -> Answer | None:
    """Return the answer; None if nobody listens."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        return await asyncio.wait_for(ask(server.port, path), 5)
    return None


async def _in_flight(server: Server, path: str) -> asyncio.Task[Answer]:
    task = asyncio.create_task(ask(server.port, path))
    async with asyncio.timeout(20):
        while (running := await _asked(server, "/healthz")) is None or running.json == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    server.process.send_signal(signal.SIGTERM)
    return task


async def _ended(server: Server, within: float) -> None:
    end = time.monotonic() + within
    while server.process.poll() is None:
        assert time.monotonic() < end, server.logged()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("name", list(PATIENT))
async def test_what_is_in_flight_finishes_and_nothing_new_is_taken(name: str, tmp_path: Path) -> None:
    with _serving(name, tmp_path) as server:
        await _ready(server)
        slow = await _in_flight(server, "/4")
        while (late := await _asked(server, "/0")) is not None and late.status != 503:
            assert not slow.done()
            await asyncio.sleep(0.1)  # gunicorn looks once a second
        answer = await slow
        await _ended(server, 20)
        assert (answer.status, answer.body) == (200, b"finished")
        # The application is told when nothing runs any more. hypercorn and granian may tell it in their own time.
        assert "shut down with in flight: 0" in server.logged()


@pytest.mark.parametrize("name", DRAINING)
async def test_the_signal_drains_first_where_the_process_gets_it(name: str, tmp_path: Path) -> None:
    with _serving(name, tmp_path, STOP_SIGNAL=1, STOP_DELAY=2) as server:
        await _ready(server)
        slow = await _in_flight(server, "/4")
        await asyncio.sleep(0.3)
        grace, readiness = await _asked(server, "/0"), await _asked(server, "/readyz")
        assert grace is not None, server.logged()
        assert readiness is not None, server.logged()
        assert (grace.status, readiness.json[1:]) == (200, ["draining"])
        await asyncio.sleep(2.2)
        late = await _asked(server, "/0")
        if late is not None:
            assert (late.status, late.headers["x-refusal-reason"]) == (503, "draining")
            assert late.headers["connection"] == "close"
        answer = await slow
        await _ended(server, 20)
        assert (answer.status, answer.body) == (200, b"finished")


@pytest.mark.parametrize("name", DRAINING)
async def test_the_process_ends_in_the_bound(name: str, tmp_path: Path) -> None:
    with _serving(name, tmp_path, STOP_SIGNAL=1, STOP_TIMEOUT=1) as server:
        await _ready(server)
        slow = await _in_flight(server, "/50")
        answer = await slow
        await _ended(server, 20)
        assert (answer.status, answer.json["reason"]) == (503, "draining")
        assert answer.seconds < 10
        assert "cancelled" in server.logged()


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with _serving("uvicorn-h11", tmp_path, STOP_SIGNAL=1, STOP_DELAY=60) as server:
        await _ready(server)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        await _ended(server, 20)


async def test_b98_after_a_pause_of_the_process_who_waited_for_too_long_is_dropped(tmp_path: Path) -> None:
    """The monotonic clock runs on while the process is stopped: old waiters go, new requests are served."""
    with launched("uvicorn-h11", tmp_path) as server:
        end = time.monotonic() + 40
        while await _asked(server, "/healthz") is None:
            assert time.monotonic() < end, server.logged()
            await asyncio.sleep(0.05)
        holding = asyncio.create_task(ask(server.port, "/hold"))
        await until(server, lambda now: now["slots"] == 20, 10.0)
        waiting = asyncio.create_task(ask(server.port, "/hello"))
        await until(server, lambda now: now["queued"] == 1, 1.0)
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2.0)
        server.process.send_signal(signal.SIGCONT)
        assert (await waiting).headers["x-refusal-reason"] == "queue_timeout"
        await ask(server.port, "/go")
        assert (await holding).status == 200
        assert (await ask(server.port, "/hello")).status == 200
