"""An application whose queue is fitted to the threads of its server, for `test_thread_count.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from resilient_mw import ServerPolicy
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

policy = ServerPolicy(limit=5, queue=10, spare_threads=1, fit_queue=True)


def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    figures = {"queue": policy.snapshot().queue, "threads": guard_of(policy).policy.threads}
    body = json.dumps(figures).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


application = ResilienceMiddleware(app, policy)
