"""Five layers with three attempts each over a failing bottom, in virtual time: one layer retries, the others know."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from random import Random
from typing import Any

import pytest

from resilient_mw.calls.call import Call
from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Deliver, Head, Start, Wait
from resilient_mw.calls.ownership import RetryOwnership
from resilient_mw.calls.state import DependencyState
from resilient_mw.core.headers.retry_owner import RetryOwner, parse_retry_owner

LAYERS = 5
Steps = Generator[float, None, int]


class Chain:
    """Layers that call each other; only the last one has work, which fails."""

    def __init__(self, retry: RetryPolicy, ownership: RetryOwnership | None) -> None:
        self.states, self.fields = [], []
        for layer in range(LAYERS):
            dependency = Dependency(
                f"layer{layer}", f"http://layer{layer}/*", retry=retry, breaker=None, ownership=ownership
            )
            self.states.append(DependencyState(dependency, Random(layer)))
            self.fields.append(dependency.fields)
        self.now = 0.0
        self.reached = 0
        self._events: list[tuple[float, int, Steps]] = []
        self._order = itertools.count()

    def run(self, calls: int, per_second: float) -> float:
        """Send calls to the first layer; return how many requests each of them was for the bottom."""
        for number in range(calls):
            heapq.heappush(self._events, (number / per_second, next(self._order), self._serve(0, {})))
        while self._events:
            self.now, _, steps = heapq.heappop(self._events)
            pause = next(steps, None)
            if pause is not None:
                heapq.heappush(self._events, (self.now + pause, next(self._order), steps))
        return self.reached / calls

    def _serve(self, layer: int, received: dict[str, str]) -> Steps:
        yield 0.001
        if layer == LAYERS:
            self.reached += 1
            return 503
        fields = self.fields[layer]
        above = None
        if fields.heard is not None:
            above = parse_retry_owner(
                lambda name: [received[name]] if name in received else [], *fields.heard
            )
        call = Call(self.states[layer], "GET", deadline_at=self.now + 30.0, owned=above is not None)
        actions = call.begin(self.now)
        status = 504
        while True:
            action = actions[-1]
            if isinstance(action, Start):
                status = yield from self._serve(layer + 1, self._told(layer, above, action.number))
                actions = call.head(self.now, action.number, Head(status))
            elif isinstance(action, Wait):
                yield action.until - self.now
                actions = call.resume(self.now)
            else:
                break
        if isinstance(action, Deliver):
            call.end(self.now, None)
        return status

    def _told(self, layer: int, above: RetryOwner | None, number: int) -> dict[str, str]:
        fields = self.fields[layer]
        lines: Any = fields.owner_lines(above, number) if fields.tells else ()
        return {name.decode(): value.decode() for _, name, value in lines}


BARE = RetryPolicy(attempts=3, budget_ratio=None)


def test_without_any_defence_five_layers_reach_the_bottom_243_times() -> None:
    assert Chain(BARE, None).run(20, 100.0) == 3**LAYERS


def test_with_ownership_alone_only_the_first_layer_multiplies() -> None:
    assert Chain(BARE, RetryOwnership()).run(200, 100.0) == 3.0


def test_with_budgets_alone_every_layer_adds_its_share() -> None:
    assert Chain(RetryPolicy(attempts=3), None).run(3000, 100.0) > 1.5


@pytest.mark.parametrize("per_second", [20.0, 100.0, 1000.0])
def test_the_defaults_load_the_bottom_at_most_1_3_times(per_second: float) -> None:
    chain = Chain(RetryPolicy(attempts=3), RetryOwnership())
    load = chain.run(int(per_second * 30), per_second)
    assert 1.05 < load <= 1.3
    assert chain.states[0].retries == chain.reached - int(per_second * 30)
    for state in chain.states[1:]:
        assert state.retries == 0
        assert state.retry_refusals == {"not_owner": state.calls}
