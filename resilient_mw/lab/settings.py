"""What a process of the application under test is told on its command line."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from resilient_mw.lab.wire import HOST

STATE_PATH = "/lab/state"
"""Where a protected application tells the lab how it is."""


@dataclass(frozen=True, slots=True)
class AppSettings:
    """One application process.

    Attributes:
        threads: worker threads.
        routes: path -> addresses that the endpoint calls, one after the other.
        timeout: seconds for each phase of such a call; None waits for ever.
        policy: arguments of `resilient_mw.ServerPolicy`, with classes and routes as arguments of theirs; None leaves
            the middleware out.
        calls: name -> arguments of `resilient_mw.Dependency`, its match rule too; retry and breaker as arguments of
            their policies.
        server: `waitress`, `gunicorn` or `granian`, for a WSGI application.
    """

    threads: int
    routes: Mapping[str, Sequence[str]]
    timeout: float | None
    policy: Mapping[str, Any] | None
    calls: Mapping[str, Mapping[str, Any]]
    server: str = "waitress"

    @property
    def protected(self) -> bool:
        """Whether there is anything of ours in the application."""
        return self.policy is not None or bool(self.calls)

    def to_argument(self) -> str:
        """Return the settings as one argument of a command line."""
        return json.dumps(asdict(self))


def read_settings(argv: list[str] | None) -> AppSettings:
    """Read the settings that `to_argument` wrote."""
    parser = argparse.ArgumentParser(description="The application under test; started by resilient-mw lab.")
    parser.add_argument("--settings", required=True, type=json.loads)
    return AppSettings(**parser.parse_args(argv).settings)


def open_socket() -> socket.socket:
    """Bind a free port of 127.0.0.1; the server listens on it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, 0))
    return sock
