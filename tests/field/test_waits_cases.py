"""Field cases of waiting for a slot of the bulkhead, through the transports: nothing is lost, nobody waits for the dead."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx
import pytest

from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.context import current
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw_integrations.httpx import AsyncResilientTransport
from tests.field.calls import URL, nothing_held, prices, sync_wires
from tests.integrations.httpx_wires import Wire, every_wire
from tests.runtime.virtual_time import VirtualClock, VirtualLoop


def waiting(dependency: Dependency) -> int:
    line = owner_of(dependency).state.line
    assert line is not None
    return line.waiting


def in_use(dependency: Dependency) -> int:
    return owner_of(dependency).state.in_use


# -- B76: a slot that is granted in the instant of the end -------------------------------------------------------------------


class Races:
    """Races for the one slot of a dependency, in virtual time: all that ends a wait happens in one instant, in any order."""

    WAIT = 1.0

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.dependency = prices(
            bulkhead=BulkheadPolicy(limit=1, max_wait=self.WAIT, queue=2),
            breaker=None,
            total_timeout=None,
            timeout=None,
        )
        self.owner = DependencyOwner(self.dependency, self.clock)
        self.dependency.owner.append(self.owner)
        self.ends: Counter[str] = Counter()
        self.steps = Random(76)

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self.clock)) as runner:
            runner.run(main())

    async def one(self, transport: AsyncResilientTransport, order: tuple[str, ...], hops: int) -> None:
        """Hold the slot, let a task wait for it, and let its wait end in every way of `order` in the same instant."""
        loop = asyncio.get_running_loop()
        holder = Call(self.owner.state, "GET")
        self.owner.begin(holder)
        end = self.clock.now() + self.WAIT
        task: asyncio.Task[httpx.Response]
        heard: list[bool] = []

        def later(act: Callable[[], object], left: int) -> None:
            # The instant has several turns of the loop: each of them is tried.
            act() if left == 0 else loop.call_soon(later, act, left - 1)

        ways = {
            "grant": lambda: self.owner.cancel(holder),
            "cancel": lambda: heard.append(task.cancel()),
        }
        for way in order:
            if way == "join":
                task = loop.create_task(transport.handle_async_request(httpx.Request("GET", URL)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert waiting(self.dependency) == 1
            else:
                loop.call_at(end, later, ways[way], self.steps.randrange(hops))
        await asyncio.wait((task,))
        if "grant" not in order:
            self.owner.cancel(holder)
        if task.cancelled():
            self.ends["cancelled"] += 1
            assert heard == [True]
        elif (error := task.exception()) is not None:
            assert isinstance(error, CallRefused)
            assert error.reason is Reason.BULKHEAD_FULL
            self.ends["refused"] += 1
            assert heard != [True], "a cancellation was swallowed"
        else:
            self.ends["sent"] += 1
            await task.result().aclose()
            assert heard != [True], "a cancellation was swallowed"
        for _ in range(hops):
            await asyncio.sleep(0)
        assert (in_use(self.dependency), waiting(self.dependency)) == (0, 0), f"lost after {order}"


class NoContent(httpx.AsyncBaseTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(204)


ORDERS = [
    order
    for ways in (("join", "grant"), ("join", "cancel"), ("join", "grant", "cancel"))
    for order in itertools.permutations(ways)
]


def test_b76_ten_thousand_races_of_a_grant_a_timeout_and_a_cancellation_lose_no_slot() -> None:
    races = Races()

    async def main() -> None:
        transport = AsyncResilientTransport([races.dependency], NoContent())
        for number in range(10_000):
            order = ORDERS[number % len(ORDERS)]
            # What is to end it before it joins is set to the same instant, and comes first then.
            if order[0] == "cancel" or (order[0] != "join" and "cancel" in order[:2]):
                order = ("join", *(way for way in order if way != "join"))
            await races.one(transport, order, hops=3)

    races.run(main)
    assert races.ends.total() == 10_000
    assert min(races.ends[end] for end in ("sent", "refused", "cancelled")) > 500, races.ends
    nothing_held(races.dependency)


@sync_wires
def test_b76_threads_whose_wait_ends_as_the_slot_comes_back_lose_none(wire: Wire) -> None:
    inside, most, counting = 0, 0, threading.Lock()

    def answer(request: Any) -> Any:
        nonlocal inside, most
        with counting:
            inside += 1
            most = max(most, inside)
        time.sleep(0.0005)
        with counting:
            inside -= 1
        return wire.lib.Response(200)

    # What a wait may take is what an attempt takes, so that many end while their slot comes back.
    dependency = prices(bulkhead=BulkheadPolicy(limit=1, max_wait=0.0015, queue=8), breaker=None)
    wire.open([dependency], wire.handler(answer))
    ends: Counter[str] = Counter()

    def work(number: int) -> None:
        for _ in range(100):
            try:
                wire.client.get(URL)
                end = "sent"
            except CallRefused as error:
                end = str(error.reason)
            with counting:
                ends[end] += 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert most == 1
    assert set(ends) == {"sent", "bulkhead_full"}
    assert ends["sent"] > 20
    assert ends["bulkhead_full"] > 20
    assert waiting(dependency) == 0
    nothing_held(dependency)
    assert wire.get(URL).status_code == 200


# -- B77: those who left ---------------------------------------------------------------------------------------------------


def test_b77_of_five_hundred_waiters_four_hundred_leave_and_the_others_are_served_as_if_they_were_alone() -> (
    None
):
    """Five at once and half a second each: ten a second. Those who left used nothing up and kept no place."""
    clock, taken = VirtualClock(), 0.5
    dependency = prices(
        bulkhead=BulkheadPolicy(limit=5, max_wait=60.0, queue=500),
        breaker=None,
        timeout=None,
        total_timeout=3.0,
    )
    owner = DependencyOwner(dependency, clock)
    dependency.owner.append(owner)
    begun: list[float] = []
    longest = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        begun.append(clock.now())
        await asyncio.sleep(taken)
        return httpx.Response(204)

    async def main() -> None:
        nonlocal longest
        transport = AsyncResilientTransport([dependency], httpx.MockTransport(answer))
        async with httpx.AsyncClient(transport=transport) as client:
            tasks = [asyncio.ensure_future(client.get(URL)) for _ in range(505)]
            await asyncio.sleep(0.2)
            longest = waiting(dependency)
            with pytest.raises(CallRefused) as full:
                await client.get(URL)
            assert full.value.reason is Reason.BULKHEAD_FULL
            leavers = [task for number, task in enumerate(tasks[5:]) if number % 5]
            for task in leavers:
                task.cancel()
            await asyncio.sleep(0.0)
            # Their places are free at once.
            assert waiting(dependency) == 100
            line = owner.state.line
            assert line is not None
            assert len(line._line) <= 1000
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            patients = [end for end in ends if not isinstance(end, asyncio.CancelledError)]
            served = [end for end in patients if isinstance(end, httpx.Response)]
            late = [end for end in patients if isinstance(end, DeadlineExceeded)]
            assert len(served) + len(late) == len(patients) == 105
            assert all(getattr(error, "phase", None) == "bulkhead" for error in late)
            # 3 s are 5 at the beginning and 5 more each half second; what begins in the last half second is too late.
            assert 25 <= len(served) <= 30

    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        runner.run(main())
    assert longest == 500
    alive = [at for at in begun if at >= 0.5]
    for second in (0.5, 1.0, 1.5):
        assert 9 <= sum(second <= at < second + 1.0 for at in alive) <= 11, (
            "ten a second, all of them for the living"
        )
    assert waiting(dependency) == 0
    nothing_held(dependency)


@every_wire
def test_b77_who_cannot_be_served_in_time_is_told_when_his_time_is_over_and_not_later(wire: Wire) -> None:
    dependency = prices(bulkhead=BulkheadPolicy(limit=1, max_wait=5.0), breaker=None, reserve=0.8)
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(200)))
    owner = owner_of(dependency)
    assert owner.state.take_slot()
    began = time.monotonic()
    with current().within(1.0), pytest.raises(DeadlineExceeded) as caught:
        wire.get(URL)
    assert time.monotonic() - began < 0.9, "the reserve is the caller's"
    assert getattr(caught.value, "phase", None) == "bulkhead"
    began = time.monotonic()
    with current().within(0.7), pytest.raises(CallRefused) as refused:
        wire.get(URL)
    assert time.monotonic() - began < 0.6, "with less than the reserve there is nothing to wait for"
    assert refused.value.reason is Reason.INSUFFICIENT_BUDGET
    owner.state.give_slot()
    assert waiting(dependency) == 0
    nothing_held(dependency)


def test_b77_what_waiters_need_does_not_grow_with_time() -> None:
    """A minute of waiters that come and go, twenty at a time: the line and the memory are as after the first seconds."""
    clock = VirtualClock()
    dependency = prices(
        bulkhead=BulkheadPolicy(limit=1, max_wait=60.0, queue=25),
        breaker=None,
        timeout=None,
        total_timeout=None,
    )
    owner = DependencyOwner(dependency, clock)
    dependency.owner.append(owner)
    sizes: list[int] = []

    async def main() -> None:
        transport = AsyncResilientTransport(
            [dependency], httpx.MockTransport(lambda request: httpx.Response(204))
        )
        assert owner.state.take_slot()
        for second in range(60):
            tasks = [
                asyncio.ensure_future(
                    transport.handle_async_request(httpx.Request("POST", URL, content=b"x" * 5000))
                )
                for _ in range(20)
            ]
            await asyncio.sleep(1.0)
            assert waiting(dependency) == 20
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert waiting(dependency) == 0
            assert owner.state.line is not None
            assert len(owner.state.line._line) <= 50, "those who have left are forgotten"
            del task, tasks
            if second in {10, 59}:
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
        owner.state.give_slot()

    tracemalloc.start()
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
            runner.run(main())
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 100_000, "49 rounds of 20 bodies would be 5 MB"
    nothing_held(dependency)
