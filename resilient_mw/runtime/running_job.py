"""The job that code runs for, and the idempotency keys of the calls that it makes.

A job may be delivered again after a crash, and then makes its calls again. What recognises them is a key that comes from
the job's own record: the same at every delivery, on whatever machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

from resilient_mw.calls.key import derived_key


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """The job that this code runs for.

    Attributes:
        id: its name.
        key: its idempotency key: the same at every delivery, so it is what to send to a dependency, or to insert first.
        task: the name of what it does, if that has one.
        attempt: the number of this delivery, from 1.
    """

    id: str
    key: str
    task: str | None
    attempt: int
    _calls: dict[tuple[str, ...], Iterator[int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def idempotency_key(self, name: str, *, version: int = 7) -> str:
        """Return the key of one piece of work in this job: the same for the same name at every delivery.

        Args:
            name: of the work, such as `charge`, or `f"charge {order}"` where there are several.
            version: 4: a UUID in the form of version 4; 7: of version 8, since it has no time in it.

        Raises:
            ValueError: there is no name.
        """
        if not name:
            raise ValueError(
                f"name={name!r} is not allowed: it must be what tells this call from the job's others"
            )
        return derived_key(version, "work", self.key, self.task or "", name)

    def next_call(self, version: int, *call: str) -> str:
        """Return the key of the next call of one kind, for transports.

        The first call of a kind has the same key at every delivery, so has the second, and so on: calls of a kind are told
        apart by their order, and may come from several threads only if it does not matter which is which.

        Args:
            version: as of `idempotency_key`.
            call: what kind: dependency, method, path.
        """
        # One step under the lock of the interpreter each, so that no two calls get one number.
        number = next(self._calls.setdefault(call, itertools.count(1)))
        return derived_key(version, "call", self.key, self.task or "", *call, str(number))


RUNNING_JOB: ContextVar[RunningJob | None] = ContextVar("resilient_mw_job", default=None)


def current_job() -> RunningJob | None:
    """Return the job that this code runs for; None outside jobs."""
    return RUNNING_JOB.get()


def idempotency_key(name: str, *, version: int = 7) -> str:
    """Return the key of one piece of work of the job that this code runs for; see `RunningJob.idempotency_key`.

    Raises:
        LookupError: no job runs here. A key that is new each time would not be recognised after a crash.
        ValueError: there is no name.
    """
    job = RUNNING_JOB.get()
    if job is None:
        raise LookupError(
            f"idempotency_key({name!r}): no job runs here; a thread that a job starts needs its context (contextvars.copy_context)"
        )
    return job.idempotency_key(name, version=version)
