"""Field cases of what a dependency remembers: its circuit, its retry budget, its route groups, and the rules of its user."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from resilient_mw.calls import Fallback
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Transition
from resilient_mw.runtime.context import current
from tests.field.calls import ONE_TRIAL, URL, async_wires, half_open, nothing_held, owner, prices
from tests.integrations.httpx_wires import KINDS, Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, head

# -- B65: a trial without a verdict, once more -----------------------------------------------------------------------------


@every_wire
def test_b65_a_trial_whose_answer_was_a_fallback_lets_the_next_one_in(wire: Wire) -> None:
    """The fallback hides the outcome from the caller, and nothing from the circuit."""
    outcomes: list[Any] = [wire.lib.PoolTimeout("none"), wire.lib.ReadError("lost"), 200]

    def answer(request: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return wire.lib.Response(outcome, content=b"fresh")

    fallback = Fallback(function=lambda error, left: wire.lib.Response(200, content=b"else"))
    dependency = prices(breaker=ONE_TRIAL, fallback=fallback)
    wire.open([dependency], wire.handler(answer))
    half_open(dependency)
    assert wire.get(URL).content == b"else"
    assert owner(dependency).snapshot().breaker == "half_open", "neutral: the place is back"
    nothing_held(dependency)
    assert wire.get(URL).content == b"else"
    assert owner(dependency).snapshot().breaker == "open", "a failure, whoever answered"
    assert wire.get(URL).content == b"else"
    assert len(outcomes) == 1, "an open circuit is not asked"
    half_open(dependency)
    assert wire.get(URL).content == b"fresh"
    assert owner(dependency).snapshot().breaker == "closed"


@every_wire
def test_b65_a_random_walk_never_ends_half_open_without_a_trial_under_way(wire: Wire) -> None:
    """Whatever the trials end with: whenever no call is under way, the next one at the end of the open time is let in."""
    random = Random(65)
    ways = ["200", "404", "429", "503", "lost", "pool", "budget", "stop", "left"]

    def answer(request: Any) -> Any:
        way = request.headers["x-way"]
        if way == "lost":
            raise wire.lib.ReadError("lost")
        if way == "pool":
            raise wire.lib.PoolTimeout("none")
        if way == "stop":
            raise LookupError
        if way == "budget":
            time.sleep(0.006)
            raise wire.lib.ReadTimeout("late")
        return wire.lib.Response(200 if way == "left" else int(way))

    breaker = BreakerPolicy(window=2, minimum_calls=2, open_for=0.01, open_jitter=0.0, trials=1)
    dependency = prices(breaker=breaker, reserve=0.0, smallest_budget=0.0)
    wire.open([dependency], wire.handler(answer))
    state = owner(dependency).state
    entered = 0
    for _ in range(150):
        way = random.choice(ways)
        closed_for = owner(dependency).closed_for()
        if closed_for is not None:
            assert closed_for <= 0.01, "nobody is under way, so only the open time may stand between"
            time.sleep(closed_for)
            assert owner(dependency).closed_for() is None
        entered += owner(dependency).snapshot().breaker == "half_open"
        left = 0.005 if way == "budget" else 10.0
        with suppress(wire.lib.HTTPError, LookupError, DeadlineExceeded), current().within(left):
            if way == "left":
                wire.close(wire.send("GET", URL, headers={"x-way": way}))
            else:
                wire.get(URL, headers={"x-way": way})
        nothing_held(dependency)
        assert state.breaker is not None
        assert (state.breaker.state.value == "half_open") <= (owner(dependency).closed_for() is None)
    assert entered > 10


# -- B68: listeners -------------------------------------------------------------------------------------------------------


@every_wire
def test_b68_a_listener_that_calls_through_the_circuit_it_hears_of(wire: Wire) -> None:
    """It is called outside the lock: a call, the figures and another thread's call all go through from within it."""
    heard: list[tuple[str, Any]] = []
    status = 503

    def listener(name: str, change: Transition) -> None:
        with ThreadPoolExecutor(1) as thread:
            seen = thread.submit(owner(dependency).snapshot).result(5).breaker
            with (
                Wire((wire.name, "sync"))
                .open([dependency], wire.handler(lambda request: wire.lib.Response(status)))
                .client as inside
            ):
                error = thread.submit(inside.get, URL).exception(5)
        heard.append((change.after, error and type(error)))
        assert seen == change.after

    dependency = prices(
        breaker=BreakerPolicy(
            window=2, minimum_calls=2, open_for=0.05, open_jitter=0.0, trials=1, listeners=[listener]
        )
    )
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(status)))
    began = time.monotonic()
    for _ in range(2):
        wire.get(URL)
    (opened,) = heard
    assert opened[0] == "open"
    assert issubclass(opened[1], CallRefused)
    status = 200
    time.sleep(0.06)
    assert wire.get(URL).status_code == 200
    assert owner(dependency).snapshot().breaker == "closed"
    assert [state for state, _ in heard][-1] == "closed"
    assert time.monotonic() - began < 4.0, "nobody waited for a lock that he held himself"
    nothing_held(dependency)


