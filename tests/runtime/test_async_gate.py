"""The asyncio gate: waits, timers, cancellation at every step, other loops. In virtual time unless two loops meet."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from random import Random

import pytest

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.clocks import MONOTONIC
from tests.runtime.virtual_time import Bench


def _wait(bench: Bench, waiter: Waiter) -> AsyncWait:
    return AsyncWait(bench.guard, waiter, asyncio.get_running_loop())


async def _turn(count: int = 1) -> None:
    """Let everybody else take a step."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- waiting


def test_a_waiter_starts_at_the_instant_of_the_release() -> None:
    bench = Bench(limit=1, max_wait=8.0, wait_share=1.0)
    bench.admit()

    async def main() -> tuple[Decision | None, float]:
        waiter = bench.queue()
        asyncio.get_running_loop().call_later(3.0, bench.release)
        return await _wait(bench, waiter).wait(), bench.clock.now()

    decision, at = bench.run(main)
    assert decision is not None
    assert decision.admitted
    assert at == 3.0
    assert bench.guard.controller.slots.in_use == 1


def test_a_waiter_is_its_own_timer() -> None:
    bench = Bench(limit=1, max_wait=2.0)
    bench.admit()

    async def main() -> tuple[Decision | None, float]:
        return await _wait(bench, bench.queue()).wait(), bench.clock.now()

    decision, at = bench.run(main)
    assert decision is not None
    assert decision.reason is Reason.QUEUE_TIMEOUT
    assert decision.retry_after is not None
    assert at == 2.0


def test_a_grant_before_the_wait_begins_is_found() -> None:
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> Decision | None:
        wait = _wait(bench, bench.queue())
        bench.release()
        await _turn(3)
        return await wait.wait()

    decision = bench.run(main)
    assert decision is not None
    assert decision.admitted


