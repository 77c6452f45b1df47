"""How a queue of jobs is bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType

from resilient_mw.core.checks import require_integer, require_name, require_number
from resilient_mw.core.priority import DEFAULT_CLASSES, FIFO, PriorityClass

DEFAULT_SHARES: Mapping[str, float] = MappingProxyType({"normal": 0.9, "sheddable": 0.5})
_INTEGERS = {"places": 0, "workers": 1, "waiters": 0, "attempts": 1, "durable_places": 0}
_SECONDS = {"max_wait": 0.0, "lease": 0.001, "grace": 0.0, "drain": 0.0, "retry_after": 0.0, "poll": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsPolicy:
    """The bounds of one queue of jobs. Nothing in it grows or waits without one.

    Attributes:
        name: of the queue, a metric label.
        places: most jobs that are promised and have not begun, all classes together.
        classes: the classes, highest first. While several have jobs, their weights share the workers; `queue_length` is the
            most that one class may have in the queue.
        shares: by class, how full the queue may be, from 0 to 1, for a job of the class to be promised: what is above stays
            for higher classes. 1 for classes that are not named. By default 0.9 for `normal` and 0.5 for `sheddable`.
        workers: most jobs at work.
        max_wait: seconds that a caller waits for a place at most; never longer than what is left of his deadline.
        waiters: callers that may wait at once.
        lease: seconds that a job may run. They are its deadline.
        grace: seconds by which a durable job stays claimed beyond its deadline, for its clean-up.
        drain: seconds in which promised jobs are finished when the queue is closed.
        attempts: most deliveries of a durable job; afterwards it is kept for a person to look at.
        retry_after: seconds before a durable job that failed is delivered again, doubled with each delivery, at most one
            hour, of which a random half is taken off.
        durable_places: durable jobs of one class that may wait.
        poll: seconds between two looks at a durable store into which other processes put jobs.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    name: str = "jobs"
    places: int = 100
    classes: Sequence[PriorityClass] = DEFAULT_CLASSES
    shares: Mapping[str, float] = field(default_factory=lambda: DEFAULT_SHARES)
    workers: int = 4
    max_wait: float = 1.0
    waiters: int = 100
    lease: float = 60.0
    grace: float = 5.0
    drain: float = 10.0
    attempts: int = 5
    retry_after: float = 1.0
    durable_places: int = 10_000
    poll: float = 1.0

    def __post_init__(self) -> None:
        require_name("JobsPolicy.name", self.name)
        for name, low in _INTEGERS.items():
            require_integer(f"JobsPolicy.{name}", getattr(self, name), low=low)
        for name, least in _SECONDS.items():
            require_number(f"JobsPolicy.{name}", getattr(self, name), low=least, high=1e9)
        object.__setattr__(self, "classes", tuple(self.classes))
        self._check_classes()
        for name, share in self.shares.items():
            require_number(f"JobsPolicy.shares[{name!r}]", share, high=1.0)
            if self.shares is not DEFAULT_SHARES and name not in self.names:
                raise ValueError(
                    f"JobsPolicy.shares names the class {name!r}, which is none of {sorted(self.names)}"
                )

    def _check_classes(self) -> None:
        names: list[str] = []
        for each in self.classes:
            if not isinstance(each, PriorityClass):
                raise ValueError(f"JobsPolicy.classes holds {each!r}, which is no PriorityClass")
            if each.reserved or each.queue_order != FIFO:
                raise ValueError(
                    f"JobsPolicy.classes: {each.name!r} has reserved slots or another order than that of arrival, which jobs "
                    "do not have: use shares and weights"
                )
            names.append(each.name)
        if not names or len(names) != len(set(names)):
            raise ValueError(f"JobsPolicy.classes={names} is not allowed: at least one, each name once")

    @property
    def names(self) -> frozenset[str]:
        """The names of the classes."""
        return frozenset(each.name for each in self.classes)

    def room(self, name: str) -> int:
        """Return how many jobs may be in the queue, with it, when one of a class is promised."""
        return ceil(self.places * self.shares.get(name, 1.0))

    def retry_delay(self, attempt: int, chance: float) -> float:
        """Return seconds before a durable job is delivered again.

        Args:
            attempt: the number of the delivery that failed, from 1.
            chance: a random number from 0 to 1.
        """
        return min(3600.0, self.retry_after * 2.0 ** min(attempt - 1, 30)) * (1.0 - chance / 2)
