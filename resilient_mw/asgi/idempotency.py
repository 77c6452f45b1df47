"""The ASGI middleware of idempotency keys: the work of a key happens once, and everybody gets the first answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.head import AsgiHead
from resilient_mw.asgi.idempotency_body import HashedBody
from resilient_mw.asgi.idempotency_exchange import IdempotencyExchange
from resilient_mw.asgi.idempotency_records import Records
from resilient_mw.asgi.pages import Pages
from resilient_mw.asgi.refusal import prepare_refusals
from resilient_mw.idempotency.policy import READING, IdempotencyPolicy
from resilient_mw.runtime.context import current
from resilient_mw.runtime.idempotency_desk import IdempotencyDesk, RefusalsAround
from resilient_mw.runtime.kinds import check_no_wsgi
from resilient_mw.stores.faces import async_face

if TYPE_CHECKING:
    from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore
    from resilient_mw.runtime.joins import Joins

Application = Callable[[Any, Any, Any], Awaitable[None]]


class IdempotencyMiddleware:
    """Runs the work of each idempotency key once. Put it inside `ResilienceMiddleware`, or use it alone.

    The kill switch does not reach it: what refuses requests may be taken away, but a payment must not run twice for it.

    A repeat that waits for the first answer gives its slot back meanwhile, and waits in a bounded place of its own.

    Args:
        app: the application.
        policy: which routes take keys, whose they are, and what becomes of a repeat.
        store: where the records are; it is always named. A blocking one is asked in threads.

    Attributes:
        policy: the policy.
        store: the async face of the store.
        desk: how requests are treated, and what is counted.
        records: asks the store.
        refusals: what is said to whom the policy refuses.

    Raises:
        ValueError: `policy` is no `IdempotencyPolicy`.
    """

    def __init__(
        self, app: Application, policy: IdempotencyPolicy, *, store: IdempotencyStore | AsyncIdempotencyStore
    ) -> None:
        check_no_wsgi(app)
        self.app = app
        self.policy = policy
        self.desk = IdempotencyDesk(policy)
        self.store = async_face(store)
        self.records = Records(self.store, self.desk)
        self.refusals = RefusalsAround(prepare_refusals, Pages, self.desk.listeners)

    @property
    def joins(self) -> Joins:
        """Who waits for the answer of a first request in this process."""
        return self.desk.joins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one scope."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self._pass(scope, receive, send)
            return
        desk = self.desk
        if not desk.started:
            desk.start([scope.get("app"), self.app])
        head = AsgiHead(scope)
        treatment, route = desk.treatment(scope["method"], head.path, scope)
        if treatment is None:
            await self.app(scope, receive, send)
            return
        keys = desk.keys(head)
        if not keys and not treatment.required:
            await self.app(scope, receive, send)
            return
        request = desk.request(head, treatment, route, current(), keyed=bool(keys))
        query = scope.get("query_string", b"").decode("latin-1")
        body = HashedBody(receive, desk.fingerprint(head, query, treatment))
        exchange = IdempotencyExchange(self, scope, body, send, request=request, route=route)
        await exchange.serve(request.arrived(keys), receive)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan" or self.desk.started:
            await self.app(scope, receive, send)
            return

        async def tell(message: Any) -> None:
            if message["type"] == "lifespan.startup.complete" and not self.desk.started:
                self.desk.start([scope.get("app"), self.app])  # now all routes are there
            await send(message)

        await self.app(scope, receive, tell)
