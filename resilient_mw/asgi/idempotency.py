"""The ASGI middleware of idempotency keys: the work of a key happens once, and everybody gets the first answer."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.head import AsgiHead
from resilient_mw.asgi.idempotency_body import HashedBody
from resilient_mw.asgi.idempotency_exchange import IdempotencyExchange
from resilient_mw.asgi.refusal import prepare_refusals
from resilient_mw.core.cors import Cors
from resilient_mw.core.routes import RouteResolver, below_root
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.policy import READING, IdempotencyPolicy
from resilient_mw.idempotency.treatment import Treatment, Treatments
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import current
from resilient_mw.runtime.joins import Joins
from resilient_mw.runtime.sources import find_resolver
from resilient_mw.stores.faces import async_face

if TYPE_CHECKING:
    from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore

Application = Callable[[Any, Any, Any], Awaitable[None]]


class IdempotencyMiddleware:
    """Runs the work of each idempotency key once. Put it inside `ResilienceMiddleware`, or use it alone.

    The kill switch does not reach it: what refuses requests may be taken away, but a payment must not run twice for it.

    Args:
        app: the application.
        policy: which routes take keys, whose they are, and what becomes of a repeat.
        store: where the records are; it is always named. A blocking one is asked in threads.

    Attributes:
        policy: the policy.
        store: the async face of the store.
        joins: who waits for the answer of a first request in this process.
    """

    def __init__(
        self, app: Application, policy: IdempotencyPolicy, *, store: IdempotencyStore | AsyncIdempotencyStore
    ) -> None:
        self.app = app
        self.policy = policy
        self.store = async_face(store)
        self.joins = Joins(policy.max_waiting)
        self._treatments = Treatments(policy)
        self._field = policy.header.lower()
        self._refusals = prepare_refusals(Cors())
        self._resolver: RouteResolver | None = None
        self._started = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one scope."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self.app(scope, receive, send)
            return
        path = below_root(scope["path"], scope.get("root_path", ""))
        treatment, template = self._treatment(scope, path)
        if treatment is None:
            await self.app(scope, receive, send)
            return
        head = AsgiHead(scope)
        values = head.values(self._field)
        context = current()
        now = MONOTONIC.now()
        request = IdempotentRequest(
            self.policy,
            treatment,
            method=scope["method"],
            route=template,
            caller=self.policy.caller_of(head) if values else None,
            token=uuid.uuid4().hex,
            now=now,
            deadline=now + context.remaining(),
            typical=self.joins.typical(template),
        )
        query = scope.get("query_string", b"").decode("latin-1")
        fingerprint = Fingerprint(
            f"{path}?{query}", self.policy.fingerprint_headers, head.values, treatment.canonical_json
        )
        exchange = IdempotencyExchange(
            self, scope, HashedBody(receive, fingerprint), send, request=request, route=template
        )
        await exchange.serve(request.arrived(values), receive)

    async def refuse(self, scope: Any, send: Any, reason: Any, retry_after: int | None) -> None:
        """Answer with a refusal."""
        await self._refusals[reason].send(scope, send, retry_after, None)

    def _treatment(self, scope: Any, path: str) -> tuple[Treatment | None, str]:
        """Return how a request is treated, and the template of its route."""
        if not self._started:
            self._resolver = find_resolver([scope.get("app"), self.app])
            self._started = True
        route = None if self._resolver is None else self._resolver.resolve(path, scope)
        mark = None if route is None or route.mark is None else route.mark.idempotency
        return self._treatments.of(scope["method"], path, mark), path if route is None else route.template