# -- B74: any number of hosts ------------------------------------------------------------------------------------------------


@every_wire
def test_b74_one_host_has_one_circuit_however_it_is_spelled(wire: Wire) -> None:
    dependency = Dependency(
        "hosts", ["http://*/*", "https://*/*"], retry=None, breaker=ONE_TRIAL, group_key="host"
    )
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(503)))
    wire.get("http://x1.example/")
    for spelling in (
        "http://X1.Example/other",
        "http://x1.example.:80/",
        "http://user:secret@x1.EXAMPLE:80/?q",
    ):
        with pytest.raises(CallRefused) as caught:
            wire.get(spelling)
        assert caught.value.reason is Reason.CIRCUIT_OPEN
    wire.get("http://b\u00fccher.example/")
    with pytest.raises(CallRefused):
        wire.get("http://xn--bcher-kva.example:80/")
    for other in ("https://x1.example/", "http://x1.example:8080/", "http://x11.example/"):
        assert wire.get(other).status_code == 503
    keyed = owner(dependency).snapshot().keyed
    assert keyed is not None
    assert (keyed.states, keyed.open, keyed.shared) == (5, 5, 0)


@every_wire
def test_b74_many_hosts_are_forgotten_but_for_those_that_are_open_or_in_use(wire: Wire) -> None:
    dead = {"dead0.example", "dead1.example"}
    breaker = BreakerPolicy(window=1, minimum_calls=1, open_for=300.0)
    dependency = Dependency("hosts", "http://*/*", retry=None, breaker=breaker, group_key="host")
    wire.open(
        [dependency],
        wire.handler(lambda request: wire.lib.Response(503 if request.url.host in dead else 200)),
    )
    for host in dead:
        wire.get(f"http://{host}/")
    held = wire.send("GET", "http://held.example/")
    for number in range(1200):
        wire.get(f"http://x{number}.example/")
    keyed = owner(dependency).snapshot().keyed
    assert keyed is not None
    assert (keyed.states, keyed.open, keyed.shared) == (1000, 2, 0)
    assert keyed.evicted == 1203 - 1000
    for host in dead:
        with pytest.raises(CallRefused):
            wire.get(f"http://{host}/")
    wire.close(held)
    nothing_held(dependency)


# -- B79: rules of the user ----------------------------------------------------------------------------------------------------


def everything(outcome: Any) -> bool:
    return True


def no_value_error(outcome: Any) -> bool:
    return not isinstance(outcome, ValueError)


@every_wire
@pytest.mark.parametrize("rule", [everything, no_value_error])
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, SystemExit, DeadlineExceeded])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_b79_what_ends_the_work_passes_at_its_first_occurrence_whatever_the_rule_says(
    wire: Wire, rule: Any, error: type[BaseException]
) -> None:
    asked, sent = 0, 0

    def fallback(failure: Exception, left: float) -> Any:
        nonlocal asked
        asked += 1
        return wire.lib.Response(200)

    def answer(request: Any) -> Any:
        nonlocal sent
        sent += 1
        raise error

    dependency = prices(
        retry=RetryPolicy(attempts=5, backoff_base=0.0, retry_if=rule),
        bulkhead=1,
        breaker=ONE_TRIAL,
        fallback=Fallback(function=fallback) if error is not DeadlineExceeded else None,
    )
    wire.open([dependency], wire.handler(answer))
    half_open(dependency)
    with pytest.raises(error):
        raised_by(wire)
    assert (sent, asked) == (1, 0)
    nothing_held(dependency)


