"""Carrying the context of a request to threads, executors, processes and job queues."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import math
import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw import CancelReason, DeadlineExceeded, RequestCancelled, RequestContext, budget, current
from resilient_mw.runtime.carry import CarryingExecutor, carry, export_context, imported_context
from resilient_mw.runtime.clocks import MONOTONIC, clock_name
from resilient_mw.runtime.context import CURRENT
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw.testing import ManualClock
from tests.runtime.carried_work import left_after, left_elsewhere, work_until_it_is_over

NOTE = contextvars.ContextVar("note", default="")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(int).result()  # A worker exists before the request: it has copied nothing from it.
        yield pool


@pytest.fixture
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(int).result()
        yield pool


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


# -- scripts and workers -----------------------------------------------------------------------------------------------


def test_a_script_opens_a_context_of_its_own() -> None:
    assert current().remaining() == math.inf
    with budget(2.0) as context:
        assert context is current()
        assert 1.9 < current().remaining() <= 2.0
        with budget(5.0):
            assert current().remaining() <= 2.0
    assert current().remaining() == math.inf
    assert export_context() == {}


# -- what carries by itself, and what does not -------------------------------------------------------------------------


async def test_to_thread_carries_and_run_in_executor_does_not(threads: ThreadPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    with budget(5.0):
        assert await asyncio.to_thread(lambda: current().remaining()) < math.inf
        assert await loop.run_in_executor(threads, lambda: current().remaining()) == math.inf
        assert await loop.run_in_executor(threads, carry(lambda: current().remaining())) <= 5.0
        assert await loop.run_in_executor(CarryingExecutor(threads), lambda: current().remaining()) <= 5.0


def test_a_carried_function_sees_the_very_request_in_any_thread() -> None:
    seen: list[RequestContext] = []
    with budget(5.0) as context:
        work = carry(lambda: seen.append(current()))
    in_thread(work)
    in_thread(lambda: seen.append(current()))
    assert seen[0] is context
    assert seen[1].remaining() == math.inf


def test_calls_of_one_carried_function_run_at_the_same_time_and_share_nothing() -> None:
    NOTE.set("outside")
    together = threading.Barrier(2, timeout=5)

    def work() -> str:
        before = NOTE.get()
        NOTE.set("inside")
        together.wait()
        return before

    with ThreadPoolExecutor(2) as pool, budget(5.0):
        carried = carry(work)
        assert [future.result(10) for future in (pool.submit(carried), pool.submit(carried))] == [
            "outside",
            "outside",
        ]
    assert NOTE.get() == "outside"


def test_carry_keeps_name_arguments_and_errors() -> None:
    def halve(number: int, *, by: int = 2) -> float:
        """Halve."""
        return number / by

    carried = carry(halve)
    assert (carried.__name__, carried.__doc__) == ("halve", "Halve.")
    assert carried(4, by=4) == 1
    with pytest.raises(ZeroDivisionError):
        carried(1, by=0)


def test_carry_says_what_it_cannot_carry() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        carry(numbers)
    with pytest.raises(TypeError, match="takes a function"):
        carry(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"executor of concurrent\.futures"):
        CarryingExecutor(3)  # type: ignore[arg-type]


def test_a_coroutine_function_is_carried_to_the_loop_of_another_thread() -> None:
    async def left() -> float:
        await asyncio.sleep(0)
        return current().remaining()

    got: list[float] = []
    with budget(5.0):
        carried = carry(left)
    in_thread(lambda: got.append(asyncio.run(carried())))
    assert 0 < got[0] <= 5.0


async def test_a_cancellation_reaches_a_carried_coroutine() -> None:
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    task = asyncio.create_task(carry(wait)())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_a_request_that_is_cancelled_is_over_in_carried_code(threads: ThreadPoolExecutor) -> None:
    context = ThreadContext(math.inf, MONOTONIC)
    token = CURRENT.set(context)
    running = threading.Event()

    def work() -> None:
        running.set()
        for _ in range(1000):
            current().check()
            time.sleep(0.005)

    try:
        future = CarryingExecutor(threads).submit(work)
    finally:
        CURRENT.reset(token)
    assert running.wait(5)
    context.cancel(CancelReason.CLIENT_DISCONNECT)
    with pytest.raises(RequestCancelled) as caught:
        future.result(4)
    assert caught.value.reason is CancelReason.CLIENT_DISCONNECT


@pytest.mark.parametrize("begin_late", [False, True])
def test_work_that_expires_in_the_queue_is_not_begun(begin_late: bool) -> None:
    begun: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        release = threading.Event()
        pool.submit(release.wait, 10)
        with budget(0.02):
            future = CarryingExecutor(pool, begin_late=begin_late).submit(
                lambda: begun.append(current().remaining())
            )
        time.sleep(0.03)
        release.set()
        if begin_late:
            future.result(5)
        else:
            with pytest.raises(DeadlineExceeded):
                future.result(5)
    assert begun == ([0.0] if begin_late else [])


@pytest.mark.parametrize("hold", [False, True])
def test_a_request_holds_its_slot_for_submitted_work_where_told_to(hold: bool) -> None:
    context = ThreadContext(math.inf, MONOTONIC)
    token = CURRENT.set(context)
    try:
        with CarryingExecutor(ThreadPoolExecutor(1), hold=hold) as pool:
            future = pool.submit(int)
    finally:
        CURRENT.reset(token)
    assert context.held == ([future] if hold else None)


def test_an_executor_maps_and_shuts_the_inner_one_down() -> None:
    inner = ThreadPoolExecutor(2)
    with CarryingExecutor(inner) as pool, budget(5.0):
        assert all(left <= 5.0 for left in pool.map(lambda _: current().remaining(), range(3)))
    with pytest.raises(RuntimeError):
        inner.submit(int)


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_pool_gets_what_is_left(processes: ProcessPoolExecutor) -> None:
    pool = CarryingExecutor(processes)
    with budget(20.0):
        child, left = pool.submit(left_elsewhere).result(10)
        assert child != multiprocessing.current_process().pid
        assert 0 < left <= 20.0
        assert [left for _, left in pool.map(left_elsewhere, range(2))] != [math.inf, math.inf]
    assert pool.submit(left_elsewhere).result(10)[1] == math.inf
    with budget(0.1):
        assert pool.submit(work_until_it_is_over, 5.0).result(10) == "deadline"


def test_a_queue_before_a_process_is_charged(processes: ProcessPoolExecutor) -> None:
    with budget(20.0):
        ahead: Future[float] = processes.submit(left_after, 0.3)
        left = processes.submit(carry(left_elsewhere)).result(10)[1]
    assert ahead.result(10) == math.inf
    assert left <= 19.75 if clock_name(MONOTONIC) else left <= 20.0


def test_work_for_a_process_that_is_too_late_is_not_begun(processes: ProcessPoolExecutor) -> None:
    with budget(0.0), pytest.raises(DeadlineExceeded):
        CarryingExecutor(processes).submit(left_elsewhere).result(10)


def test_pickling_reads_the_request_it_was_bound_to() -> None:
    unbound = carry(left_elsewhere)
    with budget(5.0):
        bound = carry(left_elsewhere)
        again = pickle.loads(pickle.dumps(unbound))
    assert again()[1] == math.inf
    assert 0 < pickle.loads(pickle.dumps(bound))()[1] <= 5.0


# -- in writing --------------------------------------------------------------------------------------------------------


def test_a_job_takes_what_is_left_with_it() -> None:
    with budget(5.0):
        exported = export_context()
    assert all(isinstance(text, str) for pair in exported.items() for text in pair)
    assert 4900 < int(exported["x-request-timeout-ms"]) <= 5000
    with imported_context(exported) as context:
        assert current() is context
        assert 4.8 < current().remaining() <= 5.0
    assert current().remaining() == math.inf


def test_time_in_the_queue_is_charged_by_the_clock_that_both_read() -> None:
    with budget(5.0):
        exported = export_context()
    if clock_name(MONOTONIC) is None:
        pytest.skip("this system does not say which clock it reads")
    time.sleep(0.1)
    with imported_context(exported):
        assert current().remaining() <= 4.91


def test_another_machines_clock_is_not_compared() -> None:
    exported = {"X-Request-Timeout-Ms": "5000", "X-Request-Timeout-Written": "0123456789ab 0"}
    with imported_context(exported):
        assert 4.9 < current().remaining() <= 5.0
    with imported_context(exported, waited=2.0):
        assert 2.9 < current().remaining() <= 3.0
    with imported_context(exported, waited=60.0), pytest.raises(DeadlineExceeded):
        current().check()


def test_an_instant_on_a_clock_of_another_kind_is_not_written() -> None:
    clock = ManualClock()
    token = CURRENT.set(ThreadContext(clock.now() + 1.5, clock))
    try:
        assert export_context() == {"x-request-timeout-ms": "1500"}
        clock.advance(2)
        assert export_context() == {"x-request-timeout-ms": "0"}
    finally:
        CURRENT.reset(token)


def test_a_cancelled_request_has_nothing_left_to_give() -> None:
    context = ThreadContext(math.inf, MONOTONIC)
    context.reason = CancelReason.CLIENT_DISCONNECT
    token = CURRENT.set(context)
    try:
        assert export_context()["x-request-timeout-ms"] == "0"
    finally:
        CURRENT.reset(token)


@given(
    st.dictionaries(
        st.sampled_from(["x-request-timeout-ms", "x-request-timeout-written"]),
        st.text("0123456789 abc-é²", max_size=20)
        | st.integers(0, 10**12).map(str)
        | st.none()
        | st.integers(),
    ),
    st.floats(0.5, 10),
)
def test_what_comes_from_outside_never_lengthens_and_never_breaks(
    exported: dict[str, str], around: float
) -> None:
    with budget(around):
        before = current().remaining()
        with imported_context(exported):
            assert 0 <= current().remaining() <= before


def test_the_wait_must_be_a_number() -> None:
    with pytest.raises(ValueError, match="waited"):
        imported_context({}, waited=-1)


async def test_an_async_worker_is_cancelled_when_the_job_is_over() -> None:
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        async with imported_context({"x-request-timeout-ms": "50"}):
            await asyncio.sleep(10)
    assert time.monotonic() - begun < 2


async def test_an_async_worker_without_a_deadline_is_not_cancelled() -> None:
    async with imported_context({}):
        await asyncio.sleep(0)
        assert current().remaining() == math.inf


def test_a_forked_child_sees_the_deadline_of_its_parent() -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("no fork here")
    receive, send = multiprocessing.get_context("fork").Pipe(duplex=False)
    with budget(20.0):
        child = multiprocessing.get_context("fork").Process(target=lambda: send.send(current().remaining()))
        child.start()
    assert receive.poll(10)
    assert 0 < receive.recv() <= 20.0
    child.join(10)


def test_a_clock_names_what_it_counts() -> None:
    name = clock_name(MONOTONIC)
    assert name is None or (len(name) == 12 and name == clock_name(MONOTONIC))
    assert clock_name(ManualClock()) is None
    assert concurrent.futures.Executor in CarryingExecutor.__mro__
