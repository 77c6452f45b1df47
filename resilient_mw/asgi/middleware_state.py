"""What an ASGI middleware owns: prepared from its policy, made for each event loop, and anew in a forked child."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.asgi.edge import CountedBody, TellingHead
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.asgi.head import AsgiHead
from resilient_mw.asgi.pages import Pages
from resilient_mw.asgi.refusal import prepare_refusals, prepare_stopped
from resilient_mw.asgi.service import LoopService
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.kinds import check_no_wsgi
from resilient_mw.runtime.protection import Protection

if TYPE_CHECKING:
    from asgiref.typing import HTTPScope, Scope

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Any ASGI application. Frameworks type the protocol each in their own way, so the public face takes all of them."""


class MiddlewareState:
    """The base of the middleware. See the module.

    Args:
        app: the application.
        policy: the policy; None: one is loaded, see `runtime.configuration`.
        overrides: fields of the policy that differ.
    """

    def __init__(self, app: Application, policy: ServerPolicy | None, overrides: Mapping[str, Any]) -> None:
        check_no_wsgi(app)
        self.app = app
        self._protection = Protection(policy, overrides)
        self._guard = self._protection.guard
        self._shadow = self._protection.shadow
        self._latest: LoopService | None = None
        self._services: dict[asyncio.AbstractEventLoop, LoopService] = {}
        self._making = threading.Lock()
        self._protection.prepared_by(self._prepare)
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child, which has none of the parent's event loops."""
        self._latest = None
        self._services = {}
        self._making = threading.Lock()

    def _prepare(self) -> None:
        """Prepare what requests read of the policy. Each value is right on its own, next to older ones, too."""
        policy = self._protection.policy
        fields = {name.encode("ascii"): name for name in self._protection.fields}
        self._fields = fields
        self._field_names = frozenset(fields)
        self._tells = self._protection.tells
        page = policy.refusal_page
        pages = None if page is None else Pages(page, self._guard.listeners)
        self._refusals = prepare_refusals(policy.cors, pages)
        self._debug = policy.debug  # the common answer asks the guard nothing
        with self._making:  # nobody makes a service of the older answers meanwhile
            self._stopped = prepare_stopped(policy.cors, pages)
            for service in self._services.values():
                service.stopped = self._stopped

    @property
    def protection(self) -> Protection:
        """What protects the application: its policy, its guard and its routes."""
        return self._protection

    def _start(self, scope: Scope) -> None:
        self._protection.start([scope.get("app"), self.app], inside=self.app)

    def _service(self, loop: asyncio.AbstractEventLoop) -> LoopService:
        with self._making:
            service = self._services.get(loop)
            if service is None:
                self._services = {each: kept for each, kept in self._services.items() if not each.is_closed()}
                service = self._services[loop] = LoopService(loop, self._guard, self._stopped)
            self._latest = service  # one value: threads with a loop each never see half of another's
        return service

    def _established(self, scope: HTTPScope, entry: RouteEntry, now: float, lag: float) -> float:
        """Return the deadline of a request that says something about it, or that had to wait for the loop."""
        names = self._fields
        fields = [(names[name], value.decode("latin-1")) for name, value in scope["headers"] if name in names]
        head = AsgiHead(scope)
        forwarded = head.values("x-forwarded-for") if self._protection.policy.trusted_hops else ()
        return self._protection.deadline_at(now, entry, fields, head.peer, forwarded, lag)

    def _surrounded(self, exchange: HttpExchange) -> tuple[Any, Any]:
        """Return the `receive` and `send` of an application whose route or policy asks for more."""
        receive: Any = exchange.receive
        send: Any = exchange.send
        if exchange.entry.max_body is not None:
            receive = CountedBody(exchange, exchange.entry.max_body).receive
        if self._tells is not None:
            send = TellingHead(exchange, self._tells).send
        return receive, send
