"""The ASGI middleware: admission before any work, a deadline that is kept, work that stops when nobody waits for it."""

from __future__ import annotations

from asyncio import current_task, get_running_loop
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Unpack

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import ADMITTED
from resilient_mw.asgi.channel import Channel, nothing
from resilient_mw.asgi.early import must_be_read, read_whole
from resilient_mw.asgi.exchange import HttpExchange, surrounding
from resilient_mw.asgi.head import AsgiHead
from resilient_mw.asgi.lifespan import ASYNCIO_ONLY, serve_lifespan
from resilient_mw.asgi.middleware_state import Application, MiddlewareState
from resilient_mw.asgi.service import Arrival
from resilient_mw.asgi.shadow import shadow_exchange
from resilient_mw.asgi.stream import StreamExchange
from resilient_mw.asgi.waiting import wait_for_slot
from resilient_mw.asgi.websocket import serve_socket
from resilient_mw.core.cors import PREFLIGHT
from resilient_mw.core.errors import IdempotencyRefused, UnsupportedEventLoop
from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import below_root
from resilient_mw.runtime import switch
from resilient_mw.runtime.arrivals import ask_soon
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, reset
from resilient_mw.runtime.quotas import Asking

if TYPE_CHECKING:
    from asgiref.typing import (
        ASGIReceiveCallable,
        ASGISendCallable,
        HTTPScope,
    )

    from resilient_mw.admission.overrides import PolicyOverrides

PREFLIGHT_NAMES = frozenset(name.encode("ascii") for name in PREFLIGHT)
NAME_OF = itemgetter(0)


