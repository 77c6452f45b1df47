"""The WSGI middleware of idempotency keys: the work of a key happens once, and everybody gets the first answer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING

from resilient_mw.idempotency.actions import Pass
from resilient_mw.idempotency.policy import READING, IdempotencyPolicy
from resilient_mw.runtime.context import current
from resilient_mw.runtime.idempotency_desk import IdempotencyDesk, RefusalsAround
from resilient_mw.runtime.kinds import check_no_asgi
from resilient_mw.wsgi.answers import Pages, prepare_answers
from resilient_mw.wsgi.head import WsgiHead
from resilient_mw.wsgi.idempotency_exchange import IdempotencyExchange
from resilient_mw.wsgi.idempotency_input import hashed_input
from resilient_mw.wsgi.idempotency_records import Records

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from resilient_mw.idempotency.protocol import IdempotencyStore
    from resilient_mw.runtime.joins import Joins


class IdempotencyMiddleware:
    """Runs the work of each idempotency key once. Put it inside `ResilienceMiddleware`, or use it alone.

    The kill switch does not reach it: what refuses requests may be taken away, but a payment must not run twice for it.

    A repeat that waits for the first answer waits in its worker thread, in a bounded place of its own, and gives its slot
    back meanwhile: the server needs threads for `policy.max_waiting` beside those of the limit, or a smaller number there.

    Args:
        app: the application.
        policy: which routes take keys, whose they are, and what becomes of a repeat.
        store: where the records are; it is always named.

    Attributes:
        policy: the policy.
        store: where the records are.
        desk: how requests are treated, and what is counted.
        records: asks the store.
        answers: what is said to whom the policy refuses.

    Raises:
        ValueError: `policy` is no `IdempotencyPolicy`, or the store is one for event loops.
    """

    def __init__(self, app: WSGIApplication, policy: IdempotencyPolicy, *, store: IdempotencyStore) -> None:
        if inspect.iscoroutinefunction(store.begin):
            raise ValueError(f"store={store!r} is not allowed: under WSGI it must be one that blocks")
        check_no_asgi(app)
        self.app = app
        self.policy = policy
        self.desk = IdempotencyDesk(policy)
        self.store = store
        self.records = Records(store, self.desk)
        self.answers = RefusalsAround(prepare_answers, Pages, self.desk.listeners)

    @property
    def joins(self) -> Joins:
        """Who waits for the answer of a first request in this process."""
        return self.desk.joins

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        method = environ.get("REQUEST_METHOD", "")
        if method in READING:
            return self.app(environ, start_response)
        desk = self.desk
        if not desk.started:
            desk.start([self.app])
        path = environ.get("PATH_INFO") or "/"
        if not path.isascii():
            path = path.encode("latin-1", "replace").decode("utf-8", "replace")
        treatment, route = desk.treatment(method, path, environ)
        if treatment is None:
            return self.app(environ, start_response)
        head = WsgiHead(environ, path)
        keys = desk.keys(head)
        request = desk.request(head, treatment, route, current(), keyed=bool(keys))
        actions = request.arrived(keys)
        if isinstance(actions[0], Pass):
            return self.app(environ, start_response)
        body = hashed_input(environ, desk.fingerprint(head, environ.get("QUERY_STRING", ""), treatment))
        exchange = IdempotencyExchange(self, environ, start_response, body, request=request, route=route)
        return exchange.serve(actions)
