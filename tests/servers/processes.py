"""Real ASGI servers as processes of their own, on free ports of the loopback interface."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

Command = Callable[[str, int], list[str]]


def _uvicorn(http: str, loop: str, *more: str) -> Command:
    return lambda app, port: [
        "uvicorn", app, "--port", str(port), "--http", http, "--loop", loop, "--no-access-log",
        "--timeout-graceful-shutdown", "2", "--no-proxy-headers", *more,
    ]  # fmt: skip


COMMANDS: dict[str, Command] = {
    "uvicorn-h11": _uvicorn("h11", "asyncio"),
    "uvicorn-httptools": _uvicorn("httptools", "uvloop"),
    "uvicorn-wsproto": _uvicorn("h11", "asyncio", "--ws", "wsproto"),
    "uvicorn-websockets": _uvicorn("httptools", "uvloop", "--ws", "auto"),
    "uvicorn-refusing": _uvicorn("resilient_mw_integrations.uvicorn:RefusingProtocol", "uvloop"),
    "hypercorn": lambda app, port: ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "--graceful-timeout", "1"],
    "hypercorn-trio": lambda app, port: ["hypercorn", app, "--bind", f"127.0.0.1:{port}", "--worker-class", "trio"],
    "granian": lambda app, port: [
        "granian", app, "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port),
        "--workers-kill-timeout", "2",
    ],
    "gunicorn": lambda app, port: [
        "gunicorn", app, "--worker-class", "asgi", "--workers", "1", "--bind", f"127.0.0.1:{port}",
        "--graceful-timeout", "2", "--no-control-socket",
    ],
    "daphne": lambda app, port: ["daphne", "--bind", "127.0.0.1", "--port", str(port), app],
}  # fmt: skip


@dataclass
class Server:
    """A running server.

    Attributes:
        name: the key in `COMMANDS`.
        port: where it listens.
        log: what it writes, both streams.
    """

    name: str
    port: int
    log: Path
    process: subprocess.Popen[bytes]

    def logged(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ended(self, within: float) -> int:
        """Wait until it ends by itself; return its status."""
        return self.process.wait(within)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
        return True
    return False


@contextmanager
def launched(
    name: str,
    folder: Path,
    app: str = "app",
    source: str = "tests.servers.probe",
    environment: Sequence[tuple[str, str]] = (),
) -> Iterator[Server]:
    """Start a server in a process group of its own, and end the whole group afterwards."""
    port = free_port()
    module, *arguments = COMMANDS[name](f"{source}:{app}", port)
    log = folder / f"{name}-{app}-{port}.log"
    path = os.pathsep.join([str(ROOT), str(ROOT / "integrations")])
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], cwd=folder, stdout=stream, stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PROBE_OWNER": str(os.getpid())} | dict(environment),
            start_new_session=True,
        )  # fmt: skip
    try:
        yield Server(name, port, log, process)
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    group = process.pid
    for order in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(group, order)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
            break
    with suppress(ProcessLookupError):  # workers that outlived their parent
        os.killpg(group, signal.SIGKILL)
    process.wait(5)


@contextmanager
def listening(
    name: str, folder: Path, app: str = "app", source: str = "tests.servers.probe"
) -> Iterator[Server]:
    """Start a server and wait until it accepts connections; another port if somebody else took the first one."""
    for attempt in range(3):
        with launched(name, folder, app, source) as server:
            end = time.monotonic() + 30
            while server.process.poll() is None and not _listens(server.port):
                assert time.monotonic() < end, server.logged()
                time.sleep(0.02)
            if server.process.poll() is None:
                yield server
                return
            assert attempt < 2, server.logged()
