"""What all requests that one middleware serves in one event loop share."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.asgi.refusal import Refusal
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.quotas import Asking
from resilient_mw.runtime.supervise import Supervisor

if TYPE_CHECKING:
    from resilient_mw.asgi.exchange import HttpExchange


class LoopService:
    """One middleware in one event loop: every request carries this one reference instead of four.

    Attributes:
        loop: the event loop.
        guard: decides about the requests.
        clock: the one clock.
        supervisor: watches over them.
        stopped: the answers to requests whose work was stopped. Others after a reload.
        later: that of the guard in this process: in a forked child the guard has another one.
    """

    __slots__ = ("clock", "guard", "later", "loop", "stopped", "supervisor")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guard: Guard, stopped: Mapping[CancelReason, Refusal]
    ) -> None:
        self.loop = loop
        self.guard = guard
        self.clock = guard.clock
        self.supervisor = Supervisor(loop, guard.clock, guard.overload, guard.lifecycle)
        self.stopped = stopped
        self.later = guard.later


class Arrival:
    """A request that was not admitted at once, or comes for a tenant: what is needed when its wait is over, or to refuse it."""

    __slots__ = ("cost", "deadline_at", "decision", "entry", "outer", "service", "task", "tenant")

    def __init__(  # noqa: PLR0917  the facts of one decision, in the order in which they are found
        self,
        decision: Decision | Asking,
        task: asyncio.Task[Any],
        service: LoopService,
        entry: RouteEntry,
        cost: int,
        deadline_at: float,
        outer: HttpExchange | None,
        tenant: str | None = None,
    ) -> None:
        self.decision = decision
        self.task = task
        self.service = service
        self.entry = entry
        self.cost = cost
        self.deadline_at = deadline_at
        self.outer = outer
        self.tenant = tenant
