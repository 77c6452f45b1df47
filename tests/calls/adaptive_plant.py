"""A dependency with a number of places and a queue before them, called under an adaptive limit, in virtual time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from resilient_mw.calls.adaptive import AdaptiveLimit, AdaptivePolicy


@dataclass
class Plant:
    """See the module.

    Attributes:
        places: how many it works on at once, as a function of the time.
        service: how long one takes, as a function of the time and luck.
        rate: arrivals per second, as a function of the time.
        queue: how many wait over there; more are refused. Infinite by default.
        timeout: seconds after which an attempt is given up; it is worked on all the same.
    """

    places: Callable[[float], int]
    service: Callable[[float, Random], float]
    rate: Callable[[float], float]
    queue: float = math.inf
    timeout: float = math.inf
    policy: AdaptivePolicy = field(default_factory=AdaptivePolicy)
    cap: int = 200
    seed: int = 1
    done: list[tuple[float, float]] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    arrived: int = 0

    def __post_init__(self) -> None:
        self.limiter = AdaptiveLimit(self.policy, self.cap)
        self.rng = Random(self.seed)

    def run(self, until: float) -> Plant:
        """Let the time pass."""
        rng, limiter = self.rng, self.limiter
        now, number, in_use, busy = 0.0, 0, 0, 0
        waiting: deque[float] = deque()
        events: list[tuple[float, int, str, float]] = [(0.0, 0, "arrive", 0.0)]

        def push(at: float, what: str, began: float) -> None:
            nonlocal number
            number += 1
            heapq.heappush(events, (at, number, what, began))

        while events[0][0] < until:
            now, _, what, began = heapq.heappop(events)
            if what == "arrive":
                push(now + rng.expovariate(self.rate(now)), "arrive", 0.0)
                self.arrived += 1
                limiter.begun(in_use)
                if in_use >= limiter.limit:
                    self.refused += 1
                    continue
                in_use += 1
                if busy < self.places(now):
                    busy += 1
                    push(now + self.service(now, rng), "done", now)
                elif len(waiting) >= self.queue:
                    in_use -= 1
                    limiter.ended(now, now, lost=True)
                else:
                    waiting.append(now)
            else:
                in_use -= 1
                busy -= 1
                late = now - began > self.timeout
                limiter.ended(min(now, began + self.timeout), began, lost=late)
                if not late:
                    self.done.append((now, now - began))
                while waiting and busy < self.places(now):
                    busy += 1
                    push(now + self.service(now, rng), "done", waiting.popleft())
            if not self.limits or self.limits[-1][1] != limiter.target:
                self.limits.append((now, limiter.target))
        return self

    def goodput(self, start: float, end: float) -> float:
        """Answers per second."""
        return sum(start <= at < end for at, _ in self.done) / (end - start)

    def latency(self, start: float, end: float) -> float:
        """The mean latency of answers, in seconds."""
        times = [seconds for at, seconds in self.done if start <= at < end]
        return sum(times) / len(times)

    def range_of(self, start: float, end: float) -> tuple[int, int]:
        """The smallest and the largest limit."""
        before = [limit for at, limit in self.limits if at < start][-1:]
        inside = [*before, *(limit for at, limit in self.limits if start <= at < end)]
        return min(inside), max(inside)
