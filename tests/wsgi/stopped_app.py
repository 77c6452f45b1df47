"""An application that is stopped while it works, for `test_stopping.py`, and the hook of gunicorn's that arms its workers."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from resilient_mw import ServerPolicy, current
from resilient_mw.wsgi import ResilienceMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIEnvironment

policy = ServerPolicy(drain_delay=2.0, drain_timeout=2.0, deadline_default=60.0)


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    body = b"finished"
    if path == "/readyz":
        body = json.dumps(policy.readiness().reasons).encode()
    elif path != "/health":
        end = time.monotonic() + float(path[1:])
        while time.monotonic() < end:
            current().check()
            time.sleep(0.02)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


application = ResilienceMiddleware(app, policy)


def post_worker_init(worker: object) -> None:
    """Called by gunicorn in each worker once its own signal handlers are there."""
    policy.drain_on_signal()
