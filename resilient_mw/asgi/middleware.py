"""The ASGI middleware: admission before any work, a deadline that is kept, work that stops when nobody waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import Token, copy_context
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Unpack

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import ADMITTED, Decision
from resilient_mw.admission.entry import RouteEntry, Waiter
from resilient_mw.asgi.channel import Channel, nothing
from resilient_mw.asgi.edge import CountedBody, TellingHead
from resilient_mw.asgi.exchange import HttpExchange, surrounding
from resilient_mw.asgi.refusal import prepare_refusals, prepare_stopped
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.cors import PREFLIGHT
from resilient_mw.core.errors import UnsupportedEventLoop
from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import switch
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext
from resilient_mw.runtime.protection import Protection
from resilient_mw.runtime.supervise import Supervisor

if TYPE_CHECKING:
    from asgiref.typing import (
        ASGIReceiveCallable,
        ASGISendCallable,
        ASGISendEvent,
        HTTPScope,
        LifespanScope,
        Scope,
    )

    from resilient_mw.admission.overrides import PolicyOverrides

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Any ASGI application. Frameworks type the protocol each in their own way, so the public face takes all of them."""

PREFLIGHT_NAMES = frozenset(name.encode("ascii") for name in PREFLIGHT)
NAME_OF = itemgetter(0)


