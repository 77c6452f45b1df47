"""The same service on both stacks: a sync handler behind uvicorn (ASGI) and behind waitress (WSGI)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flask
import uvicorn
import waitress.server
from fastapi import FastAPI

from resilient_mw import ServerPolicy, current, priority
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware

HELD = -1.0
"""Seconds that mean: until the test says so."""


class Service:
    """A service with one scarce resource, and what it noticed.

    Attributes:
        port: where it listens.
        used: how often the scarce resource was used: the downstream call of this service.
        budgets: what `current().remaining()` said at the start of each handler.
        most: most handlers at work at once.
        release: lets the handlers go that were asked to be at work for `HELD` seconds.
    """

    def __init__(self, policy: ServerPolicy) -> None:
        self.policy = policy
        self.port = 0
        self.used = 0
        self.budgets: list[float] = []
        self.most = 0
        self.release = threading.Event()
        self._now = 0
        self._lock = threading.Lock()

    def work(self, seconds: float) -> dict[str, float]:
        """Do what every handler does: note the budget, use the resource, take a while."""
        with self._lock:
            self.used += 1
            self._now += 1
            self.most = max(self.most, self._now)
            self.budgets.append(current().remaining())
        try:
            if seconds == HELD:
                self.release.wait(60)
            else:
                time.sleep(seconds)
        finally:
            with self._lock:
                self._now -= 1
        return {"left": current().remaining()}

    def snapshot(self) -> AppSnapshot:
        return guard_of(self.policy).snapshot()

    def idle(self) -> bool:
        """Whether no slot is taken and nobody waits."""
        return all(each.slots == 0 and each.queued == 0 for each in self.snapshot().classes)


def fast_api(service: Service) -> FastAPI:
    app = FastAPI()
    app.add_middleware(AsgiMiddleware, policy=service.policy)

    @app.get("/work")
    def work(seconds: float = 0.05) -> dict[str, float]:
        return service.work(seconds)

    @app.get("/critical")
    @priority("critical")
    def critical(seconds: float = 0.05) -> dict[str, float]:
        return service.work(seconds)

    @app.get("/sheddable")
    @priority("sheddable")
    def sheddable(seconds: float = 0.05) -> dict[str, float]:
        return service.work(seconds)

    @app.get("/health")
    def health() -> dict[str, bool]:
        return {"ok": True}

    return app


def flask_app(service: Service) -> flask.Flask:
    app = flask.Flask("service")
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, service.policy)  # type: ignore[method-assign]

    def seconds() -> float:
        return float(flask.request.args.get("seconds", 0.05))

    @app.get("/work")
    def work() -> dict[str, float]:
        return service.work(seconds())

    @app.get("/critical")
    @priority("critical")
    def critical() -> dict[str, float]:
        return service.work(seconds())

    @app.get("/sheddable")
    @priority("sheddable")
    def sheddable() -> dict[str, float]:
        return service.work(seconds())

    @app.get("/health")
    def health() -> dict[str, bool]:
        return {"ok": True}

    return app


@contextmanager
def behind_uvicorn(app: Any) -> Iterator[int]:
    """Serve an ASGI application from a thread; give its port."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", lifespan="on", timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        time.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def behind_waitress(app: Any, threads: int) -> Iterator[int]:
    """Serve a WSGI application from a thread; give its port."""
    server = waitress.server.create_server(
        app, host="127.0.0.1", port=0, threads=threads, connection_limit=1000
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.effective_port
    finally:
        server.close()
        server.task_dispatcher.shutdown()
        thread.join(10)


@contextmanager
def serve(stack: str, **policy: Any) -> Iterator[Service]:
    """Serve the service on a stack (`asgi` or `wsgi`) under a policy."""
    service = Service(ServerPolicy(**policy))
    # T >= limit + queue + spare: refusals and health checks need a thread, too.
    threads = service.policy.slots + service.policy.queue_length + 8
    running = (
        behind_uvicorn(fast_api(service)) if stack == "asgi" else behind_waitress(flask_app(service), threads)
    )
    with running as port:
        service.port = port
        try:
            yield service
        finally:
            service.release.set()
