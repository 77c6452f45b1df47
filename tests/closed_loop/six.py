"""One of six dependencies slows from 120 ms to 8 s for four minutes: a service in front of them, in virtual time.

Each page calls two dependencies, one after the other, on a worker thread; half of the pages need the one that slows. The
call machine, its breaker and its bulkhead are the real ones.

    python -m tests.closed_loop.six            # 800 requests a second; half a minute
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Deliver
from resilient_mw.calls.state import DependencyState
from resilient_mw.lab.records import percentile
from resilient_mw.simulation import (
    Caller,
    Condition,
    Constant,
    Engine,
    OutgoingCall,
    RemoteService,
    Workers,
)

NAMES = ("prices", "reviews", "stock", "images", "offers", "delivery")
PAGES = (NAMES[:2], NAMES[:2], NAMES[2:4], NAMES[4:])
SLOW = "reviews"
USUAL, SLOWED = 0.120, 8.0
BEFORE, LONG, AFTER = 30.0, 240.0, 30.0
"""Seconds: before it slows, slow, and after it is well again."""
PATIENCE = 10.0
"""Seconds after which a user leaves."""

BARE: dict[str, Any] = {
    "timeout": None, "connect_timeout": None, "total_timeout": None, "retry": None, "breaker": None,
}  # fmt: skip


@dataclass
class Page:
    """One request of a user."""

    names: tuple[str, ...]
    came_at: float
    took: float = PATIENCE
    served: bool = False
    gone: bool = False


@dataclass
class Seen:
    """What came of one run: `use` is the most busy threads as a part of all, `errors` of the five others."""

    pages: list[Page] = field(default_factory=list)
    use: float = 0.0
    errors: int = 0
    asked: int = 0

    def p95(self, begin: float, end: float) -> float:
        """Return the p95 of the pages that came between two instants; who left waited as long as he did."""
        found = percentile((page.took for page in self.pages if begin <= page.came_at < end), 0.95)
        assert found is not None
        return found

    def served(self, begin: float, end: float, *, needs_slow: bool) -> float:
        """Return the part of the pages that were served, of those that need the slow one, or do not."""
        asked = [
            page for page in self.pages if begin <= page.came_at < end and (SLOW in page.names) is needs_slow
        ]
        return sum(page.served for page in asked) / len(asked)


class Site:
    """The service: a pool of threads with a queue in front, as WSGI servers have."""

    def __init__(self, rate: float, policies: dict[str, Any], seed: int) -> None:
        self.engine, self.random, self.seen = Engine(), Random(seed), Seen()
        self.rate = rate
        self.threads = math.ceil(2.5 * with_chance(rate * 2 * USUAL))
        self.busy = 0
        self.waiting: deque[Page] = deque()
        self.callers = {name: self._caller(name, policies) for name in NAMES}

    def _caller(self, name: str, policies: dict[str, Any]) -> Caller:
        conditions = [(0.0, Condition(service=Constant(USUAL)))]
        if name == SLOW:
            conditions += [
                (BEFORE, Condition(service=Constant(SLOWED))),
                (BEFORE + LONG, Condition(service=Constant(USUAL))),
            ]
        plant = Workers(100_000).build(self.engine, self.random)  # it is slow, and not short of anything
        remote = RemoteService(self.engine, plant, conditions, self.random)
        dependency = Dependency(name, f"http://{name}/*", **policies)
        return Caller(self.engine, DependencyState(dependency, Random(7)), remote)

    def run(self) -> Seen:
        self._come()
        self.engine.run()
        for name, caller in self.callers.items():
            bad = sum(count for outcome, count in caller.state.attempts.items() if outcome != "2xx")
            refused = sum(caller.state.refusals.values())
            self.seen.errors += (bad + refused) * (name != SLOW)
        self.seen.asked = self.callers[SLOW].remote.received
        return self.seen

    def _come(self) -> None:
        now = self.engine.now
        page = Page(self.random.choice(PAGES), now)
        self.seen.pages.append(page)
        self.engine.at(now + PATIENCE, partial(self._leave, page))
        if self.busy < self.threads:
            self._begin(page)
        else:
            self.waiting.append(page)
        following = now + self.random.expovariate(self.rate)
        if following < BEFORE + LONG + AFTER:
            self.engine.at(following, self._come)

    def _leave(self, page: Page) -> None:
        page.gone = True  # The thread does not notice, as with WSGI.

    def _begin(self, page: Page) -> None:
        self.busy += 1
        self.seen.use = max(self.seen.use, self.busy / self.threads)
        self._call(page, 0)

    def _call(self, page: Page, number: int) -> None:
        caller = self.callers[page.names[number]]
        ended: Callable[[OutgoingCall], None] = partial(self._called, page, number)
        caller.call(ended=ended)

    def _called(self, page: Page, number: int, call: OutgoingCall) -> None:
        well = isinstance(call.outcome, Deliver) and call.answer is not None and call.answer.status < 400
        if well and number + 1 < len(page.names):
            # Not from within the machine of the first call.
            self.engine.after(0.0, partial(self._call, page, number + 1))
            return
        if not page.gone:
            page.took, page.served = self.engine.now - page.came_at, well
        self.busy -= 1
        while self.waiting:
            waiting = self.waiting.popleft()
            if not waiting.gone:
                self.engine.after(0.0, partial(self._begin, waiting))
                break


def protections(rate: float) -> dict[str, Any]:
    """Return the arguments of each dependency: a timeout, and a bulkhead of what it needs when it is well, and more."""
    return {"timeout": 1.0, "bulkhead": math.ceil(with_chance(rate * 0.5 * USUAL))}


def with_chance(mean: float) -> float:
    """Return how many are hardly ever exceeded where so many are under way on average, and come by chance."""
    return mean + 4 * math.sqrt(mean) + 4


def main() -> None:
    """Print both runs."""
    rate = 800.0
    for title, policies in (("without", BARE), ("with", protections(rate))):
        seen = Site(rate, policies, seed=6).run()
        before, slow = seen.p95(0, BEFORE), seen.p95(BEFORE, BEFORE + LONG)
        fine = seen.served(BEFORE, BEFORE + LONG, needs_slow=False)
        print(
            f"{title:8} breakers: p95 {before * 1000:,.0f} ms before, {slow * 1000:,.0f} ms while slow; threads {seen.use:.0%}; "
            f"pages without it served {fine:.1%}; errors of the five others {seen.errors}; slow one asked {seen.asked:,}"
        )


if __name__ == "__main__":
    main()
