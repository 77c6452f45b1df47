"""The decisions of a bounded queue of jobs: who is promised a place, who waits for one, which job is next.

A job that is promised leaves by three doors only: it is taken, it has expired before it began, or the queue is closed
and it is handed back. It is never pushed out. Not thread-safe: the owner locks around every use, and calls `wake` of those
that are returned after it has let go.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from math import ceil, inf

from resilient_mw.admission.job import Job, JobState
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.core.jobs_snapshot import JobClassSnapshot
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.rejection import Reason
from resilient_mw.core.windows import RunningMedian

LONGEST_RETRY_AFTER = 60
EXPIRED = "expired"
LEFT = "left"
ABANDONED = "shutdown"


Settled = tuple[Job, ...]
"""Jobs whose wait for a place is over, promised or refused."""


class _Class:
    """What one class holds, and has counted."""

    def __init__(self, priority: PriorityClass, room: int, places: int) -> None:
        self.priority = priority
        self.room = room
        self.most = places if priority.queue_length is None else priority.queue_length
        self.queue: deque[Job] = deque()
        self.held: dict[Job, None] = {}
        self.waiters: dict[Job, None] = {}
        self.turn = 0.0
        self.promised = 0
        self.deferred = 0
        self.refused: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()


class JobQueue:
    """Decides about the jobs of one queue.

    Args:
        policy: its bounds.

    Attributes:
        draining: whether no job is promised any more. Set by `drain()`, which a signal handler may call.
        running: jobs at work.
    """

    def __init__(self, policy: JobsPolicy) -> None:
        self.policy = policy
        self.draining = False
        self.running: dict[Job, None] = {}
        self._classes = {
            each.name: _Class(each, policy.room(each.name), policy.places) for each in policy.classes
        }
        self._median = RunningMedian()

    @property
    def queued(self) -> int:
        """Jobs that are promised and have not begun."""
        return sum(len(each.queue) for each in self._classes.values())

    @property
    def waiting(self) -> int:
        """Callers who wait for a place."""
        return sum(len(each.waiters) for each in self._classes.values())

    @property
    def free(self) -> int:
        """How many more jobs may be at work."""
        return self.policy.workers - len(self.running)

    def put(self, now: float, job: Job, wait: float, deadline_at: float = inf, *, hold: bool = False) -> None:
        """Decide about a job: afterwards its state is QUEUED, HELD, WAITING or REFUSED.

        Args:
            now: this instant.
            job: a new one.
            wait: seconds that its caller waits for a place at most.
            deadline_at: the instant after which the caller's own answer is worthless.
            hold: whether it is not to begin before `let_go`. Then nobody waits.

        Raises:
            KeyError: there is no such class.
        """
        mine = self._classes[job.priority]
        job.put_at = now
        job.deadline_at = min(deadline_at, job.expires_at)
        job.give_up_at = min(now + wait, job.deadline_at)
        if job.deadline_at <= now:
            self._refuse(job, Reason.EXPIRED_ON_ARRIVAL)
        elif self.draining:
            self._refuse(job, Reason.DRAINING)
        elif self._room(mine):  # then nobody waits: a place that comes free is given away at once
            if hold:
                job.state = JobState.HELD
                mine.held[job] = None
            else:
                self._promise(now, job)
        elif not hold and job.give_up_at > now and self.waiting < self.policy.waiters:
            job.state = JobState.WAITING
            mine.waiters[job] = None
        else:
            self._refuse(job, Reason.QUEUE_FULL)

    def let_go(self, now: float, job: Job) -> None:
        """Have a job that was held begin when its turn comes."""
        mine = self._classes[job.priority]
        if mine.held.pop(job, job) is None:
            self._promise(now, job)

    def take(self, now: float) -> tuple[Job | None, Settled]:
        """Take the next job, for somebody who holds a slot for it; and those who have got its place."""
        while True:
            ready = [each for each in self._classes.values() if each.queue]
            if not ready:
                return None, self._promote(now)
            mine = min(ready, key=lambda each: each.turn)
            job = mine.queue.popleft()
            if job.expires_at <= now:
                self._end(job, EXPIRED)
                continue
            mine.turn += 1.0 / mine.priority.weight
            self.begin(now, job)
            return job, self._promote(now)

    def begin(self, now: float, job: Job) -> None:
        """Note that a job is at work: one that was taken, or came from the durable store."""
        job.state = JobState.RUNNING
        job.lease_until = min(now + self.policy.lease, job.expires_at)
        self.running[job] = None

    def end(self, job: Job, outcome: str, ran: float = 0.0) -> None:
        """Note that a job at work has stopped, exactly once.

        Args:
            job: the job.
            outcome: `completed`, `error`, or a cancel reason.
            ran: seconds that it took: if it was completed, this says how long one takes.
        """
        del self.running[job]
        if outcome == "completed" and ran > 0:
            self._median.add(ran)
        self._end(job, outcome)

    def tick(self, now: float) -> Settled:
        """Let time pass: callers whose wait is over are refused; while it drains, that is everybody's."""
        settled: list[Job] = []
        for mine in self._classes.values():
            for job in list(mine.waiters):
                if self.draining:
                    self._refuse(job, Reason.DRAINING)
                elif job.give_up_at <= now:
                    late = job.deadline_at <= now
                    self._refuse(job, Reason.EXPIRED_IN_QUEUE if late else Reason.QUEUE_TIMEOUT)
                else:
                    continue
                del mine.waiters[job]
                settled.append(job)
        return (*settled, *self._promote(now))

    def next_wakeup(self) -> float | None:
        """Return the instant at which `tick` is due next; None: nobody waits."""
        return min((job.give_up_at for mine in self._classes.values() for job in mine.waiters), default=None)

    def leave(self, now: float, job: Job) -> Settled:
        """Forget a job whose caller was interrupted before he knew of the promise; harmless if it has begun."""
        mine = self._classes[job.priority]
        mine.waiters.pop(job, None)
        if job.state is JobState.QUEUED:
            mine.queue.remove(job)
            mine.promised -= 1
        elif job.state is JobState.HELD:
            del mine.held[job]
        elif job.state is not JobState.WAITING:
            return ()
        job.state = JobState.ENDED
        return self._promote(now)

    def drain(self) -> None:
        """Promise nothing any more. It changes a flag and no more; `tick` tells those who wait."""
        self.draining = True

    def resume(self) -> None:
        """Promise again: the queue is used once more."""
        self.draining = False

    def clear(self) -> list[Job]:
        """Take everything out that has not begun, to be handed back."""
        found = [job for mine in self._classes.values() for job in (*mine.queue, *mine.held)]
        for mine in self._classes.values():
            mine.queue.clear()
            mine.held.clear()
        for job in found:
            self._end(job, LEFT)
        return found

    def abandon(self) -> None:
        """Forget what runs: its event loop was closed."""
        for job in list(self.running):
            self.end(job, ABANDONED)

    def kept(self, job: Job) -> None:
        """Note that a job is in the durable store; if it had been handed back or refused, that is taken back."""
        mine = self._classes[job.priority]
        if job.outcome == LEFT:
            mine.ended[LEFT] -= 1
        if job.reason is not None:
            mine.refused[job.reason.value] -= 1
            job.reason = None
        job.deferred = True
        job.state = JobState.ENDED
        mine.deferred += 1

    def refuse(self, job: Job, reason: Reason) -> None:
        """Refuse a job for which the durable store has no place."""
        self._refuse(job, reason)

    def retry_after(self, chance: float) -> int | None:
        """Return whole seconds after which there should be a place; None: no job has ended yet.

        Args:
            chance: a random number from 0 to 1, so that not everybody comes back at once.
        """
        typical = self._median.value
        if typical is None:
            return None
        seconds = typical * (self.queued + 1) / self.policy.workers * (1.0 + chance / 2)
        return max(1, min(LONGEST_RETRY_AFTER, ceil(seconds)))

    def oldest(self, now: float) -> float:
        """Return seconds that the oldest job in the queue has waited."""
        return max((now - mine.queue[0].put_at for mine in self._classes.values() if mine.queue), default=0.0)

    def overdue(self, now: float) -> int:
        """Return how many jobs at work should have stopped."""
        return sum(job.lease_until < now for job in self.running)

    def classes(self) -> Iterator[JobClassSnapshot]:
        """Yield the figures of each class."""
        for name, mine in self._classes.items():
            yield JobClassSnapshot(
                priority=name,
                queued=len(mine.queue),
                waiting=len(mine.waiters),
                promised=mine.promised,
                deferred=mine.deferred,
                refused={reason: count for reason, count in mine.refused.items() if count},
                ended={outcome: count for outcome, count in mine.ended.items() if count},
            )

    def _room(self, mine: _Class) -> bool:
        held = sum(len(each.held) for each in self._classes.values())
        return len(mine.queue) + len(mine.held) < mine.most and self.queued + held < mine.room

    def _promise(self, now: float, job: Job) -> None:
        mine = self._classes[job.priority]
        if not mine.queue:
            # A class that was idle has saved up no turns.
            busy = [each.turn for each in self._classes.values() if each.queue]
            mine.turn = max(mine.turn, min(busy, default=mine.turn))
        job.state = JobState.QUEUED
        job.put_at = now
        mine.queue.append(job)
        mine.promised += 1

    def _promote(self, now: float) -> Settled:
        """Give free places to those who wait, highest class first."""
        if self.draining:
            return ()
        settled: list[Job] = []
        for mine in self._classes.values():
            while mine.waiters and self._room(mine):
                job = next(iter(mine.waiters))
                del mine.waiters[job]
                self._promise(now, job)
                settled.append(job)
        return tuple(settled)

    def _refuse(self, job: Job, reason: Reason) -> None:
        job.state = JobState.REFUSED
        job.reason = reason
        self._classes[job.priority].refused[reason.value] += 1

    def _end(self, job: Job, outcome: str) -> None:
        job.state = JobState.ENDED
        job.outcome = outcome
        self._classes[job.priority].ended[outcome] += 1
