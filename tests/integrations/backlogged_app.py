"""An application whose threads are held by the test, so that a backlog stands before them, for `test_gunicorn.py`."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import refused

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

policy = ServerPolicy(
    limit=4,
    queue=0,
    spare_threads=0,
    deadline_default=60.0,
    drain_timeout=25.0,
    trusted_peers=["127.0.0.0/8"],
    routes=[RouteRule("/state", priority="exempt")],
)
entered = itertools.count(1)
seen = 0
born = os.getpid()
folder = Path(os.environ["HOLD"])


def hold() -> None:
    """Work until the test lets go, and say meanwhile that it does, and whether the service drains."""
    (folder / f"held-{next(entered)}").touch()
    while not (folder / "let-go").exists():
        if policy.readiness().reasons:
            (folder / "draining").touch()
        time.sleep(0.02)


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    global seen
    path = environ["PATH_INFO"]
    if path == "/state":
        known = guard_of(policy).policy
        figures = {
            "served": seen,
            "refused": refused(policy),
            "threads": known.threads,
            "queue": known.queue_length,
            "preloaded": born != os.getpid(),
        }
        body = json.dumps(figures).encode()
    elif path == "/health":
        body = b"alive"
    elif path == "/hold":
        hold()
        body = b"held"
    else:
        seen += 1
        time.sleep(float(path[1:]))
        body = f"{current().remaining():.3f}".encode()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


application = ResilienceMiddleware(app, policy)
