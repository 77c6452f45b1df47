"""Plays one sequence of the fuzz test: the middleware, its application and its server, in virtual time."""

from __future__ import annotations

import asyncio
from contextvars import Context
from math import inf
from random import Random
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.events import Event
from resilient_mw.runtime.guard import Guard
from tests.asgi.driver import App
from tests.asgi.fuzz_account import AccountedController, AccountedGuard
from tests.asgi.fuzz_handler import Handling, application
from tests.asgi.fuzz_plan import STREAMS, Plan, RequestPlan
from tests.asgi.fuzz_wire import Wire
from tests.runtime.virtual_time import VirtualClock, VirtualLoop

PATIENCE = 15.0
"""Seconds after which everything has ended by itself, but for what hangs in the server's own functions."""
REST = 8.0
"""Seconds after which no timer may be left."""


class World:
    """One sequence.

    Attributes:
        complaints: what was found wrong while it ran.
        blocked: seconds for which handlers kept the loop for themselves: so late may everything be.
        loop_complaints: what the loop's exception handler was told.
        stop_at: the instant from which on a drain cancels what still runs.
        waited_for: requests that the server had to cancel at the end.
    """

    def __init__(self, plan: Plan, loop: VirtualLoop, clock: VirtualClock) -> None:
        self.plan = plan
        self.loop = loop
        self.clock = clock
        self.events: list[Event] = []
        self.complaints: list[str] = []
        self.loop_complaints: list[str] = []
        self.blocked = 0.0
        self.stop_at = inf
        self.began_at = clock.now()
        self.children: set[asyncio.Task[Any]] = set()
        self.handlings: dict[int, Handling] = {}  # by the place of the request
        self.wires_by_scope: dict[int, Wire] = {}
        self.waited_for: list[Wire] = []
        self.in_use = dict.fromkeys(("slots", "exempt"), 0)
        self._latest: Context | None = None
        policy = ServerPolicy(**plan.policy, listeners=(self.events.append,))
        guard = AccountedGuard(policy, self.clock, Random(plan.seed))
        policy.owner.append(guard)
        self.guards: list[Guard] = [guard]
        self.controller = AccountedController(policy, Random(plan.seed))
        self.guards[0].controller = self.controller
        self.guards[0].lifecycle.restart(self.controller, self.guards[0]._lock)
        self.policy = policy
        self.middlewares: list[ResilienceMiddleware] = []
        self.app = self._stack(plan.stack)
        self.wires: list[Wire] = []

    def _guard(self, policy: ServerPolicy, seed: int) -> Guard:
        guard = Guard(policy, self.clock, Random(seed))
        policy.owner.append(guard)
        return guard

    def _stack(self, kind: str) -> App:
        app: App = application(self)
        if kind == "task inside":
            app = in_a_task(app)
        middleware = self._protected(app, self.policy)
        if kind == "twice":
            return self._protected(middleware, self.policy)
        if kind == "task outside":
            return in_a_task(middleware)
        if kind == "double":
            outer = ServerPolicy(
                limit=100,
                deadline_default=self.plan.outer_default,
                deadline_maximum=self.policy.deadline_maximum,
            )
            self.guards.append(self._guard(outer, self.plan.seed))
            return self._protected(middleware, outer)
        return middleware

    def _protected(self, app: App, policy: ServerPolicy) -> ResilienceMiddleware:
        middleware = ResilienceMiddleware(app, policy)
        self.middlewares.append(middleware)
        # To ask what is installed for sources of routes would take longer than the whole sequence.
        middleware.protection.table.bind(None)
        middleware.protection.started = True
        return middleware

    # -- what handlers tell --------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.now()

    def block(self, seconds: float) -> None:
        self.blocked += seconds
        self.clock.move_to(self.clock.now() + seconds)

    def entered(self, wire: Wire, handling: Handling) -> None:
        place = self.wires.index(wire)
        if place in self.handlings:
            self.complaints.append(f"request {place} ran twice")
        self.handlings[place] = handling
        self._latest = handling.context
        self._take(wire.plan, 1)

    def head_left(self, handling: Handling) -> None:
        """Note that the server has taken the head: what frees its slot by that does not need it any more."""
        if handling.plan.path in STREAMS and not handling.freed:
            handling.freed = True
            self.lets_go(handling)

    def holds(self, handling: Handling, future: asyncio.Future[Any]) -> None:
        """Note that a request keeps its slot until a future is done."""
        if handling.holding:
            handling.holding += 1
            future.add_done_callback(lambda _: self.lets_go(handling))

    def lets_go(self, handling: Handling) -> None:
        """Note that the handler, or something that it had held, has ended."""
        handling.holding -= 1
        if not handling.holding:
            self._take(handling.plan, -1)

    def _take(self, request: RequestPlan, sign: int) -> None:
        """Keep account of the slots that handlers use, and object to more than there are."""
        name, cost = self.plan.treatment(request)
        kind = "exempt" if name == "exempt" else "slots"
        self.in_use[kind] += sign * cost
        policy = self.guards[0].policy
        most = policy.exempt_limit if kind == "exempt" else policy.slots
        if self.in_use[kind] > most:
            self.complaints.append(f"handlers use {self.in_use[kind]} of {most} {kind}")

    def may_be_told(self, handling: Handling) -> bool:
        """Return whether a handler may be told that its caller has gone."""
        wire = next(each for each in self.wires if each.plan is handling.plan)
        over = getattr(handling.record, "reason", None) is not None
        return over or wire.gone_at < inf or wire.complete or handling.left_at < inf

    # -- the run -------------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """Let everything happen, and wait until nothing is left to happen."""
        for place, request in enumerate(self.plan.requests):
            wire = Wire(request, self.app, self.loop)
            self.wires.append(wire)
            self.wires_by_scope[id(wire.scope)] = wire
            self.loop.call_later(request.at, self._begin, place)
        if self.plan.drain_at is not None:
            self.loop.call_later(self.plan.drain_at, self._drain)
        if self.plan.reload_at is not None:
            self.loop.call_later(self.plan.reload_at, self._reload)
        await asyncio.sleep(max(each.at for each in self.plan.requests))
        await asyncio.sleep(0)
        await self._ended(PATIENCE)
        for wire in self.wires:
            assert wire.task is not None
            if not wire.task.done():
                self.waited_for.append(wire)
                wire.task.cancel()
        await self._ended(1.0)
        if any(getattr(each, "__self__", None) in self.guards for each in self.loop.scheduled()):
            self.complaints.append("the timer of a wait is left")
        end = self.now() + REST
        while self.loop.timers() or self.children:
            if self.now() > end:
                self.complaints.append(f"timers or tasks are left: {self.loop.timers()}, {self.children}")
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(0)

    def _drain(self) -> None:
        self.stop_at = self.now() + self.plan.drain_within
        self.policy.drain(timeout=self.plan.drain_within)

    def _reload(self) -> None:
        self.policy.reload(limit=self.policy.slots + 1, queue=self.policy.queue_length + 1)

    def _begin(self, place: int) -> None:
        wire = self.wires[place]
        inherited = self._latest if wire.plan.inherits else None
        wire.begin(inherited.copy() if inherited is not None else None)

    async def _ended(self, within: float) -> None:
        pending = {each.task for each in self.wires if each.task is not None and not each.task.done()}
        if pending:
            await asyncio.wait(pending, timeout=within)


def in_a_task(app: App) -> App:
    """Run what is below in a task of its own, as function middlewares of frameworks do."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]

    return layer