class ResilienceMiddleware(MiddlewareState):
    """Protects an ASGI application: admits, queues or refuses requests, and stops what has become worthless.

    Put it outermost. HTTP requests and websockets are guarded; lifespan and unknown scopes pass untouched. A request that
    passes two middlewares of one policy is guarded once; a deadline never grows from one to the next.

    Args:
        app: the application.
        policy: the policy; None: one is loaded, see `runtime.configuration`. The same object given to two middlewares makes them share one
            limit and one queue.
        **overrides: fields of `ServerPolicy` that differ from `policy`.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed; the text names the field, the value and the range.
        UnsupportedEventLoop: at start, on an event loop other than asyncio's.
    """

    def __init__(
        self, app: Application, policy: ServerPolicy | None = None, **overrides: Unpack[PolicyOverrides]
    ) -> None:
        super().__init__(app, policy, overrides)

    async def __call__(  # noqa: C901, PLR0912  on the way of every request: calls would cost
        self, scope: Any, receive: Any, send: Any
    ) -> None:
        """Serve one scope."""
        if scope["type"] != "http" or switch.DISABLED:
            await self._unguarded(scope, receive, send)
            return
        if scope["method"] != "GET" and must_be_read(scope, receive):
            await read_whole(self, scope, receive, send)
            return
        arrived = self._arrive(scope, receive, send)
        if not isinstance(arrived, HttpExchange):
            if isinstance(arrived, tuple):
                reason, retry_after = arrived
                await self._refusals[reason].send(scope, send, retry_after, None)
                return
            arrived = await self._later(arrived, scope, receive, send)
            if arrived is None:
                return
        exchange = arrived
        # Nothing has suspended since the decision: no cancellation comes between a slot and its release.
        caught: BaseException | None = None
        release: Callable[[], None] = exchange.release
        supervisor = exchange.service.supervisor
        supervisor.enter(exchange)
        token = CURRENT.set(exchange)
        try:
            if exchange.entry.plain and self._tells is None:
                await self.app(scope, exchange.receive, exchange.send)
            else:
                await self.app(scope, *self._surrounded(exchange))
            if exchange.left:
                exchange.over(None)
        except GeneratorExit:
            # The garbage collector ends a forgotten request, at any allocation, also under the guard's lock.
            release = partial(exchange.service.later, release)
            exchange.failed = True
            raise
        except BaseException as error:
            if not exchange.over(error) and not await self._refused(error, exchange, scope):
                exchange.failed = True
                raise
            caught = error
        finally:
            # First of all: what comes after it may fail for a forgotten request.
            supervisor.leave(exchange, release)
            if exchange.channel is not None:
                exchange.channel.stop()
            try:
                CURRENT.reset(token)
            except ValueError:
                pass  # The garbage collector ends a forgotten request, in whatever context it runs.
        if exchange.reason is not None:
            try:
                await supervisor.settle(exchange, caught, exchange.answer)
            finally:
                caught = None  # No cycle between this frame and the traceback.

    def _arrive(  # noqa: C901, PLR0912  on the way of every request: calls would cost
        self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> HttpExchange | Arrival | tuple[Reason, int | None] | None:
        """Decide about a request.

        Returns:
            An exchange if it may run now; the reason and the seconds after which to come back if it is refused; None if it
            is not for us or our own code has failed. Else what `_later` has to know.
        """
        try:
            loop = get_running_loop()
        except RuntimeError:
            raise UnsupportedEventLoop(ASYNCIO_ONLY) from None
        service = self._latest
        if service is None or service.loop is not loop:
            service = self._service(loop)
        guard, protection = self._guard, self._protection
        task = current_task(loop)
        outer = None if CURRENT.get() is NO_REQUEST else surrounding(task, scope)
        if task is None or (outer is not None and outer.guarded_by(guard)):
            return None
        try:
            if not protection.started:
                self._start(scope)
            now = service.clock.now()
            method = scope["method"]
            headers = scope["headers"]
            if method == "OPTIONS" and PREFLIGHT_NAMES.issubset(map(NAME_OF, headers)):
                entry = protection.preflight()
            else:
                path, root_path = scope["path"], scope.get("root_path")
                entry = protection.table.entry(
                    below_root(path, root_path) if root_path else path, method, scope
                )
            lag = service.supervisor.lag
            if self._field_names.isdisjoint(map(NAME_OF, headers)) and not lag:
                deadline_at = now + entry.budget
            else:
                deadline_at = self._established(scope, entry, now, lag)
            if outer is not None:
                deadline_at = min(deadline_at, outer._fixed_end())  # noqa: SLF001
            if entry.plain:
                decision, cost = guard.arrive(entry, now, deadline_at), entry.cost
            else:
                found, cost, tenant = protection.arrive(entry, AsgiHead(scope), now, deadline_at)
                if tenant is not None or isinstance(found, Asking):
                    return Arrival(found, task, service, entry, cost, deadline_at, outer, tenant)
                decision = found
                if decision is ADMITTED and entry.stream is not None:
                    return StreamExchange(
                        task, service, entry, cost, deadline_at, now, scope, receive, send, None, outer
                    )
        except Exception as error:  # noqa: BLE001  the application must be served whatever our own code does
            guard.listeners.failed("admission", error)
            return None
        if decision is not ADMITTED:
            if decision.reason is not None and not self._debug:
                return decision.reason, decision.retry_after
            return Arrival(decision, task, service, entry, cost, deadline_at, outer)
        return HttpExchange(task, service, entry, cost, deadline_at, now, scope, receive, send, None, outer)

    async def _later(
        self, arrival: Arrival | None, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> HttpExchange | None:
        """Serve a request that was not admitted at once; return its exchange if it may run now."""
        if arrival is None:
            await self.app(scope, receive, send)
            return None
        decision, channel = arrival.decision, None
        if isinstance(decision, Asking):
            decision = await ask_soon(self._guard, decision)
        first = decision
        if decision.waiter is not None:
            channel = Channel(receive, nothing, copy_context())
            granted = await wait_for_slot(self._guard, decision.waiter, channel)
            if granted is None:
                return None  # The caller has gone: nobody reads an answer.
            decision = granted
        if arrival.tenant is not None:
            self._guard.tenancy.count(arrival.tenant, decision)
        if decision.reason is not None:
            figures = self._guard.figures(arrival.entry, arrival.deadline_at)
            refusal = self._refusals[decision.reason]
            await refusal.send(scope, send, decision.retry_after, figures, decision.fields)
            return None
        make: Any = HttpExchange if arrival.entry.stream is None else StreamExchange
        if self._shadow is not None:
            make = partial(shadow_exchange(self._shadow, arrival.entry), self._shadow, first)
        exchange: HttpExchange = make(
            arrival.task, arrival.service, arrival.entry, arrival.cost, arrival.deadline_at,
            self._guard.clock.now(), scope, receive, send, channel, arrival.outer,
        )  # fmt: skip
        exchange.tenant = arrival.tenant
        return exchange

    async def _refused(self, error: BaseException, exchange: HttpExchange, scope: HTTPScope) -> bool:
        """Answer a request whose idempotency key its application refuses; return whether that was it."""
        if not isinstance(error, IdempotencyRefused) or exchange.started:
            return False
        send: Any = exchange.send
        await self._refusals[error.reason].send(scope, send, error.retry_after, None)
        return True

    async def _unguarded(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve what is no HTTP request, or any scope while the middleware is switched off."""
        if scope["type"] == "lifespan":
            await serve_lifespan(self.app, scope, receive, send, self._start, self._guard)
        elif scope["type"] == "http":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket" and not switch.DISABLED:
            await serve_socket(self.app, self._protection, self._refusals, self._start, scope, receive, send)
        else:
            # A server may have made this task out of a request's, with its context variables.
            token = CURRENT.set(NO_REQUEST)
            try:
                await self.app(scope, receive, send)
            finally:
                reset(token)
