"""A circuit breaker of its own: every kind of function, every way out, many threads, and no lock over anything of others."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from resilient_mw import BreakerPolicy
from resilient_mw.calls.breaker import BreakerState
from resilient_mw.core import ports
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime.circuit import CircuitBreaker
from resilient_mw.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def _circuit(clock: ManualClock | None = None, classify: Any = None, **policy: Any) -> CircuitBreaker:
    fields = {"minimum_calls": 2, "window": 10, "open_jitter": 0.0, "trials": 1, "slow_after": 60.0, **policy}
    return CircuitBreaker("prices", BreakerPolicy(**fields), classify=classify, clock=clock or ManualClock())


def _fail(error: BaseException | None = None) -> None:
    raise error or OSError("it does not answer")


def _break(circuit: CircuitBreaker) -> None:
    for _ in range(2):
        with pytest.raises(OSError, match="answer"):
            circuit.call(_fail)
    assert circuit.state is OPEN


@pytest.mark.parametrize("slow_after", [None, 60.0])
@pytest.mark.parametrize("window_seconds", [None, 10.0])
def test_every_kind_of_function_is_guarded(slow_after: float | None, window_seconds: float | None) -> None:
    circuit = _circuit(slow_after=slow_after, window_seconds=window_seconds)

    @circuit
    def plain(value: int) -> int:
        """Say it."""
        return value

    @circuit
    async def later(value: int) -> int:
        return value

    @circuit
    def several(count: int) -> Iterator[int]:
        yield from range(count)

    @circuit
    async def several_later(count: int) -> AsyncIterator[int]:
        for each in range(count):
            yield each

    async def collect() -> list[int]:
        return [each async for each in several_later(3)]

    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Say it."
    for _ in range(3):
        assert plain(1) == 1
        assert asyncio.run(later(2)) == 2
        assert list(several(3)) == [0, 1, 2]
        assert asyncio.run(collect()) == [0, 1, 2]
        assert circuit.call(plain, 4) == 4
        assert asyncio.run(circuit.acall(later, 5)) == 5
    assert circuit.snapshot().attempts["ok"] == 24
    circuit.open()
    for refused in (
        lambda: plain(1), lambda: asyncio.run(later(1)), lambda: list(several(1)), lambda: asyncio.run(collect()),
        lambda: circuit.call(plain, 1), lambda: asyncio.run(circuit.acall(later, 1)),
    ):  # fmt: skip
        with pytest.raises(CallRefused, match="open"):
            refused()
    assert circuit.snapshot().refused == {"circuit_open": 6}


def test_a_refusal_says_why_and_how_long() -> None:
    clock = ManualClock()
    circuit = _circuit(clock, open_for=5.0)
    _break(circuit)
    clock.advance(2.0)
    with pytest.raises(CallRefused) as refusal:
        circuit.call(print)
    assert refusal.value.reason is Reason.CIRCUIT_OPEN
    assert refusal.value.retry_in == 3.0
    assert refusal.value.dependency == "prices"


def test_a_failure_in_the_middle_of_a_generator_counts() -> None:
    circuit = _circuit()

    @circuit
    def rows() -> Iterator[int]:
        yield 1
        raise OSError("cut off")

    @circuit
    async def rows_later() -> AsyncIterator[int]:
        yield 1
        raise OSError("cut off")

    async def read() -> None:
        async for _ in rows_later():
            pass

    with pytest.raises(OSError, match="cut off"):
        list(rows())
    with pytest.raises(OSError, match="cut off"):
        asyncio.run(read())
    assert circuit.state is OPEN


async def test_what_is_sent_and_thrown_reaches_an_async_generator() -> None:
    circuit = _circuit()
    got: list[object] = []

    @circuit
    async def echo() -> Any:
        while True:
            try:
                got.append((yield len(got)))
            except ValueError as error:
                got.append(error)

    generator = echo()
    assert await generator.__anext__() == 0
    assert await generator.asend("a") == 1
    error = ValueError()
    assert await generator.athrow(error) == 2
    assert got == ["a", error]
    await generator.aclose()
    assert circuit.snapshot().attempts["cancelled"] == 1


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        SystemExit(),
        DeadlineExceeded("late"),
        KeyError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_b65_what_says_nothing_is_neutral_and_never_wedges(error: BaseException) -> None:
    clock = ManualClock()
    circuit = _circuit(clock, exclude=[KeyError])
    for _ in range(20):
        with pytest.raises(type(error)):
            circuit.call(_fail, error)
    assert circuit.state is CLOSED
    _break(circuit)
    clock.advance(5.0)
    for _ in range(3):
        with pytest.raises(type(error)):
            circuit.call(_fail, error)
        assert circuit.state is HALF_OPEN
    circuit.call(int)
    assert circuit.state is CLOSED


def test_the_user_says_what_a_failure_is() -> None:
    circuit = _circuit(classify=lambda error: False if isinstance(error, FileNotFoundError) else None)
    for _ in range(10):
        with pytest.raises(FileNotFoundError):
            circuit.call(_fail, FileNotFoundError())
    assert circuit.snapshot().attempts["ok"] == 10

    def broken(error: BaseException) -> bool:
        raise RuntimeError("in the judge")

    circuit = _circuit(classify=broken)
    for _ in range(10):
        with pytest.raises(OSError, match="answer"):
            circuit.call(_fail)
    assert circuit.machine.failed_listeners == 10
    assert circuit.state is CLOSED


async def test_blocks_of_tasks_and_inside_each_other_know_their_own_permits() -> None:
    circuit = _circuit(minimum_calls=3)

    async def one(seconds: float, error: BaseException | None) -> None:
        async with circuit:
            await asyncio.sleep(seconds)
            with circuit:
                await asyncio.sleep(seconds)
            if error is not None:
                raise error

    ends = await asyncio.gather(
        one(0.03, None), one(0.01, OSError()), one(0.02, None), return_exceptions=True
    )
    assert [type(each) for each in ends] == [type(None), OSError, type(None)]
    snapshot = circuit.snapshot()
    assert (snapshot.attempts["ok"], snapshot.attempts["error"], snapshot.in_use) == (5, 1, 0)


def test_a_call_that_hangs_opens_it_while_it_hangs() -> None:
    clock = ManualClock()
    circuit = _circuit(clock, slow_after=1.0)
    leave, entered = threading.Event(), threading.Barrier(3)

    @circuit
    def hang() -> None:
        entered.wait()
        leave.wait(5)

    threads = [threading.Thread(target=hang) for _ in range(2)]
    for thread in threads:
        thread.start()
    entered.wait()
    clock.advance(1.0)
    with pytest.raises(CallRefused):
        hang()
    assert circuit.state is OPEN
    leave.set()
    for thread in threads:
        thread.join()
    assert circuit.state is OPEN


def test_b68_fifty_threads_are_inside_at_once() -> None:
    circuit = CircuitBreaker("prices", BreakerPolicy(slow_after=30.0, window_seconds=10.0))
    inside = threading.Barrier(50)

    @circuit
    def call() -> None:
        inside.wait(10)
        time.sleep(0.2)

    begun = time.monotonic()
    with ThreadPoolExecutor(50) as pool:
        for each in [pool.submit(call) for _ in range(50)]:
            each.result()
    assert time.monotonic() - begun < 3.0
    assert circuit.snapshot().attempts["ok"] == 50


def test_b67_one_trial_of_a_crowd() -> None:
    clock = ManualClock()
    circuit = _circuit(clock, trials=3)
    _break(circuit)
    clock.advance(5.0)
    leave = threading.Event()
    entered = []

    def call() -> bool:
        try:
            with circuit:
                entered.append(1)
                leave.wait(10)
        except CallRefused:
            return False
        return True

    with ThreadPoolExecutor(60) as pool:
        calls = [pool.submit(call) for _ in range(60)]
        while sum(each.done() for each in calls) < 57:
            time.sleep(0.001)
        leave.set()
        assert sum(each.result() for each in calls) == 3
    assert len(entered) == 3
    assert circuit.state is CLOSED


def test_no_success_is_lost_or_counted_twice_between_threads() -> None:
    circuit = _circuit(slow_after=30.0, window_seconds=10.0, minimum_calls=1000, failure_ratio=1.0)

    @circuit
    def call(number: int) -> None:
        if number % 50 == 0:
            raise OSError

    def many() -> None:
        for number in range(2000):
            try:
                call(number)
            except OSError:
                pass

    threads = [threading.Thread(target=many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = circuit.snapshot()
    assert snapshot.attempts == {"ok": 8 * 1960, "error": 8 * 40}
    assert len(circuit.machine._outcomes) == 16_000
    assert snapshot.in_use == 0


# -- listeners, hands, shadow


def test_a_listener_may_call_through_the_breaker_and_a_broken_one_changes_nothing() -> None:
    heard: list[tuple[str, str]] = []

    def listener(name: str, change: Transition) -> None:
        heard.append((change.before, change.after))
        with pytest.raises(CallRefused):
            circuit.call(print)
        circuit.snapshot()

    def broken(name: str, change: Transition) -> None:
        raise RuntimeError("in the listener")

    circuit = _circuit(listeners=[broken, listener])
    _break(circuit)
    assert heard == [("closed", "open")]
    assert circuit.machine.failed_listeners == 1


def test_a_finalizer_that_ends_a_call_while_the_lock_is_held_waits_for_nothing() -> None:
    circuit = _circuit()

    @circuit
    def rows() -> Iterator[int]:
        yield 1
        yield 2

    begun = rows()
    next(begun)

    def verb(now: float) -> None:
        nonlocal begun
        del begun
        gc.collect()
        circuit.call(int)

    done = threading.Thread(target=circuit._decide, args=(verb,), daemon=True)
    done.start()
    done.join(5)
    assert not done.is_alive(), "it waits for itself"
    assert circuit.snapshot().attempts["cancelled"] == 1


def test_by_hand() -> None:
    circuit = _circuit()
    circuit.open()
    with pytest.raises(CallRefused):
        circuit.call(int)
    circuit.close()
    for _ in range(5):
        with pytest.raises(OSError, match="answer"):
            circuit.call(_fail)
    circuit.reset()
    _break(circuit)


def test_what_is_done_by_hand_is_told_at_once() -> None:
    heard: list[str] = []
    circuit = _circuit(listeners=[lambda name, change: heard.append(change.after)])
    circuit.open()
    assert heard == ["open"]
    circuit.reset()
    assert heard == ["open", "closed"]


def test_in_shadow_mode_nothing_is_refused() -> None:
    circuit = _circuit(shadow=True)
    _break(circuit)
    assert circuit.call(int) == 0
    assert circuit.machine.would_refuse == 1


def test_its_name_and_state_are_seen_where_dependencies_are() -> None:
    circuit = CircuitBreaker("only-here")
    found = [each for each in ports.dependency_snapshots() if each.dependency == "only-here"]
    assert [each.breaker for each in found] == ["closed"]
    circuit.forked()
    assert circuit.call(int) == 0


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="CircuitBreaker.name"):
        CircuitBreaker("")
    with pytest.raises(ValueError, match="CircuitBreaker.policy"):
        CircuitBreaker("x", 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="CircuitBreaker.classify"):
        CircuitBreaker("x", classify=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(("said", "outcome"), [("yes", "error"), ([], "ok"), (1, "error")])
def test_a_classifier_that_answers_with_something_else_hides_no_error(said: object, outcome: str) -> None:
    circuit = _circuit(classify=lambda _error: said)
    with pytest.raises(OSError, match="answer"):
        circuit.call(_fail)
    assert circuit.snapshot().attempts[outcome] == 1