class ResilienceMiddleware:
    """Protects an ASGI application: admits, queues or refuses requests, and stops what has become worthless.

    Put it outermost. HTTP requests are guarded; websockets, lifespan and unknown scopes pass untouched. A request that
    passes two middlewares of one policy is guarded once; a deadline never grows from one to the next.

    Args:
        app: the application.
        policy: the policy; None: a policy of defaults. The same object given to two middlewares makes them share one
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
        self.app = app
        self._protection = Protection(policy, overrides)
        self._guard = self._protection.guard
        self._fields = {name.encode("ascii"): name for name in self._protection.fields}
        self._tells = self._protection.policy.deadline_response_header
        self._refusals = prepare_refusals(self._protection.policy.cors)
        self._stopped = prepare_stopped(self._protection.policy.cors)
        self._debug = self._protection.policy.debug  # the common answer asks the guard nothing
        self._latest: tuple[asyncio.AbstractEventLoop, Supervisor] | None = None
        self._supervisors: dict[asyncio.AbstractEventLoop, Supervisor] = {}
        self._making = threading.Lock()

    @property
    def protection(self) -> Protection:
        """What protects the application: its policy, its guard and its routes."""
        return self._protection

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one scope."""
        if scope["type"] == "http":
            if switch.DISABLED:
                await self.app(scope, receive, send)
            else:
                await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            # A server may have made this task out of a request's, with its context variables.
            token = CURRENT.set(NO_REQUEST)
            try:
                await self.app(scope, receive, send)
            finally:
                _reset(token)

    async def _http(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        supervisor = self._supervisor_of_this_loop()
        task = asyncio.current_task()
        outer = None if CURRENT.get() is NO_REQUEST else surrounding(task, scope)
        guarded = task is None or (outer is not None and outer.guarded_by(self._guard))
        arrival = None if guarded else self._arrive(scope, outer, supervisor)
        if arrival is None or task is None:
            await self.app(scope, receive, send)
            return
        decision, entry, now, deadline_at = arrival
        channel: Channel | None = None
        if decision is not ADMITTED:
            if decision.waiter is not None:
                channel = Channel(receive, nothing, copy_context())
                granted = await self._wait(decision.waiter, channel)
                if granted is None:
                    return  # The caller has gone: nobody reads an answer.
                decision, now = granted, self._guard.clock.now()
            if decision.reason is not None:
                await self._refusals[decision.reason].send(
                    scope,
                    send,
                    decision.retry_after,
                    self._guard.figures(entry, deadline_at) if self._debug else None,
                )
                return
        # From here to enter() nothing suspends: no cancellation comes between a slot and its release.
        exchange = HttpExchange(
            task, deadline_at, now, self._guard, entry, supervisor, self._stopped,
            scope, receive, send, channel, outer,
        )  # fmt: skip
        await self._run(exchange, supervisor, scope, entry.max_body)

    def _arrive(
        self, scope: HTTPScope, outer: HttpExchange | None, supervisor: Supervisor
    ) -> tuple[Decision, RouteEntry, float, float] | None:
        """Decide about a request: decision, route entry, arrival and deadline; None if our own code failed."""
        guard, protection = self._guard, self._protection
        try:
            if not protection.started:
                self._start(scope)
            now = guard.clock.now()
            method = scope["method"]
            if method == "OPTIONS" and PREFLIGHT_NAMES.issubset(map(NAME_OF, scope["headers"])):
                entry = protection.preflight()
            else:
                entry = protection.entry(scope["path"], scope.get("root_path", ""), method, scope)
            if entry.max_body is not None:
                size = parse_content_length(_values(scope, b"content-length"))
                if size is not None and size > entry.max_body:
                    return guard.refuse(entry, now, Reason.BODY_TOO_LARGE), entry, now, now
            if self._fields.keys().isdisjoint(map(NAME_OF, scope["headers"])) and not supervisor.lag:
                deadline_at = now + entry.budget
            else:
                deadline_at = self._established(scope, entry, now, supervisor.lag)
            if outer is not None:
                deadline_at = min(deadline_at, outer.deadline_at)
            return guard.arrive(entry, now, deadline_at), entry, now, deadline_at
        except Exception as error:  # noqa: BLE001  the application must be served whatever our own code does
            guard.listeners.failed("admission", error)
            return None

    def _established(self, scope: HTTPScope, entry: RouteEntry, now: float, lag: float) -> float:
        """Return the deadline of a request that says something about it, or that had to wait for the loop."""
        names = self._fields
        fields = [(names[name], value.decode("latin-1")) for name, value in scope["headers"] if name in names]
        forwarded = _values(scope, b"x-forwarded-for") if self._protection.policy.trusted_hops else ()
        client = scope.get("client")
        peer = client[0] if client else None
        return self._protection.deadline_at(now, entry, fields, peer, forwarded, lag)

    async def _run(
        self, exchange: HttpExchange, supervisor: Supervisor, scope: HTTPScope, max_body: int | None
    ) -> None:
        """Run the application with a slot in hand; the slot comes back on every way out."""
        caught: BaseException | None = None
        release: Callable[[], None] = exchange.release
        receive: Any = exchange.receive
        send: Any = exchange.send
        if max_body is not None:
            receive = CountedBody(exchange, max_body).receive
        if self._tells is not None:
            send = TellingHead(exchange, self._tells).send
        supervisor.enter(exchange)
        token = CURRENT.set(exchange)
        try:
            await self.app(scope, receive, send)
        except GeneratorExit:
            # The garbage collector ends a forgotten request, at any allocation, also under the guard's lock.
            release = partial(self._guard.later, release)
            exchange.failed = True
            raise
        except BaseException as error:
            if not exchange.over(error):
                exchange.failed = True
                raise
            caught = error
        else:
            exchange.over(None)
        finally:
            # First of all: what comes after it may fail for a forgotten request.
            supervisor.leave(exchange, release)
            exchange.stop_listening()
            _reset(token)
        if exchange.reason is not None:
            try:
                await supervisor.settle(exchange, caught, exchange.answer)
            finally:
                caught = None  # No cycle between this frame and the traceback.

    async def _wait(self, waiter: Waiter, channel: Channel) -> Decision | None:
        """Wait for a slot while listening for the disconnect; None if the caller has gone."""
        wait = AsyncWait(self._guard, waiter, asyncio.get_running_loop())
        channel.on_disconnect = wait.abandon
        admitted = False
        try:
            channel.listen()
            decision = await wait.wait()
            admitted = decision is not None and decision.admitted
            if channel.disconnected:
                # He left at the instant at which the wait ended.
                if admitted:
                    self._guard.end(waiter.route, waiter.cost, CancelReason.CLIENT_DISCONNECT.value, 0.0)
                    admitted = False
                return None
        finally:
            if not admitted:
                channel.stop()
        return decision

    async def _lifespan(
        self, scope: LifespanScope, receive: ASGIReceiveCallable, send: ASGISendCallable
    ) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": ASYNCIO_ONLY})
            return

        async def send_checked(message: ASGISendEvent) -> None:
            # The application's own start-up may have added routes, so they are bound when it has finished.
            if message["type"] == "lifespan.startup.complete":
                try:
                    self._start(scope)
                except (ValueError, Warning) as error:  # a Warning: where the user made them errors
                    message = {"type": "lifespan.startup.failed", "message": str(error)}
                except Exception as error:  # noqa: BLE001  a route source is a guest: without it, paths decide
                    self._guard.listeners.failed("start", error)
            await send(message)

        await self.app(scope, receive, send_checked)

    def _start(self, scope: Scope) -> None:
        self._protection.start([scope.get("app"), self.app], inside=self.app)

    def _supervisor_of_this_loop(self) -> Supervisor:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UnsupportedEventLoop(ASYNCIO_ONLY) from None
        latest = self._latest  # one value, so that threads with a loop each never see half of another's
        if latest is not None and latest[0] is loop:
            return latest[1]
        with self._making:
            supervisor = self._supervisors.get(loop)
            if supervisor is None:
                self._supervisors = {
                    each: kept for each, kept in self._supervisors.items() if not each.is_closed()
                }
                supervisor = self._supervisors[loop] = Supervisor(
                    loop, self._guard.clock, self._guard.overload
                )
            self._latest = (loop, supervisor)
        return supervisor


ASYNCIO_ONLY = (
    "resilient_mw runs on asyncio only: start the server with an asyncio event loop instead of Trio"
)


def _values(scope: HTTPScope, name: bytes) -> list[str]:
    """Return the values of a header's lines."""
    return [value.decode("latin-1") for each, value in scope["headers"] if each == name]


def _reset(token: Token[RequestContext]) -> None:
    try:
        CURRENT.reset(token)
    except ValueError:
        pass  # The garbage collector ends a forgotten request, in whatever context it runs.
