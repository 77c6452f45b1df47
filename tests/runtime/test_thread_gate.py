"""The thread gate: waits, its own timer, interrupts, and many threads at once."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

import pytest

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter, WaiterState
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.thread_gate import wait_in_thread
from tests.runtime.virtual_time import Bench

DECIDING = ("admission/controller.py", "admission/slots.py", "admission/queue.py", "runtime/guard.py")


class _Worker(threading.Thread):
    """A thread that waits for its slot."""

    def __init__(self, guard: Guard, waiter: Waiter) -> None:
        super().__init__(daemon=True)
        self._guard = guard
        self._waiter = waiter
        self.decision: Decision | None = None
        self.start()

    def run(self) -> None:
        self.decision = wait_in_thread(self._guard, self._waiter)

    def ended(self) -> Decision:
        self.join(10)
        assert self.decision is not None, "it still waits"
        return self.decision


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@contextmanager
def _switching_often(share: float) -> Iterator[None]:
    """Have threads that are started meanwhile lose their turn inside the decisions, not only where Python likes to.

    The interpreter alone hardly ever switches between a check and what follows from it, so that code without a lock
    would pass. Here a thread sleeps for a moment before a share of the lines of the guard and the controller.
    """
    random = Random(1)

    def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.endswith(DECIDING):
            return None
        if event == "line" and random.random() < share:
            time.sleep(1e-6)
        return trace

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(None)
        sys.setswitchinterval(before)


# -- one waiter


def test_a_waiter_starts_when_a_slot_comes_free() -> None:
    bench = Bench(limit=1)
    bench.admit()
    worker = _Worker(bench.guard, waiter := bench.queue())
    _until(lambda: waiter.wake is not None)
    bench.release()
    assert worker.ended().admitted
    assert bench.guard.controller.slots.in_use == 1


def test_a_grant_before_the_wait_begins_is_found() -> None:
    bench = Bench(limit=1)
    bench.admit()
    waiter = bench.queue()
    bench.release()
    assert wait_in_thread(bench.guard, waiter).admitted


def test_a_waiter_is_its_own_timer() -> None:
    bench = Bench(MONOTONIC, limit=1, max_wait=0.05)
    bench.admit()
    began = time.monotonic()
    decision = wait_in_thread(bench.guard, bench.queue())
    assert decision.reason is Reason.QUEUE_TIMEOUT
    assert decision.retry_after is not None
    assert 0.04 < time.monotonic() - began < 1.0


def test_a_timer_that_fires_early_settles_its_waiter_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock gives up after 20 ms, and by the clock not a moment has passed."""
    bench = Bench(limit=1, max_wait=0.02)
    bench.admit()
    ticks = bench.count_ticks(monkeypatch)
    assert wait_in_thread(bench.guard, bench.queue()).reason is Reason.QUEUE_TIMEOUT
    assert ticks == [0.02]


def test_a_waiter_whose_time_was_over_before_it_could_wait_does_not_wait() -> None:
    bench = Bench(limit=1, max_wait=1000.0, wait_share=1.0)
    bench.admit()
    waiter = bench.queue(budget=50.0)
    bench.clock.move_to(60.0)
    assert wait_in_thread(bench.guard, waiter).reason is Reason.EXPIRED_IN_QUEUE


def test_a_grant_whose_thread_comes_after_the_deadline_is_not_begun() -> None:
    """B31."""
    bench = Bench(limit=1, max_wait=1000.0, wait_share=1.0)
    bench.admit()
    late, following = bench.queue(budget=5.0), bench.queue(budget=50.0)
    worker = _Worker(bench.guard, following)
    bench.release()
    assert late.state is WaiterState.GRANTED
    bench.clock.move_to(5.0)
    assert wait_in_thread(bench.guard, late).reason is Reason.EXPIRED_IN_QUEUE
    assert worker.ended().admitted


# -- interrupted


