"""A body that is read step by step: what becomes of a step that nobody waits for any more."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.transport.reading import Overdue, Reading, close_reading
from resilient_mw.transport.scope import Scope


class Behind:
    """A body whose next piece waits for somebody else, where it must not be cancelled."""

    def __init__(self) -> None:
        self.turn = asyncio.Event()
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self.turn.wait()
        yield b"late"

    async def aclose(self) -> None:
        self.closed = True


async def test_who_closes_does_not_wait_for_a_step_that_waits_for_somebody_else() -> None:
    body = Behind()
    reading = Reading(body, Scope(MONOTONIC, math.inf), bounded=True)
    with pytest.raises(Overdue):
        await reading.next(0.01)
    async with asyncio.timeout(2):
        await close_reading(reading)
    assert reading.busy
    assert not body.closed, "closed beside a step that is under way"
    body.turn.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert body.closed
