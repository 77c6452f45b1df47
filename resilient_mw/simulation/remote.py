"""A dependency on the other side of the wire: a plant, and what goes wrong in front of it and on the way back.

It takes attempts of the call machine and tells what becomes of them, just as a transport does in real time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from resilient_mw.calls.events import Failure, Head, Phase, Start
from resilient_mw.core.checks import require_number
from resilient_mw.simulation.durations import Constant, Duration
from resilient_mw.simulation.engine import Engine, Timer
from resilient_mw.simulation.service import Plant, Work

AT_ONCE = Constant(0.0)

Outcome = Head | Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How a dependency fares.

    Shares are of all attempts unless it says otherwise, and drawn in the order of the fields.

    Attributes:
        service: how long the work of one attempt takes.
        body: how long a response body takes, from its head to its end.
        connect: how long it takes to connect.
        refuses: share whose connection is refused.
        unreachable: share whose connection is never made.
        resets: share that is cut off after the work was done, before the head.
        errors: share that is answered by one of `statuses`.
        cuts: share whose body is cut off half-way.
        statuses: what errors are answered by.
        forbids: share of the errors that say that a retry is useless.
        shed_above: pieces of work in the plant's queue above which an attempt is refused before any work.
        retry_after: seconds; what a refusal, and an error, asks to wait. None: nothing.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    service: Duration
    body: Duration = AT_ONCE
    connect: Duration = AT_ONCE
    refuses: float = 0.0
    unreachable: float = 0.0
    resets: float = 0.0
    errors: float = 0.0
    cuts: float = 0.0
    statuses: Sequence[int] = (500, 503)
    forbids: float = 0.0
    shed_above: int | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        for name in ("refuses", "unreachable", "resets", "errors", "cuts", "forbids"):
            require_number(f"Condition.{name}", getattr(self, name), high=1)


class RemoteService:
    """A dependency whose condition changes.

    Args:
        engine: the clock.
        plant: what does the work.
        conditions: (instant, condition from then on) in order of time, the first at 0.
        random: where its luck comes from.

    Attributes:
        received: attempts whose request came in.
        open: exchanges that are neither over nor closed.

    Raises:
        ValueError: the conditions are not in order of time, or leave the beginning open.
    """

    def __init__(
        self, engine: Engine, plant: Plant, conditions: Sequence[tuple[float, Condition]], random: Random
    ) -> None:
        self.engine = engine
        self.plant = plant
        self.random = random
        self.received = 0
        self.open: set[Exchange] = set()
        self._conditions = tuple(conditions)
        starts = [start for start, _ in self._conditions]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError(
                f"conditions={starts!r} is not allowed: they must be in order of time, the first at 0"
            )

    def condition(self) -> Condition:
        """Return the condition of this instant."""
        now = self.engine.now
        return next(condition for start, condition in reversed(self._conditions) if start <= now)

    def attempt(self, start: Start, told: Callable[[Outcome], None]) -> Exchange:
        """Take an attempt.

        Args:
            start: its timeouts.
            told: called once with what became of it; not at all after `close`.
        """
        return Exchange(self, start, told)


class Exchange:
    """One attempt on the wire, from its connection to the end of its body."""

    __slots__ = ("_condition", "_connecting", "_phase", "_remote", "_step", "_timeout", "_told", "_work")

    def __init__(self, remote: RemoteService, start: Start, told: Callable[[Outcome], None]) -> None:
        self._remote = remote
        self._condition = condition = remote.condition()
        self._told: Callable[[Outcome], None] | None = told
        self._phase = Phase.CONNECT
        self._work: Work | None = None
        self._step: Timer | None = None
        engine = remote.engine
        remote.open.add(self)
        self._timeout = self._after(start.timeout, self._time_out)
        self._connecting = self._after(start.connect_timeout, self._time_out)
        if self._drawn(condition.refuses):
            self._step = engine.after(0.0, partial(self._fail, Failure(Phase.CONNECT)))
        elif not self._drawn(condition.unreachable):
            self._step = engine.after(condition.connect.draw(remote.random, engine.now), self._connected)

    def read(self, ended: Callable[[Failure | None], None]) -> None:
        """Read the body; `ended` is called once with how it was cut off, or None; not at all after `close`."""
        remote, condition = self._remote, self._condition
        seconds = condition.body.draw(remote.random, remote.engine.now)
        failure = Failure(Phase.BODY) if self._drawn(condition.cuts) else None

        def told(outcome: Outcome) -> None:
            ended(outcome if isinstance(outcome, Failure) else None)

        self._told = told
        if failure is None:
            self._step = remote.engine.after(seconds, partial(self._tell, ended))
        else:
            self._step = remote.engine.after(seconds / 2, partial(self._fail, failure))

    def close(self) -> None:
        """Hang up, or close the response. Harmless after the end."""
        self._told = None
        self._over()

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _drawn(self, share: float) -> bool:
        return share > 0 and self._remote.random.random() < share

    def _after(self, seconds: float, call: Callable[[], None]) -> Timer | None:
        return self._remote.engine.after(seconds, call) if seconds < 1e6 else None

    def _connected(self) -> None:
        remote, condition = self._remote, self._condition
        if self._connecting is not None:
            remote.engine.cancel(self._connecting)
        self._phase = Phase.HEAD
        remote.received += 1
        if condition.shed_above is not None and remote.plant.backlog > condition.shed_above:
            self._answer(Head(503, condition.retry_after, refused=True))
            return

        def duration() -> float:
            return condition.service.draw(remote.random, remote.engine.now)

        self._work = remote.plant.work(duration, self._worked)

    def _worked(self) -> None:
        self._work = None
        if self._told is None:
            return
        condition = self._condition
        if self._drawn(condition.resets):
            self._fail(Failure(Phase.HEAD))
        elif self._drawn(condition.errors):
            status = self._remote.random.choice(condition.statuses)
            self._answer(Head(status, condition.retry_after, told_not_to=self._drawn(condition.forbids)))
        else:
            self._answer(Head(200))

    def _answer(self, head: Head) -> None:
        self._phase = Phase.BODY
        told, self._told = self._told, None
        if told is not None:
            told(head)

    def _time_out(self) -> None:
        if self._phase is not Phase.BODY or self._told is not None:
            self._fail(Failure(self._phase, timed_out=True))

    def _fail(self, failure: Failure) -> None:
        told, self._told = self._told, None
        self._over()
        if told is not None:
            told(failure)

    def _tell(self, ended: Callable[[Failure | None], None]) -> None:
        self._told = None
        self._over()
        ended(None)

    def _over(self) -> None:
        for timer in (self._timeout, self._connecting, self._step):
            if timer is not None:
                self._remote.engine.cancel(timer)
        self._remote.open.discard(self)
        work, self._work = self._work, None
        if work is not None:
            work.stop()
