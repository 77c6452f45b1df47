"""The durable jobs of a queue: promised in a store, claimed from it, and told to it when they have ended."""

from __future__ import annotations

import json
from math import inf

from resilient_mw.admission.job import Job, JobState
from resilient_mw.core.job_store import ClaimedJob, JobStore, NewJob
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.clocks import wall_clock
from resilient_mw.runtime.jobs_owner import LOGGER, JobsOwner


class DurableJobs(JobsOwner):
    """A queue of jobs that knows a store. Whatever talks to the store here blocks."""

    def _stored(self, job: Job) -> bool:
        """Put a job into the store; False: there is no place for it.

        Raises:
            ValueError: there is no store, the job cannot be written down, or its key is another one's.
        """
        if self.store is None:
            raise ValueError("there is no durable store: BoundedJobs(store=...)")
        new = self._written(job)
        if new is None:
            raise ValueError(
                f"{job.work!r} cannot be made durable: register it with task(), and give it arguments that JSON can hold"
            )
        kept = self.store.add(new, wall_clock(), self.policy.durable_places)
        with self._lock:
            if kept is None:
                if job.state is not JobState.REFUSED:
                    self._queue.refuse(job, Reason.QUEUE_FULL)
                return False
            job.id = kept
            self._queue.kept(job)
        return True

    def _keep(self, job: Job) -> None:
        """Put a job into the store.

        Raises:
            JobRefused: there is no place for it.
            ValueError: there is no store, or the job cannot be written down.
        """
        if not self._stored(job):
            raise self._refused(job)

    def _written(self, job: Job) -> NewJob | None:
        """Write a job down; None: it cannot be."""
        if job.task is None or not _keeps_its_keys(job.args):
            return None
        try:
            payload = json.dumps(job.args)
        except (TypeError, ValueError):
            return None
        left = job.expires_at - self.clock.now()
        return NewJob(
            id=job.id, task=job.task, payload=payload, key=job.key, priority=job.priority,
            expires_at=None if left == inf else wall_clock() + left,
        )  # fmt: skip

    def _is_turn_of_store(self) -> bool:
        """Return whether a store that has a job gives the next one; while the queue in memory has some, in every second turn."""
        self._store_turn = not self._store_turn
        return self._store_turn or not self._queue.queued

    def _claimed(self) -> Job | None:
        """Claim a durable job; None: there is none, or the store does not answer."""
        if self.store is None or not self._functions:
            return None
        policy, now = self.policy, wall_clock()
        try:
            claim = self.store.claim(
                now, now + policy.lease + policy.grace, tuple(self._functions), policy.attempts
            )
        except Exception:  # noqa: BLE001  logged and counted
            self._did_not_answer("was asked for a job")
            return None
        self._waits_there()
        if claim is None:
            return None
        try:
            return self._of(claim, now)
        except (TypeError, ValueError) as error:
            self._unreadable(claim, error)
            return None

    def _of(self, claim: ClaimedJob, now: float) -> Job:
        new = claim.job
        expires_at = inf if new.expires_at is None else self.clock.now() + new.expires_at - now
        priority = new.priority if new.priority in self.policy.names else self.policy.classes[-1].name
        job = Job(
            new.id, new.key, self._functions[new.task], tuple(json.loads(new.payload)), priority=priority,
            task=new.task, expires_at=expires_at,
        )  # fmt: skip
        job.claim = claim
        with self._lock:
            self._redelivered += claim.attempt > 1
        return job

    def _unreadable(self, claim: ClaimedJob, error: Exception) -> None:
        LOGGER.error("job %s (%s) cannot be read, and is given up: %r", claim.job.id, claim.job.task, error)
        try:
            if self.store is not None:
                self.store.give_up(claim.job.id, claim.token, f"cannot be read: {error!r}")
        except Exception:  # noqa: BLE001  logged and counted
            self._did_not_answer("was to give up a job that cannot be read")

    def _settle(self, job: Job, outcome: str, error: BaseException | None) -> None:
        """Tell the store how a durable job ended."""
        claim, store = job.claim, self.store
        if claim is None or store is None:
            return
        try:
            valid = self._told(store, claim, outcome, error)
        except Exception:  # noqa: BLE001  logged and counted
            self._did_not_answer(f"was told that job {job.id} ended; it will be delivered once more")
            return
        if not valid:
            with self._lock:
                self._lost += 1
            LOGGER.warning("the lease of job %s (%s) was over before it was %s", job.id, job.task, outcome)

    def _told(self, store: JobStore, claim: ClaimedJob, outcome: str, error: BaseException | None) -> bool:
        if outcome == "completed":
            return store.done(claim.job.id, claim.token)
        if outcome == "expired":
            return store.give_up(claim.job.id, claim.token, "expired before it began")
        if outcome == "shutdown":
            return store.retry(claim.job.id, claim.token, wall_clock(), delivered=False)
        if claim.attempt >= self.policy.attempts:
            return store.give_up(claim.job.id, claim.token, repr(error) if error is not None else outcome)
        delay = self.policy.retry_delay(claim.attempt, self._random.random())
        return store.retry(claim.job.id, claim.token, wall_clock() + delay)

    def _did_not_answer(self, when: str) -> None:
        with self._lock:
            self._unreachable += 1
        LOGGER.exception("the store of the jobs %r failed when it %s", self.policy.name, when)

    def _waits_there(self) -> bool:
        """Return whether the store has a job that waits; what it holds is noted for the figures."""
        if self.store is None:
            return False
        try:
            counts = self.store.counts(wall_clock())
        except Exception:  # noqa: BLE001  logged and counted
            self._did_not_answer("was asked what it holds")
            return False
        self._counts = counts
        return any(counts.waiting.values())

    def _hand_back(self, jobs: list[Job]) -> list[Job]:
        """Keep jobs that have not begun in the store, and report those that cannot be; returned are these."""
        left = [job for job in jobs if not self._persisted(job)]
        if left:
            LOGGER.error(
                "the queue of jobs %r is closed with %d promised jobs that were not begun: %s",
                self.policy.name, len(left), ", ".join(job.task or repr(job.work) for job in left[:10]),
            )  # fmt: skip
            if self._told_of_left is not None:
                self._told_of_left(left)
        return left

    def _persisted(self, job: Job) -> bool:
        if self.store is None or self._written(job) is None:
            return False
        try:
            return self._stored(job)
        except Exception:  # noqa: BLE001  logged and counted
            self._did_not_answer(f"was to keep job {job.id}")
            return False


def _keeps_its_keys(value: object) -> bool:
    """Return whether the keys of all mappings in a value are text: JSON would make text of others, and say nothing."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _keeps_its_keys(each) for key, each in value.items())
    return not isinstance(value, (list, tuple)) or all(map(_keeps_its_keys, value))
