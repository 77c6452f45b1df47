"""The application under test on the WSGI stack: Flask behind waitress."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Sequence

import httpx
import waitress
from flask import Flask, jsonify
from flask.typing import ResponseReturnValue

from resilient_mw.lab.busy import Busy
from resilient_mw.lab.processes import allow_many_connections, announce, exit_with_parent
from resilient_mw.lab.settings import STATE_PATH, AppSettings, open_socket, read_settings

SWITCH_INTERVAL = 0.0001
"""Seconds after which a thread that waits for the interpreter asks the running one to give way.

While a worker that has just sent waits for the interpreter, waitress's loop finds the connection writable and
its lock taken, and asks again at once. With CPython's 5 ms each such worker loses 5 ms; with some hundred open
connections all of them meet the loop like that, and ten workers serve 30 requests a second in place of 50. The
steps are about workers that are taken, not about that loop.
"""


def build(settings: AppSettings) -> Flask:
    """Make the application, with what the step gives it of ours."""
    busy = Busy()
    app = Flask("resilient_mw_lab")
    # No proxy from the environment, and no bound but the worker threads: the step decides what limits the calls.
    limits = httpx.Limits(max_connections=None)
    transport = None
    if settings.protected:
        # Imported here, so that nothing of ours is in the process of a step that goes without.
        from resilient_mw.lab.protections import Protections
        from resilient_mw.wsgi import ResilienceMiddleware

        protections = Protections(settings)
        transport = protections.transport(limits)
        app.add_url_rule(STATE_PATH, "state", lambda: protections.state(busy.peak))
        if protections.policy is not None:
            app.wsgi_app = ResilienceMiddleware(app.wsgi_app, protections.policy)  # type: ignore[method-assign]
    client = httpx.Client(timeout=settings.timeout, trust_env=False, limits=limits, transport=transport)

    def endpoint(addresses: Sequence[str]) -> ResponseReturnValue:
        try:
            with busy:
                return jsonify([client.get(each).raise_for_status().json() for each in addresses])
        except httpx.HTTPError as error:
            return jsonify(error=type(error).__name__), 503

    for path, addresses in settings.routes.items():
        app.add_url_rule(path, path, functools.partial(endpoint, addresses))

    @app.get("/health")
    def health() -> ResponseReturnValue:
        return jsonify(status="ok")

    return app


def main(argv: list[str] | None = None) -> None:
    """Serve the application on a free port, and say on which."""
    settings = read_settings(argv)
    exit_with_parent()
    allow_many_connections()
    # It warns for every request that finds no free thread, which is what some steps are about.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    sys.setswitchinterval(SWITCH_INTERVAL)
    sock = open_socket()
    server = waitress.create_server(
        build(settings),
        sockets=[sock],
        threads=settings.threads,
        # The queue under test is the one in front of the worker threads. With the default of 100 connections
        # waitress stops to accept when 100 are open, and the rest waits in the kernel, where users who leave
        # take their request with them: the steps would show the kernel's queue. The backlog covers bursts
        # between two accepts.
        connection_limit=4096,
        backlog=4096,
        # select() cannot watch a descriptor above 1023.
        asyncore_use_poll=True,
        # Connections without a request in hand are closed after channel_timeout (120 s), checked every 30 s.
        # No run lasts that long, so this clean-up has no part in it.
        channel_timeout=3600,
    )
    announce({"port": sock.getsockname()[1]})
    server.run()


if __name__ == "__main__":
    main()