def raised_by(wire: Wire) -> None:
    """Make a call and raise what came out of it; a loop would take some of that for an order to itself."""
    if not wire.is_async:
        wire.get(URL)
        return
    raised: list[BaseException] = []

    async def kept() -> None:
        try:
            await wire.client.get(URL)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is raised below
            raised.append(error)

    wire.run(kept())
    raise raised[0]


@async_wires
@pytest.mark.parametrize("where", ["attempt", "body", "back-off"])
def test_b79_a_timeout_from_outside_ends_a_call_that_repeats_everything(wire: Wire, where: str) -> None:
    def serve(connection: Connection) -> None:
        while connection.request() is not None:
            if where == "back-off":
                connection.answer(503)
                continue
            if where == "body":
                connection.send(head(200, 100) + b"x")
            connection.hang()
            return

    with RawServer(serve) as server:
        retry = RetryPolicy(
            attempts=9, backoff_base=5.0, backoff_cap=5.0, retry_if=everything, jitter="equal"
        )
        dependency = prices(f"{server.url}/*", retry=retry, timeout=9.0, total_timeout=60.0)
        wire.open([dependency])

        async def scenario() -> float:
            began = time.monotonic()
            with pytest.raises(TimeoutError) as caught:
                await asyncio.wait_for(wire.client.get(server.url + "/"), 0.1)
            assert not isinstance(caught.value, DeadlineExceeded)
            return time.monotonic() - began

        assert 0.09 < wire.run(scenario()) < 0.3
        assert len(server.requests) == 1
        nothing_held(dependency)


# -- B80: one budget ------------------------------------------------------------------------------------------------------------


def test_b80_all_clients_of_a_dependency_share_one_budget() -> None:
    """Sync and async, of both libraries: together they repeat a tenth of their calls, not a tenth each and a floor each."""
    sent, counting = 0, threading.Lock()
    dependency = prices(
        retry=RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=0.1, budget_per_second=0.5), breaker=None
    )

    def work(kind: tuple[str, str]) -> None:
        wire = Wire(kind)

        def answer(request: Any) -> Any:
            nonlocal sent
            with counting:
                sent += 1
            return wire.lib.Response(503)

        try:
            wire.open([dependency], wire.handler(answer))
            for _ in range(100):
                assert wire.get(URL).status_code == 503
        finally:
            wire.shut()

    with ThreadPoolExecutor(len(KINDS)) as threads:
        list(threads.map(work, KINDS))
    snapshot = owner(dependency).snapshot()
    assert snapshot.calls == 400
    assert sent == 400 + snapshot.retries
    assert 30 <= snapshot.retries <= 45, "a tenth of 400, and 5 for ten seconds"
    assert snapshot.retries_refused["budget"] >= 350
    nothing_held(dependency)


@every_wire
def test_b80_silence_leaves_the_floor_and_nothing_more(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 a second that are fine, five minutes of nothing, one a second that fail, then 100 a second that fail."""
    now, status, sent = 1000.0, 200, 0

    class Clock:
        def now(self) -> float:
            return now

    def answer(request: Any) -> Any:
        nonlocal sent
        sent += 1
        return wire.lib.Response(status)

    dependency = prices(retry=RetryPolicy(attempts=2, backoff_base=0.0), breaker=None, total_timeout=None)
    wire.open([dependency], wire.handler(answer))
    monkeypatch.setattr(owner(dependency), "clock", Clock())

    def phase(calls: int, every: float) -> int:
        nonlocal now, sent
        sent = 0
        for _ in range(calls):
            wire.get(URL)
            now += every
        return sent - calls

    assert phase(500, 0.01) == 0
    now += 300.0
    status = 503
    assert phase(30, 1.0) == 30, "the floor of one a second is there after the silence"
    retries = phase(1000, 0.01)
    assert 0.08 * 1000 <= retries <= 0.1 * 1000 + 1.0 * 20
    assert owner(dependency).snapshot().retries_refused["budget"] == 1000 - retries
