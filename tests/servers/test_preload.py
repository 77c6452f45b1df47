"""gunicorn that loads the application once and forks its workers from that (B94), with each kind of worker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.processes import COMMANDS, Server, launched
from tests.servers.wire import ask

pytestmark = pytest.mark.slow

KINDS = {
    "sync": "application",
    "gthread": "application",
    "asgi": "app",
    "uvicorn_worker.UvicornWorker": "app",
}


@contextlib.contextmanager
def _workers(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setitem(COMMANDS, "preloading", lambda app, port: [
        "gunicorn", app, "--preload", "--workers", "3", "--worker-class", kind, "--bind", f"127.0.0.1:{port}",
        "--graceful-timeout", "2", "--no-control-socket",
    ])  # fmt: skip
    with launched("preloading", folder, app=KINDS[kind], source="tests.servers.preloaded") as server:
        yield server


async def _state(server: Server) -> Any:
    end = time.monotonic() + 40
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            return (await asyncio.wait_for(ask(server.port, "/state"), 10)).json
        assert time.monotonic() < end, server.logged()
        assert server.process.poll() is None, server.logged()
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", list(KINDS))
async def test_b94_workers_serve_whatever_the_parent_was_at_when_it_forked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gunicorn")
    if kind.startswith("uvicorn_worker"):
        pytest.importorskip("uvicorn_worker")
    with _workers(kind, tmp_path, monkeypatch) as server:
        await _state(server)
        answers = [await ask(server.port, "/work") for _ in range(12)]
        assert [answer.status for answer in answers] == [200] * 12
        states: dict[int, Any] = {}
        end = time.monotonic() + 20
        while len(states) < 2 and time.monotonic() < end:
            several = await asyncio.gather(*(_state(server) for _ in range(6)))
            states |= {each["worker"]: each for each in several}
        assert len(states) >= 2, server.logged()  # how connections are shared out is the system's affair
        for state in states.values():
            assert state["loaded by"] == server.process.pid != state["worker"]
            assert (state["slots"], state["attempts"], state["reasons"]) == (0, 0, [])
            assert state["arrived"] <= 12
        assert len({state["random"] for state in states.values()}) == len(states)
