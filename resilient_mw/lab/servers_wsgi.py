"""The WSGI servers of the lab. Each serves on a socket of its own and says on which port."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from resilient_mw.lab.processes import announce, exit_with_parent
from resilient_mw.lab.settings import AppSettings, open_socket
from resilient_mw.lab.wire import HOST

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

CONNECTIONS = 4096
"""The queue under test is the one in front of the worker threads: no server stops to accept before that, and the backlog
of the kernel covers bursts between two accepts."""
SWITCH_INTERVAL = 0.0001
"""Seconds after which a thread that waits for the interpreter asks the running one to give way.

While a worker that has just sent waits for the interpreter, waitress's loop finds the connection writable and
its lock taken, and asks again at once. With CPython's 5 ms each such worker loses 5 ms; with some hundred open
connections all of them meet the loop like that, and ten workers serve 30 requests a second in place of 50. The
steps are about workers that are taken, not about that loop.
"""

Build = Callable[[], "WSGIApplication"]


def serve_by_waitress(settings: AppSettings, build: Build) -> None:
    """Serve in this process."""
    import waitress

    # It warns for every request that finds no free thread, which is what some steps are about.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    sys.setswitchinterval(SWITCH_INTERVAL)
    sock = open_socket()
    server = waitress.create_server(
        build(),
        sockets=[sock],
        threads=settings.threads,
        # With the default of 100 connections waitress stops to accept when 100 are open, and the rest waits in the
        # kernel, where users who leave take their request with them: the steps would show the kernel's queue.
        connection_limit=CONNECTIONS,
        backlog=CONNECTIONS,
        # select() cannot watch a descriptor above 1023.
        asyncore_use_poll=True,
        # Connections without a request in hand are closed after channel_timeout (120 s), checked every 30 s.
        # No run lasts that long, so this clean-up has no part in it.
        channel_timeout=3600,
    )
    announce({"port": sock.getsockname()[1]})
    server.run()


def serve_by_gunicorn(settings: AppSettings, build: Build) -> None:
    """Serve in a worker with threads that this process forks; with our configuration where there is anything of ours."""
    from gunicorn.app.base import Application

    sock = open_socket()
    sock.listen(CONNECTIONS)

    class Lab(Application):  # type: ignore[misc]
        def load_config(self) -> None:
            if settings.protected:
                self.load_config_from_file("python:resilient_mw_integrations.gunicorn")
            ours = self.cfg.post_worker_init

            def begin(worker: Any) -> None:
                exit_with_parent()  # the thread that watches for this is not forked
                ours(worker)

            chosen: dict[str, Any] = {
                "bind": f"fd://{sock.fileno()}",
                "threads": settings.threads,
                "worker_connections": CONNECTIONS,
                "backlog": CONNECTIONS,
                "post_worker_init": begin,
                "control_socket_disable": True,
                "loglevel": "warning",
            }
            if not settings.protected:
                chosen["worker_class"] = "gthread"
            for name, value in chosen.items():
                if name in self.cfg.settings:  # older ones have no control socket
                    self.cfg.set(name, value)

        def load(self) -> WSGIApplication:
            return build()

    announce({"port": sock.getsockname()[1]})
    Lab().run()


def serve_by_granian(settings: AppSettings, _build: Build) -> None:
    """Serve in a worker process, which makes the application by `resilient_mw.lab.apps_wsgi:made_by_granian`."""
    from granian.constants import Interfaces
    from granian.server import Server

    with open_socket() as sock:
        port: int = sock.getsockname()[1]
    announce({"port": port})
    Server(
        "resilient_mw.lab.apps_wsgi:made_by_granian",
        factory=True,
        address=HOST,
        port=port,
        interface=Interfaces.WSGI,
        workers=1,
        blocking_threads=settings.threads,
        backlog=CONNECTIONS,
        log_enabled=False,  # it writes where the lab reads
    ).serve()


SERVERS: Mapping[str, Callable[[AppSettings, Build], None]] = MappingProxyType(
    {"waitress": serve_by_waitress, "gunicorn": serve_by_gunicorn, "granian": serve_by_granian}
)
