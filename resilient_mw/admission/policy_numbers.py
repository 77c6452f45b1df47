"""What the fields of a policy come to as numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from resilient_mw.admission.policy_checks import DEFENCES
from resilient_mw.admission.threads import ThreadSum
from resilient_mw.core.cors import Cors
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.priority import PriorityClass

AUTO_LIMIT = 40
"""What `limit="auto"` means: as many requests as the usual thread pool of an ASGI server has threads."""


class PolicyNumbers:
    """What is read off the fields of a `ServerPolicy`, which is the one class made from this."""

    __slots__ = ()

    limit: int | str
    queue: int | None
    threads: int | None
    spare_threads: int
    fit_queue: bool
    classes: Sequence[PriorityClass]
    deadline_default: float
    deadline_minimum: float
    deadline_maximum: float
    shadow: Collection[str] | bool
    cors_origins: Sequence[str]
    cors_credentials: bool

    @property
    def slots(self) -> int:
        """The limit as a number."""
        return AUTO_LIMIT if isinstance(self.limit, str) else self.limit

    @property
    def shadowed(self) -> frozenset[str]:
        """The defences that only report."""
        if isinstance(self.shadow, bool):
            return DEFENCES if self.shadow else frozenset()
        return frozenset(self.shadow)

    @property
    def queue_asked(self) -> int:
        """The length of the wait queue that was asked for, as a number."""
        return self.slots if self.queue is None else self.queue

    @property
    def queue_length(self) -> int:
        """The length of the wait queue as a number: what was asked for, or what the threads leave of it."""
        needs = self.thread_sum
        return needs.room if needs is not None and self.fit_queue else self.queue_asked

    @property
    def thread_sum(self) -> ThreadSum | None:
        """What the policy asks of the threads of its server; None while nobody knows how many there are."""
        if self.threads is None:
            return None
        return ThreadSum(self.threads, self.slots, self.queue_asked, self.spare_threads)

    @property
    def deadline(self) -> DeadlineRule:
        """The deadline numbers as one rule."""
        return DeadlineRule(self.deadline_default, self.deadline_minimum, self.deadline_maximum)

    @property
    def cors(self) -> Cors:
        """Who may read refusals."""
        return Cors(self.cors_origins, self.cors_credentials)

    def most_cost(self, priority: str) -> int:
        """Return the slots that a class can ever have: all but what the others reserve."""
        return self.slots - sum(each.reserved for each in self.classes if each.name != priority)
