"""The server: drives the real admission controller in virtual time, just as the gates do in real time."""

from __future__ import annotations

import math
from functools import partial

from resilient_mw.admission.controller import AdmissionController
from resilient_mw.admission.decision import ADMITTED, Settled
from resilient_mw.admission.entry import COMPLETED, Waiter, WaiterState
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.rejection import Reason
from resilient_mw.simulation.engine import Engine
from resilient_mw.simulation.request import Outcome, Request
from resilient_mw.simulation.service import Plant, Work


class Server:
    """One process: a plant, and admission in front of it.

    Attributes:
        controller: the real one; None: everything is let in at once, deadlines are ignored.
        plant: what does the work.
        running: requests that were let in and whose work has not stopped.
        most_running, most_waiting: most at once.
    """

    def __init__(self, engine: Engine, plant: Plant, controller: AdmissionController | None) -> None:
        self.controller = controller
        self.plant = plant
        self.running = 0
        self.most_running = 0
        self.most_waiting = 0
        self._engine = engine

    def receive(self, request: Request) -> None:
        """Take a request off the wire."""
        self.plant.accept(partial(self._arrive, request))

    def hang_up(self, request: Request) -> None:
        """Notice that the caller has gone before an answer."""
        now = self._engine.now
        request.end(now, Outcome.LEFT)
        if request.waiter is not None:
            self._forget(request, request.waiter)
        elif request.work is not None:
            self._cancel(request, request.work, CancelReason.CLIENT_DISCONNECT)

    # -- arrival and waiting -------------------------------------------------------------------------------------------

    def _arrive(self, request: Request) -> None:
        if request.outcome is not None:
            return
        controller, route, now = self.controller, request.route, self._engine.now
        if controller is None:
            self._start(request)
            return
        request.deadline_at = now + route.deadline.budget(request.wish, trusted=True)
        decision = controller.arrive(now, route, route.cost, request.deadline_at, request.tenant)
        if decision is ADMITTED:
            self._start(request)
            return
        self._wake(decision.settled)
        if decision.reason is not None:
            self._refuse(request, decision.reason, decision.retry_after)
        elif decision.waiter is not None:
            self._wait(request, decision.waiter)
            self.most_waiting = max(self.most_waiting, controller.waiting)
        else:
            self._start(request)

    def _wait(self, request: Request, waiter: Waiter) -> None:
        request.waiter = waiter
        request.timer = self._engine.at(waiter.give_up_at, partial(self._time_out, waiter.give_up_at))
        if waiter.state is WaiterState.WAITING:
            waiter.wake = partial(self._woken, request)
        else:
            self._woken(request)

    def _time_out(self, at: float) -> None:
        self.plant.resume(partial(self._tick, at))

    def _tick(self, at: float) -> None:
        if self.controller is not None:
            self._wake(self.controller.tick(max(at, self._engine.now)))

    def _wake(self, settled: Settled) -> None:
        for waiter in settled:
            wake, waiter.wake = waiter.wake, None
            if wake is not None:
                wake()

    def _woken(self, request: Request) -> None:
        self._disarm(request)
        self.plant.resume(partial(self._begin, request))

    def _begin(self, request: Request) -> None:
        waiter, request.waiter = request.waiter, None
        if waiter is None or self.controller is None:
            return
        decision = self.controller.begin(self._engine.now, waiter)
        self._wake(decision.settled)
        if decision.reason is not None:
            self._refuse(request, decision.reason, decision.retry_after)
        else:
            self._start(request)

    def _forget(self, request: Request, waiter: Waiter) -> None:
        request.waiter = None
        self._disarm(request)
        waiter.wake = None
        if self.controller is not None:
            self._wake(self.controller.leave(self._engine.now, waiter))

    def _refuse(self, request: Request, reason: Reason, retry_after: int | None) -> None:
        request.reason = reason
        request.retry_after = retry_after
        self.plant.refuse(partial(self._refused, request))

    def _refused(self, request: Request) -> None:
        if request.outcome is None:
            request.end(self._engine.now, Outcome.REFUSED)

    # -- work ----------------------------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        request.figures.admitted += 1
        request.admitted_at = self._engine.now
        if request.deadline_at != math.inf:
            # A controller that lets the dead in is one of the things that a run may show, so this must not fail then.
            deadline_at = max(request.deadline_at, self._engine.now)
            request.timer = self._engine.at(deadline_at, partial(self._expire, request))
        request.work = self.plant.work(
            partial(self._work_begins, request), partial(self._work_stopped, request)
        )

    def _work_begins(self, request: Request) -> float:
        now = self._engine.now
        request.began_at = now
        request.figures.waited.append(now - request.sent_at)
        if request.outcome is not None or now >= request.worth_until:
            request.figures.dead_starts += 1
        return request.duration(now)

    def _expire(self, request: Request) -> None:
        self.plant.resume(partial(self._cut_off, request))

    def _cut_off(self, request: Request) -> None:
        if request.work is not None and request.outcome is None:
            request.end(self._engine.now, Outcome.EXPIRED)
            self._cancel(request, request.work, CancelReason.DEADLINE)

    def _cancel(self, request: Request, work: Work, reason: CancelReason) -> None:
        self._disarm(request)
        if self.controller is not None:
            self.controller.finish(request.route, reason.value, self._engine.now - request.admitted_at)
        work.stop()
        if not request.stopped:
            request.figures.overran += 1

    def _work_stopped(self, request: Request) -> None:
        now, controller, route = self._engine.now, self.controller, request.route
        request.stopped = True
        request.work = None
        self.running -= 1
        if request.outcome is None:
            self._disarm(request)
            if controller is not None:
                controller.finish(route, COMPLETED, now - request.admitted_at)
            request.end(now, Outcome.IN_TIME if now <= request.worth_until else Outcome.LATE)
        if controller is not None:
            self._wake(controller.release(now, route, route.cost, request.tenant))

    def _disarm(self, request: Request) -> None:
        if request.timer is not None:
            self._engine.cancel(request.timer)
            request.timer = None