def test_an_interrupt_while_waiting_gives_the_place_back() -> None:
    """B32: KeyboardInterrupt is not an Exception."""
    bench = Bench(MONOTONIC, limit=1, max_wait=30.0, wait_share=1.0)
    bench.admit()
    waiter = bench.queue()

    def interrupt() -> None:
        _until(lambda: waiter.wake is not None)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        wait_in_thread(bench.guard, waiter)
    assert bench.guard.controller.waiting == 0
    bench.release()
    assert bench.at_rest()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_between_the_grant_and_the_wake_up_gives_the_slot_back(
    interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B32."""
    bench = Bench(limit=1)
    bench.admit()
    waiter, following = bench.queue(), bench.queue()
    attach = bench.guard.attach

    def attach_and_fail(waiter: Waiter, wake: Callable[[], None]) -> None:
        attach(waiter, wake)
        bench.release()
        raise interrupt

    monkeypatch.setattr(bench.guard, "attach", attach_and_fail)
    with pytest.raises(interrupt):
        wait_in_thread(bench.guard, waiter)
    assert waiter.state is WaiterState.LEFT
    assert following.state is WaiterState.GRANTED
    assert bench.guard.controller.slots.in_use == 1


# -- many threads


@pytest.mark.parametrize(("queue", "served"), [(0, 5), (20, 25), (59, 64)])
def test_sixty_four_threads_through_a_barrier(queue: int, served: int) -> None:
    """B37: the five that run hold their slots until everybody has been answered."""
    bench = Bench(MONOTONIC, limit=5, queue=queue, max_wait=60.0, wait_share=1.0)
    barrier, counting = threading.Barrier(64), threading.Lock()
    answered = threading.Semaphore(0)
    everybody = threading.Event()
    running, most, done = 0, 0, 0

    def request() -> None:
        nonlocal running, most, done
        barrier.wait()
        now = bench.clock.now()
        decision = bench.guard.arrive(bench.entry(), now, now + 60.0)
        answered.release()
        if decision.waiter is not None:
            decision = wait_in_thread(bench.guard, decision.waiter)
        if not decision.admitted:
            return
        with counting:
            running += 1
            most = max(most, running)
        everybody.wait(30)
        with counting:
            running -= 1
            done += 1
        bench.release()

    with _switching_often(0.3):
        threads = [threading.Thread(target=request, daemon=True) for _ in range(64)]
        for thread in threads:
            thread.start()
        for _ in range(64):
            assert answered.acquire(timeout=30)
        _until(lambda: running >= 5)
        everybody.set()
        for thread in threads:
            thread.join(30)
    assert most == 5
    assert done == served
    assert bench.refused() == ({"queue_full": 64 - served} if served < 64 else {})
    assert bench.at_rest()


def test_threads_that_wait_give_up_and_leave_in_a_storm_lose_no_slot() -> None:
    """B32, B37: short waits in real time, so that timers and grants meet."""
    bench = Bench(MONOTONIC, limit=3, queue=8, max_wait=0.004, wait_share=1.0)
    counting = threading.Lock()
    running, most = 0, 0

    def user(seed: int) -> None:
        nonlocal running, most
        random = Random(seed)
        for _ in range(60):
            now = bench.clock.now()
            priority = random.choice(["critical", "normal", "sheddable"])
            decision = bench.guard.arrive(bench.entry(priority), now, now + random.choice([0.002, 0.01, 1.0]))
            if decision.waiter is not None and random.random() < 0.2:
                bench.guard.leave(decision.waiter)
                continue
            if decision.waiter is not None:
                decision = wait_in_thread(bench.guard, decision.waiter)
            if decision.admitted:
                with counting:
                    running += 1
                    most = max(most, running)
                time.sleep(random.choice([0.0, 0.001, 0.003]))
                with counting:
                    running -= 1
                bench.release(priority)

    with _switching_often(0.05):
        threads = [threading.Thread(target=user, args=(seed,), daemon=True) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert most == 3
    assert bench.at_rest()
    for _ in range(3):
        bench.admit()


def test_threads_and_a_loop_share_one_limit() -> None:
    bench = Bench(MONOTONIC, limit=1, max_wait=30.0, wait_share=1.0)
    bench.admit()
    first, second = bench.queue(), bench.queue()
    worker = _Worker(bench.guard, first)

    async def main() -> Decision | None:
        task = asyncio.ensure_future(AsyncWait(bench.guard, second, asyncio.get_running_loop()).wait())
        await asyncio.sleep(0)
        await asyncio.to_thread(bench.release)  # to the thread
        assert (await asyncio.to_thread(worker.ended)).admitted
        await asyncio.to_thread(bench.release)  # to the coroutine, from another thread
        return await task

    decision = asyncio.run(main())
    assert decision is not None
    assert decision.admitted
    bench.release()
    assert bench.at_rest()
