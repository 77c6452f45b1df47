"""The same on uvloop: its futures are its own loop's, its timers move in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.runtime import test_supervise_anyio as on_anyio
from tests.runtime import test_supervise_asyncio as on_asyncio
from tests.runtime.small_shell import (
    ON_TIME,
    Held,
    Shell,
    expired,
    nothing_left,
    plain,
    run,
    run_held,
    serve,
    until,
)

uvloop = pytest.importorskip("uvloop")

SHAPES: list[tuple[Any, Callable[[Any], Awaitable[None]]]] = [
    *((on_asyncio.Log, shape) for shape in on_asyncio.SHAPES),
    *((on_anyio.Log, shape) for shape in on_anyio.SHAPES),
]


def on_uvloop(main: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(("log_class", "shape"), SHAPES, ids=[shape.__name__ for _, shape in SHAPES])
def test_every_part_is_cancelled_once_and_cleans_up(log_class: Any, shape: Any) -> None:
    async def main() -> None:
        log = log_class()
        async with nothing_left():
            outcome = await run(plain(lambda: shape(log)))
        expired(outcome)
        assert set(log.begun) <= set(log.clean)
        assert outcome.late == 0

    on_uvloop(main)


THREADS = [*on_asyncio.THREADS, *on_anyio.THREADS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", THREADS, ids=[f"{shape.__module__[-7:]}-{shape.__name__}" for shape in THREADS]
)
def test_b17_the_slot_is_held_until_the_thread_ends(shape: Any) -> None:
    async def main() -> None:
        held = Held()
        async with nothing_left():
            outcome = await run_held(plain(lambda: shape(held)), held)
        expired(outcome)
        assert outcome.freed_after(held.ended[0]) >= 0

    on_uvloop(main)


def test_no_deadline_is_early_and_none_much_too_late() -> None:
    async def main() -> None:
        shell = Shell(plain(lambda: asyncio.sleep(5)))
        budgets = [number * 0.0037 for number in range(1, 30)]
        async with nothing_left():
            outcomes = await asyncio.gather(*(serve(shell, deadline=budget) for budget in budgets))
            await until(lambda: shell.taken == 0)
        for budget, outcome in zip(budgets, outcomes, strict=True):
            assert outcome.status == 504
            assert budget <= (outcome.answered_at or 0) < budget + ON_TIME

    on_uvloop(main)
