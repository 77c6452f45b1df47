"""What is awaited in the caller's task: without a timer where it ends at once, and cancelled in time where it does not."""

from __future__ import annotations

import asyncio

import pytest

from resilient_mw.transport.steps import Late, within


def never() -> float | None:
    raise AssertionError("a timer was asked for, for what ended in its first step")


async def test_what_ends_at_once_gets_no_timer() -> None:
    async def answer() -> str:
        return "there"

    assert await within(answer(), never) == "there"


async def test_an_error_of_the_first_step_is_raised_as_it_is() -> None:
    async def fails() -> str:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await within(fails(), never)


async def test_what_waits_goes_on_in_the_same_task() -> None:
    async def waits() -> list[object]:
        seen: list[object] = [asyncio.current_task()]
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(asyncio.current_task())
        return seen

    assert await within(waits(), lambda: 5.0) == [asyncio.current_task()] * 4


async def test_what_lasts_too_long_is_cancelled() -> None:
    ended = []

    async def lasts() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            ended.append("cleaned up")
            raise

    with pytest.raises(Late) as caught:
        await within(lasts(), lambda: 0.01)
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert ended == ["cleaned up"]


async def test_its_own_timeout_is_no_end_of_the_time() -> None:
    async def own() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await within(own(), lambda: 5.0)


@pytest.mark.parametrize("swallowed", [False, True])
async def test_a_cancellation_reaches_what_waits_for_its_first_answer(swallowed: bool) -> None:
    async def waits() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not swallowed:
                raise
        return "went on"

    task = asyncio.ensure_future(within(waits(), lambda: None))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled() is not swallowed
    assert not swallowed or task.result() == "went on"
