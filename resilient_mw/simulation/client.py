"""The users: an open loop, which sends requests when they are due, whatever became of the earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.checks import require_integer, require_name, require_number
from resilient_mw.simulation.arrivals import Arrivals
from resilient_mw.simulation.chance import generator
from resilient_mw.simulation.durations import Duration
from resilient_mw.simulation.engine import Engine
from resilient_mw.simulation.measure import Figures
from resilient_mw.simulation.request import Outcome, Request
from resilient_mw.simulation.server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One kind of requests.

    Attributes:
        name: its name, also the label of its route.
        arrivals: when requests come.
        service: how long the work of one takes.
        priority: its class, or `exempt`; None: the default class of the policy.
        cost: slots that one request takes; None: 1.
        deadline: seconds from sending after which an answer is worth nothing.
        sends_deadline: whether the server is told so by a header.
        patience: seconds from sending after which a caller hangs up. None: never.
        returns: how often a refused caller comes back, each time after the delay that it was told.
        tenant: on whose behalf the requests come; None: nobody's in particular.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    name: str
    arrivals: Arrivals
    service: Duration
    priority: str | None = None
    cost: int | None = None
    deadline: float = math.inf
    sends_deadline: bool = True
    patience: Duration | None = None
    returns: int = 0
    tenant: str | None = None

    def __post_init__(self) -> None:
        require_name("Traffic.name", self.name)
        require_number(f"Traffic({self.name!r}).deadline", self.deadline)
        require_integer(f"Traffic({self.name!r}).returns", self.returns, low=0)


class Users:
    """Everybody who sends one kind of requests to one server.

    Args:
        engine: the clock.
        server: whom they ask.
        traffic: what they do.
        route: how the server treats it.
        seed: where their randomness comes from.
        observe: called with each request that has ended.
    """

    def __init__(
        self,
        engine: Engine,
        server: Server,
        traffic: Traffic,
        route: RouteEntry,
        *,
        seed: int,
        observe: Callable[[Request], None] | None,
    ) -> None:
        self.figures = Figures()
        self._engine = engine
        self._server = server
        self._traffic = traffic
        self._route = route
        self._observe = observe
        self._until = 0.0
        # A generator for each question: a policy that changes when work begins does not change who comes when.
        self._instants = traffic.arrivals.instants(generator(seed, f"{traffic.name}/arrivals"))
        self._duration = partial(traffic.service.draw, generator(seed, f"{traffic.name}/service"))
        self._patience = generator(seed, f"{traffic.name}/patience")
        self._wish = traffic.deadline if traffic.sends_deadline and traffic.deadline != math.inf else None

    def begin(self, until: float) -> None:
        """Send requests from now on, up to the instant `until`."""
        self._until = until
        self._schedule()

    def _schedule(self) -> None:
        instant = next(self._instants, math.inf)
        if instant < self._until:
            self._engine.at(instant, self._due)

    def _due(self) -> None:
        self._send(0)
        self._schedule()

    def _send(self, attempt: int) -> None:
        now, traffic = self._engine.now, self._traffic
        self.figures.sent_at.append(now)
        request = Request(
            self._route,
            self.figures,
            attempt=attempt,
            sent_at=now,
            worth_until=now + traffic.deadline,
            wish=self._wish,
            duration=self._duration,
            ended=self._ended,
            tenant=traffic.tenant,
        )
        if traffic.patience is not None:
            delay = traffic.patience.draw(self._patience, now)
            request.patience = self._engine.after(delay, partial(self._server.hang_up, request))
        self._server.receive(request)

    def _ended(self, request: Request) -> None:
        now, figures = self._engine.now, self.figures
        if request.patience is not None:
            self._engine.cancel(request.patience)
        match request.outcome:
            case Outcome.IN_TIME:
                figures.finished_at.append(now)
                figures.latency.append(now - request.sent_at)
            case Outcome.LATE:
                figures.late += 1
            case Outcome.EXPIRED:
                figures.expired += 1
            case Outcome.LEFT:
                figures.left += 1
            case Outcome.REFUSED:
                self._refused(request)
        if self._observe is not None:
            self._observe(request)

    def _refused(self, request: Request) -> None:
        self.figures.refused_at.append(self._engine.now)
        if request.reason is not None:
            self.figures.reasons[request.reason] += 1
        if request.retry_after is not None and request.attempt < self._traffic.returns:
            self._engine.after(request.retry_after, partial(self._send, request.attempt + 1))
