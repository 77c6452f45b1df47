"""A ready configuration of gunicorn for a WSGI application that `ResilienceMiddleware` protects.

    gunicorn -c python:resilient_mw_integrations.gunicorn --threads 34 app:app

or, in a `gunicorn.conf.py` of your own,

    from resilient_mw_integrations.gunicorn import *

It tells the middleware at the start of each worker how many threads there are, drains at SIGTERM, and charges each request
the time for which it waited in front of the threads, so that what a backlog has outlived is refused and not worked on.

The wait is measured in two ways. `ThreadWorker` notes when a connection was handed to the pool of threads. Linux tells of
each TCP socket when the last bytes came in: that also covers a connection that nobody had accepted yet, and workers of any
other class. The younger of all bytes count, so a request is never charged more than it waited.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from gunicorn.workers.gthread import ThreadWorker as UsualWorker

from resilient_mw.runtime import switch
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.wsgi.threads import WAITED, of_gunicorn_settings, tell_threads, wsgi_policies

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

__all__ = ["post_worker_init", "worker_class"]

worker_class = "resilient_mw_integrations.gunicorn.ThreadWorker"

LEAST_WAIT = 0.001
"""Seconds: less is what it takes to hand a request over, and not worth charging."""
LAST_DATA = struct.Struct("=52xI")
"""Of `struct tcp_info`: milliseconds since the last bytes came in."""

logger = logging.getLogger("resilient_mw")


class _Here(threading.local):
    """What a thread knows of the request that it is about to read.

    Attributes:
        waited: seconds for which it stood before the threads; None: nobody measured it.
    """

    waited: float | None = None


_here = _Here()


class ThreadWorker(UsualWorker):  # type: ignore[misc]
    """gunicorn's worker with threads, which also measures how long a request waits for one of them."""

    def enqueue_req(self, conn: Any) -> None:
        """Hand a connection to the pool of threads."""
        conn.queued_at = MONOTONIC.now()
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        """Read a request and serve it; called in one of the threads."""
        try:
            _here.waited = _waited(conn)
        except OSError:  # the caller has gone, which reading will show
            _here.waited = 0.0
        return super().handle(conn)


class Charged:
    """The application, which is told how long each request stood before the threads.

    Args:
        app: the application as gunicorn calls it.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        waited, _here.waited = _here.waited, None
        if waited is None:
            waited = since_last_data(environ.get("gunicorn.socket"))
        if waited > LEAST_WAIT:
            environ[WAITED] = waited
        return self._app(environ, start_response)


def post_worker_init(worker: Any) -> None:
    """Begin in a worker whose application has been loaded: count the threads, arm the drain, charge what waits.

    Workers of ASGI applications, which drain in their lifespan, and those with greenlets are left as they are.

    Raises:
        ResilienceWarning: the threads do not suffice, and the user made warnings errors.
    """
    policies, told = wsgi_policies(), of_gunicorn_settings(worker.cfg)
    if not policies or told is None or switch.DISABLED:
        return
    worker.wsgi = Charged(worker.wsgi)
    tell_threads(*told)
    for policy in policies:
        policy.drain_on_signal()
        takes = policy.drain_delay + policy.drain_timeout
        if worker.cfg.graceful_timeout < takes:
            logger.warning(
                "%s: drain_delay and drain_timeout take %g s, but gunicorn kills its workers after graceful_timeout=%g s: raise "
                "that above it",
                policy.name,
                takes,
                worker.cfg.graceful_timeout,
            )


def since_last_data(sock: Any) -> float:
    """Return the seconds since the last bytes came in by a socket; 0 where nobody knows."""
    if getattr(sock, "family", None) not in {socket.AF_INET, socket.AF_INET6}:
        return 0.0
    number = getattr(socket, "TCP_INFO", None)
    if number is None:
        return 0.0
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, number, LAST_DATA.size)
    except OSError:
        return 0.0
    return LAST_DATA.unpack(told)[0] / 1000 if len(told) == LAST_DATA.size else 0.0


def _waited(conn: Any) -> float:
    """Return the seconds for which the request that a thread is about to read has been there."""
    since_queued: float = MONOTONIC.now() - conn.queued_at
    if conn.initialized or getattr(conn, "data_ready", False):
        return since_queued  # it was handed over because bytes were there
    try:
        conn.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return 0.0  # a caller who has connected, and has not asked for anything yet
    return since_last_data(conn.sock) or since_queued
