"""The application under test on the WSGI stack: Flask behind one of the servers."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import httpx
from flask import Flask, jsonify
from flask.typing import ResponseReturnValue

from resilient_mw.lab.busy import Busy
from resilient_mw.lab.processes import allow_many_connections, exit_with_parent
from resilient_mw.lab.servers_wsgi import SERVERS
from resilient_mw.lab.settings import STATE_PATH, AppSettings, read_settings


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


def made_by_granian() -> Flask:
    """Make the application in a worker process, which has the command line of its parent."""
    exit_with_parent()
    return build(read_settings(None))


def main(argv: list[str] | None = None) -> None:
    """Serve the application on a free port, and say on which."""
    settings = read_settings(argv)
    exit_with_parent()
    allow_many_connections()
    SERVERS[settings.server](settings, functools.partial(build, settings))


if __name__ == "__main__":
    main()
