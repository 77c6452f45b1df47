"""Real WSGI servers on loopback, each in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.architecture.source_tree import ROOT

THREADS = 8
WAITRESS = (
    "import socket, sys, waitress; from importlib import import_module; "
    "module, name = sys.argv[1].split(':'); "
    "waitress.serve(getattr(import_module(module), name), sockets=[socket.socket(fileno=int(sys.argv[2]))], "
    f"threads={THREADS}, channel_request_lookahead=1)"
)


@dataclass
class Reply:
    """An answer, or as much of it as came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    cut_off: bool = False
    took: float = 0.0

    def header(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key.lower() == name.lower()]
        return values[0] if len(values) == 1 else None


@dataclass
class Server:
    """A server that listens."""

    kind: str
    port: int
    process: subprocess.Popen[str]

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Reply:
        """Send one request on a connection of its own."""
        connection = self.connect()
        try:
            return ask(connection, path, headers, method)
        finally:
            connection.close()

    def state(self) -> dict[str, Any]:
        """The figures of the application."""
        found: dict[str, Any] = json.loads(self.get("/state").body)
        return found

    def wait_for(self, **figures: Any) -> None:
        """Wait until the application says so, five seconds at most."""
        for _ in range(250):
            state = self.state()
            if figures.items() <= state.items():
                return
            time.sleep(0.02)
        raise AssertionError(f"{state!r} has not become {figures!r}")


def ask(
    connection: http.client.HTTPConnection,
    path: str,
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> Reply:
    """Send one request on a connection that may be used again."""
    begun = time.monotonic()
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    cut_off = False
    try:
        body = response.read()
    except (http.client.IncompleteRead, ConnectionError) as error:
        body = error.partial if isinstance(error, http.client.IncompleteRead) else b""
        cut_off = True
    return Reply(response.status, response.getheaders(), body, cut_off, time.monotonic() - begun)


def command(kind: str, app: str, listening: socket.socket) -> list[str]:
    number = str(listening.fileno())
    if kind == "gunicorn":
        return [
            sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--threads", str(THREADS),
            "--bind", f"fd://{number}", "--graceful-timeout", "2", app,
        ]  # fmt: skip
    if kind == "waitress":
        return [sys.executable, "-c", WAITRESS, app, number]
    port = str(listening.getsockname()[1])
    return [
        sys.executable, "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", port,
        "--workers", "1", "--blocking-threads", str(THREADS), app,
    ]  # fmt: skip


@contextlib.contextmanager
def serve(kind: str, app: str) -> Iterator[Server]:
    """Run a server for an application that is named `module:attribute`."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        arguments = command(kind, app, listening)
        if kind == "granian":
            listening.close()  # it binds by itself
            handed_over: tuple[int, ...] = ()
        else:
            listening.listen(128)
            handed_over = (listening.fileno(),)
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            # gunicorn puts a control socket into the runtime folder of its user.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations")]),
                "XDG_RUNTIME_DIR": folder,
            },
            pass_fds=handed_over,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        server = Server(kind, port, process)
        try:
            _wait_until_it_answers(server)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _wait_until_it_answers(server: Server) -> None:
    for _ in range(300):
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.process.returncode}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=1)
            try:
                ask(connection, "/health")
                return
            finally:
                connection.close()
        time.sleep(0.05)
    raise RuntimeError("the server does not answer")
