"""What the field cases of the client half share: one dependency, and what must hold when all calls are over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.calls.breaker import BreakerState
from resilient_mw.calls.config import BreakerPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.runtime.guard import guard_of
from tests.integrations.httpx_wires import KINDS
from tests.transport.tcp_server import Connection, head

ROOT = Path(__file__).parents[2]
URL = "http://prices.test/"

async_wires = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "async"], ids="-".join)
sync_wires = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "sync"], ids="-".join)

ONE_TRIAL = BreakerPolicy(window=1, minimum_calls=1, open_for=5.0, open_jitter=0.0, trials=1)


def prices(match: str = URL + "*", **keywords: Any) -> Dependency:
    keywords.setdefault("retry", None)
    return Dependency("prices", match=match, **keywords)


def owner(dependency: Dependency) -> DependencyOwner:
    return owner_of(dependency)


def half_open(dependency: Dependency) -> None:
    """Let the open time of the circuit have passed."""
    breaker = owner(dependency).state.breaker
    assert breaker is not None
    breaker._change(owner(dependency).clock.now(), BreakerState.HALF_OPEN)


def nothing_held(dependency: Dependency) -> None:
    """Every slot, trial and place in the retry budget is back."""
    state = owner(dependency).state
    assert state.in_use == 0, "a place of the bulkhead is lost"
    assert state.breaker is None or not state.breaker._trials, "a trial is lost"
    assert state.budget is None or len(state.budget._retries) == state.retries, (
        "a place in the retry budget is lost"
    )


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def unsteady(connection: Connection) -> None:
    """Answers /ok at once; of all others some fail, some take their time, some stop in the middle."""
    while (request := connection.request()) is not None:
        number = len(connection.server.requests) % 5
        if request.path == "/ok" or number == 0:
            connection.answer()
        elif number == 1:
            connection.answer(503)
        elif number == 2:
            connection.send(head(200, 100) + b"x")
            connection.hang()
            return
        elif connection.server.over.wait(0.01) or not connection.answer(200, b"x" * 1000):
            return


def taken(policy: ServerPolicy) -> tuple[int, int]:
    """Slots in use, and requests that wait."""
    controller = guard_of(policy).controller
    return controller.slots.in_use, controller.waiting