@pytest.mark.parametrize("early", [2.0**-20, 0.0625, 0.5])
def test_a_timer_that_fires_early_settles_its_waiter_and_does_not_spin(
    early: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(limit=1, max_wait=2.0)
    bench.admit()
    ticks = bench.count_ticks(monkeypatch)

    async def main() -> tuple[Decision | None, float]:
        return await _wait(bench, bench.queue()).wait(), bench.clock.now()

    decision, at = bench.run(main, early=early)
    assert decision is not None
    assert decision.reason is Reason.QUEUE_TIMEOUT
    assert at == 2.0 - early
    assert ticks == [2.0]


def test_a_timer_that_fires_early_at_the_deadline_itself_says_504() -> None:
    bench = Bench(limit=1, max_wait=9.0, wait_share=1.0)
    bench.admit()

    async def main() -> Decision | None:
        return await _wait(bench, bench.queue(budget=2.0)).wait()

    decision = bench.run(main, early=0.0625)
    assert decision is not None
    assert decision.reason is Reason.EXPIRED_IN_QUEUE


def test_a_grant_whose_wake_up_comes_after_the_deadline_is_not_begun() -> None:
    """B31: the loop was blocked between the grant and the next step of the waiter."""
    bench = Bench(limit=1, max_wait=9.0, wait_share=1.0)
    bench.admit()

    async def main() -> tuple[Decision | None, Decision | None]:
        late = asyncio.ensure_future(_wait(bench, bench.queue(budget=2.0)).wait())
        following = asyncio.ensure_future(_wait(bench, bench.queue(budget=8.0)).wait())
        await _turn()
        bench.clock.move_to(1.0)
        bench.release()
        bench.clock.move_to(2.0)
        return await late, await following

    late, following = bench.run(main)
    assert late is not None
    assert late.reason is Reason.EXPIRED_IN_QUEUE
    assert following is not None
    assert following.admitted
    assert bench.guard.controller.slots.in_use == 1


def test_the_deadline_stays_the_same_instant_however_long_the_wait_was() -> None:
    """B31."""
    bench = Bench(limit=1, max_wait=9.0, wait_share=1.0)
    bench.admit()

    async def main() -> float:
        waiter = bench.queue(budget=1.0)
        asyncio.get_running_loop().call_later(0.75, bench.release)
        await _wait(bench, waiter).wait()
        return waiter.deadline_at - bench.clock.now()

    assert bench.run(main) == 0.25


# -- cancelled, at every point


def test_cancelled_while_queued() -> None:
    """B32."""
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> None:
        task = asyncio.ensure_future(_wait(bench, bench.queue()).wait())
        await _turn(2)
        assert bench.guard.controller.waiting == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert bench.guard.controller.waiting == 0
        assert bench.guard.controller.next_wakeup() is None

    bench.run(main)
    bench.release()
    assert bench.at_rest()
    assert bench.entry().left == 1


def test_cancelled_between_the_grant_and_the_wake_up() -> None:
    """B32: the slot was the waiter's already, and its task never saw it."""
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> Decision | None:
        waiter = bench.queue()
        task = asyncio.ensure_future(_wait(bench, waiter).wait())
        following = asyncio.ensure_future(_wait(bench, bench.queue()).wait())
        await _turn(2)
        bench.release()
        assert waiter.state is WaiterState.GRANTED
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await following

    decision = bench.run(main)
    assert decision is not None
    assert decision.admitted
    bench.release()
    assert bench.at_rest()


def test_cancelled_between_the_refusal_and_the_wake_up() -> None:
    bench = Bench(limit=1, max_wait=1.0)
    bench.admit()

    async def main() -> None:
        task = asyncio.ensure_future(_wait(bench, bench.queue()).wait())
        await _turn(2)
        bench.clock.move_to(1.0)
        bench.guard.tick(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.run(main)
    bench.release()
    assert bench.at_rest()
    assert (bench.entry().left, bench.refused()) == (0, {"queue_timeout": 1})


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("seed", range(4))
def test_a_cancellation_at_any_step_leaves_nothing_behind(step: int, seed: int) -> None:
    """B32: requests are cancelled in the queue, at the hand-over, at the start and in the middle of their work."""
    bench = Bench(limit=2, queue=6, max_wait=4.0)
    random = Random(seed)
    running, most = 0, 0

    async def request() -> None:
        nonlocal running, most
        now = bench.clock.now()
        decision: Decision | None = bench.guard.arrive(bench.entry(), now, now + 16.0)
        if decision is not None and decision.waiter is not None:
            decision = await _wait(bench, decision.waiter).wait()
        if decision is None or not decision.admitted:
            return
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(random.choice([0.0, 0.25, 0.5]))
        finally:
            running -= 1
            bench.release()

    async def main() -> None:
        tasks = []
        for _ in range(40):
            tasks.append(asyncio.ensure_future(request()))
            await _turn(random.randrange(3))
            if random.random() < 0.5:
                victim = random.choice(tasks)
                asyncio.get_running_loop().call_soon(_later, step, victim.cancel)
            await asyncio.sleep(random.choice([0.0, 0.125]))
        await asyncio.gather(*tasks, return_exceptions=True)

    bench.run(main)
    assert bench.at_rest()
    assert most <= 2
    for _ in range(2):
        bench.admit()


def _later(steps: int, call: Callable[[], object]) -> None:
    """Call after so many turns of the loop."""
    if steps:
        asyncio.get_running_loop().call_soon(_later, steps - 1, call)
    else:
        call()


def test_after_a_burst_of_disconnects_requests_are_admitted_again() -> None:
    """B32."""
    bench = Bench(limit=4, queue=300, max_wait=60.0, wait_share=1.0)
    for _ in range(4):
        bench.admit()

    async def main() -> None:
        tasks = [asyncio.ensure_future(_wait(bench, bench.queue()).wait()) for _ in range(300)]
        await _turn(2)
        for task in tasks:
            task.cancel()
        for _ in range(4):
            bench.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks)

    bench.run(main)
    assert bench.at_rest()
    for _ in range(4):
        bench.admit()


def test_a_waiter_that_is_thrown_away_gives_its_place_back() -> None:
    """A server that drops a task never cancels it: its coroutine is only closed."""
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> None:
        coroutine = _wait(bench, bench.queue()).wait()
        coroutine.send(None)
        assert bench.guard.controller.waiting == 1
        coroutine.close()
        bench.guard.snapshot()  # whoever uses the guard next does what the closing must not: take its lock
        assert bench.guard.controller.waiting == 0

    bench.run(main)


# -- abandoned


def test_a_caller_who_leaves_ends_the_wait() -> None:
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> tuple[Decision | None, float]:
        wait = _wait(bench, bench.queue())
        asyncio.get_running_loop().call_later(0.5, wait.abandon)
        asyncio.get_running_loop().call_later(0.75, bench.release)
        decision, at = await wait.wait(), bench.clock.now()
        await asyncio.sleep(0.5)
        return decision, at

    assert bench.run(main) == (None, 0.5)
    assert bench.guard.controller.waiting == 0
    assert bench.entry().left == 1


def test_a_caller_who_leaves_before_the_wait_begins() -> None:
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> Decision | None:
        wait = _wait(bench, bench.queue())
        wait.abandon()
        wait.abandon()
        return await wait.wait()

    assert bench.run(main) is None
    assert bench.entry().left == 1


def test_a_caller_who_leaves_after_the_grant_changes_nothing() -> None:
    """The slot is the request's; who asks for it has to give it back."""
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> Decision | None:
        wait = _wait(bench, bench.queue())
        task = asyncio.ensure_future(wait.wait())
        await _turn(2)
        bench.release()
        wait.abandon()
        decision = await task
        wait.abandon()
        return decision

    decision = bench.run(main)
    assert decision is not None
    assert decision.admitted
    assert bench.guard.controller.slots.in_use == 1
    assert bench.entry().left == 0


# -- at once


@pytest.mark.parametrize(("queue", "served"), [(0, 5), (20, 25)])
def test_five_hundred_arrivals_in_one_turn_of_the_loop(queue: int, served: int) -> None:
    """B37."""
    bench = Bench(limit=5, queue=queue, max_wait=60.0, wait_share=1.0)
    running, most = 0, 0

    async def request() -> bool:
        nonlocal running, most
        now = bench.clock.now()
        decision: Decision | None = bench.guard.arrive(bench.entry(), now, now + 60.0)
        await _turn()
        if decision is not None and decision.waiter is not None:
            decision = await _wait(bench, decision.waiter).wait()
            await _turn()
        if decision is None or not decision.admitted:
            return False
        running += 1
        most = max(most, running)
        await asyncio.sleep(1.0)
        running -= 1
        bench.release()
        return True

    async def main() -> list[bool]:
        return await asyncio.gather(*(request() for _ in range(500)))

    assert sum(bench.run(main)) == served
    assert most == 5
    assert bench.refused() == {"queue_full": 500 - served}
    assert bench.at_rest()


# -- several loops


class _OtherLoop:
    """A loop of its own in a thread of its own, in real time, on which one waiter waits."""

    def __init__(self, bench: Bench, waiter: Waiter) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self._ended = threading.Event()

        async def start() -> asyncio.Task[Decision | None]:
            task = self.loop.create_task(_wait(bench, waiter).wait())
            task.add_done_callback(lambda _: self._ended.set())
            await _turn(3)
            return task

        self.task = asyncio.run_coroutine_threadsafe(start(), self.loop).result(10)

    def decision(self) -> Decision | None:
        """Wait until the waiter has its decision. The loop is not touched: that would wake it up."""
        assert self._ended.wait(5), "the loop was not woken"
        return self.task.result()

    def close(self) -> None:
        """Stop the loop and close it, whatever still waits there."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


def test_two_loops_share_one_limit_and_wake_each_other() -> None:
    bench = Bench(MONOTONIC, limit=1, max_wait=30.0, wait_share=1.0)
    bench.admit()
    loops = [_OtherLoop(bench, bench.queue()) for _ in range(2)]
    try:
        for loop in loops:
            assert not loop.task.done()
            bench.release()
            decision = loop.decision()
            assert decision is not None
            assert decision.admitted
        bench.release()
    finally:
        for loop in loops:
            loop.close()
    assert bench.at_rest()


def test_a_caller_who_leaves_while_a_grant_from_another_thread_is_on_its_way() -> None:
    """The slot must not stay with somebody whom nobody tells about it."""
    bench = Bench(limit=1)
    bench.admit()

    async def main() -> Decision | None:
        wait = _wait(bench, bench.queue())
        task = asyncio.ensure_future(wait.wait())
        await _turn(2)
        releasing = threading.Thread(target=bench.release)
        releasing.start()
        releasing.join()  # the loop could not run meanwhile: the wake-up is pending
        wait.abandon()
        return await task

    assert bench.run(main) is None
    assert bench.at_rest()


def test_a_grant_to_a_closed_loop_goes_on_to_the_next_waiter() -> None:
    """Nobody will ever run that request."""
    bench = Bench(MONOTONIC, limit=1, max_wait=30.0, wait_share=1.0)
    bench.admit()
    gone, alive = bench.queue(), bench.queue()
    other = _OtherLoop(bench, gone)
    other.close()
    bench.release()
    assert alive.state is WaiterState.GRANTED
    assert gone.state is WaiterState.LEFT
    _forget(other.task)


def test_a_loop_that_was_closed_in_this_thread_does_not_break_the_release() -> None:
    """A test client that throws its loop away, and the next one under the same policy."""
    bench = Bench(MONOTONIC, limit=1, max_wait=30.0, wait_share=1.0)
    bench.admit()
    gone, alive = bench.queue(), bench.queue()
    loop = asyncio.new_event_loop()

    async def main() -> asyncio.Task[Decision | None]:
        task = loop.create_task(_wait(bench, gone).wait())
        await _turn(3)
        return task

    task = loop.run_until_complete(main())
    loop.close()
    bench.release()
    assert alive.state is WaiterState.GRANTED
    assert gone.state is WaiterState.LEFT
    _forget(task)


def _forget(task: asyncio.Task[Decision | None]) -> None:
    """Keep a task that can never run again from complaining about it."""
    task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
