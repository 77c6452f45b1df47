"""The client throttle: sends a dependency that refuses most of what it gets little more than it accepts.

An attempt is refused here with the probability max(0, (requests - K x accepts) / (requests + 1)) over a sliding window
("Handling Overload", Site Reliability Engineering, 2016). Requests include those refused here, so with K = 2 a dependency is
sent about twice what it can do, however much is offered; without them it would be the root of what is offered. At most 90 %
are refused, so probes always flow and a recovery is noticed.

What counts as not accepted: a refusal for load of a dependency that is trusted, and an attempt that the dependency let fail
without an answer. What says nothing (a caller who gave up, a pool of our own without a free connection) is taken back.

A request counts when it is sent, or a dependency that hangs would not be noticed before its timeouts. Its answer is booked to
the instant at which it was sent, so both leave the window together. One that is under way has the benefit of the doubt for
as long as `patience`: else the first requests after a start, which nobody can have answered yet, would look like refusals.

Pure and not thread-safe: the owner of the dependency locks around every call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resilient_mw.core.checks import require_number

if TYPE_CHECKING:
    from random import Random

BUCKETS = 20
"""Parts of the window that are forgotten one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """When a dependency that refuses is sent less.

    By default nothing is refused here while it accepts at least half of what it gets, and one in ten is always sent.

    Attributes:
        window: seconds that are looked at; must be longer than the timeout of the dependency.
        sent_per_accept: requests that are sent for each one that is accepted (K). Lower: fewer refusals for the dependency
            to make, and a slower return: some 16 s at 2 and 29 s at 1.5 after ten times the load, with the default window.
        most_refused: the largest share that is refused here; the rest are the probes.
        per_second: requests per second, those refused here included, below which all are sent. A process of many sees
            only its part of the traffic.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    window: float = 10.0
    sent_per_accept: float = 2.0
    most_refused: float = 0.9
    per_second: float = 1.0

    def __post_init__(self) -> None:
        require_number("ThrottlePolicy.window", self.window, low=0.1, high=3600)
        require_number("ThrottlePolicy.sent_per_accept", self.sent_per_accept, low=1.1, high=10)
        require_number("ThrottlePolicy.most_refused", self.most_refused, low=0.01, high=0.95)
        require_number("ThrottlePolicy.per_second", self.per_second, low=0, high=100_000)


class Throttle:
    """Refuses a share of the attempts at one dependency. See the module.

    Args:
        policy: window, K and bounds.
        random: what decides which attempt is refused.
        patience: seconds for which an attempt under way counts as accepted.

    Attributes:
        refused: attempts that were refused here since the start.
    """

    __slots__ = (
        "_accepted",
        "_accepts",
        "_k",
        "_least",
        "_most",
        "_newest",
        "_open",
        "_random",
        "_requests",
        "_seen",
        "_width",
        "_young",
        "refused",
    )

    def __init__(self, policy: ThrottlePolicy, random: Random, patience: float) -> None:
        self.refused = 0
        self._random = random
        self._k = policy.sent_per_accept
        self._most = policy.most_refused
        self._width = policy.window / BUCKETS
        self._least = policy.per_second * policy.window
        self._young = min(BUCKETS - 1, math.ceil(patience / self._width))
        self._newest = 0
        # One place for each bucket: requests, those of them that were accepted, and those that are under way.
        self._seen = [0] * BUCKETS
        self._accepted = [0] * BUCKETS
        self._open = [0] * BUCKETS
        self._requests = 0
        self._accepts = 0

    def refuses(self, now: float) -> bool:
        """Decide about one attempt; one that is refused is counted, one that is not is counted when it is `sent`."""
        number = int(now / self._width)
        if number > self._newest:
            self._advance(number)
        if self._requests <= self._k * self._accepts or self._requests < self._least:
            return False
        if self._random.random() >= self._probability():
            return False
        self.refused += 1
        self._requests += 1
        self._seen[self._newest % BUCKETS] += 1
        return True

    def room(self, now: float) -> tuple[int, float]:
        """Return how many attempts may be sent, and until when, before one may be refused, whatever becomes of them."""
        number = int(now / self._width)
        if number > self._newest:
            self._advance(number)
        spare = math.floor(self._k * self._accepts - self._requests) + 1
        below = math.ceil(self._least - self._requests)
        # A little before the next bucket begins: a product is rounded otherwise than a quotient.
        return max(0, spare, below), (self._newest + 1) * self._width * (1.0 - 1e-12)

    def sent_all(self, many: int) -> None:
        """Count attempts that began in the time of the last `room`."""
        place = self._newest % BUCKETS
        self._requests += many
        self._seen[place] += many
        self._open[place] += many

    def accepted_all(self, sent_at: Sequence[float]) -> None:
        """Take attempts that the dependency took: the instants at which they began."""
        if not sent_at:
            return
        number = self._newest
        if int(min(sent_at) / self._width) != number:
            for instant in sent_at:
                self.ended(instant, accepted=True)
            return
        self._open[number % BUCKETS] -= len(sent_at)
        self._accepted[number % BUCKETS] += len(sent_at)
        self._accepts += len(sent_at)

    def sent(self, now: float) -> None:
        """Count an attempt that begins."""
        number = int(now / self._width)
        if number > self._newest:
            self._advance(number)
        place = self._newest % BUCKETS
        self._requests += 1
        self._seen[place] += 1
        self._open[place] += 1

    def ended(self, sent_at: float, *, accepted: bool | None) -> None:
        """Take what became of an attempt, once.

        Args:
            sent_at: the instant that `sent` was told.
            accepted: whether the dependency took it; None takes the attempt back, for it says nothing.
        """
        number = int(sent_at / self._width)
        if number <= self._newest - BUCKETS:
            return  # It has left the window.
        place = number % BUCKETS
        self._open[place] -= 1
        if accepted:
            self._accepted[place] += 1
            self._accepts += 1
        elif accepted is None:
            self._seen[place] -= 1
            self._requests -= 1

    def probability(self, now: float) -> float:
        """Return the share of the attempts of this instant that is refused."""
        number = int(now / self._width)
        if number > self._newest:
            self._advance(number)
        return 0.0 if self._requests < self._least else self._probability()

    def window(self) -> tuple[int, int]:
        """Return the requests of the window, those refused here included, and how many of them were accepted."""
        return self._requests, self._accepts

    def _probability(self) -> float:
        newest = self._newest
        young = sum(self._open[number % BUCKETS] for number in range(newest - self._young, newest + 1))
        excess = self._requests - self._k * (self._accepts + young)
        return min(self._most, max(0.0, excess / (self._requests + 1)))

    def _advance(self, number: int) -> None:
        """Forget what lies before the window that ends with a bucket."""
        for each in range(self._newest + 1, min(number, self._newest + BUCKETS) + 1):
            place = each % BUCKETS
            self._requests -= self._seen[place]
            self._accepts -= self._accepted[place]
            self._seen[place] = self._accepted[place] = self._open[place] = 0
        self._newest = number
