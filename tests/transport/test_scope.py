"""How long the next operation of an attempt may take."""

from __future__ import annotations

import asyncio
import math

import pytest

from resilient_mw.testing.clock import ManualClock
from resilient_mw.transport.scope import Scope


def test_an_operation_gets_what_is_left_or_less() -> None:
    clock = ManualClock()
    scope = Scope(clock, clock.now() + 10.0)
    assert scope.left() == 10.0
    assert scope.left(3.0) == 3.0
    clock.advance(8.0)
    assert scope.left(3.0) == pytest.approx(2.0)
    clock.advance(3.0)
    assert scope.left(3.0) == pytest.approx(-1.0)


def test_without_a_bound_there_is_none() -> None:
    scope = Scope(ManualClock(), math.inf)
    assert scope.left() is None
    assert scope.left(3.0) == 3.0
    scope.connecting(None)
    assert scope.left_to_connect() is None


def test_connecting_has_one_time_for_all_its_steps() -> None:
    clock = ManualClock()
    scope = Scope(clock, clock.now() + 10.0)
    clock.advance(5.0)
    scope.connecting(2.0)
    clock.advance(1.5)
    assert scope.left_to_connect(2.0) == pytest.approx(0.5)
    assert scope.left() == pytest.approx(3.5)
    assert scope.connected


async def test_an_abandoned_attempt_ends_before_its_next_operation() -> None:
    scope = Scope(ManualClock(), math.inf)
    done: list[bool] = []

    async def operation() -> None:
        done.append(scope.interruptible)

    await scope.operate(operation)
    assert done == [True]
    assert not scope.interruptible
    scope.abandoned = True
    with pytest.raises(asyncio.CancelledError):
        await scope.operate(operation)
    assert done == [True]
