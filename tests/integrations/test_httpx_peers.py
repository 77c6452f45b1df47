"""Calls to real servers with our middleware in them: uvicorn, and hypercorn by HTTP/2. Both halves, over a real wire."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import CallRefused, DeadlineExceeded, ResilienceWarning
from resilient_mw.core.rejection import REFUSAL_HEADER, Reason
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import KINDS, Wire, every_wire, timed

ROOT = Path(__file__).resolve().parents[2]
PATIENT = RetryPolicy(
    attempts=6,
    backoff_base=0.1,
    backoff_cap=0.3,
    jitter="equal",
    max_retry_after=3.0,
    budget_per_second=1000.0,
)
EAGER = BreakerPolicy(window=10, minimum_calls=1, failure_ratio=0.01, open_jitter=0.0)

async_wires = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "async"], ids="-".join)


@contextmanager
def running(command: Callable[[int], list[str]], listener: socket.socket | None = None) -> Iterator[str]:
    """Run a server on a free port in a process of its own; its URL."""
    with (
        listener or socket.create_server(("127.0.0.1", 0)) as bound,
        subprocess.Popen(
            [sys.executable, "-m", *command(bound.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations")])},
            pass_fds=[bound.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            # The worker of hypercorn is a process of its own, which would outlive a parent that is killed alone.
            os.killpg(process.pid, signal.SIGKILL)


def uvicorn(*options: str) -> Callable[[int], list[str]]:
    app = "tests.integrations.guarded_peer:app"
    return lambda fd: ["uvicorn", app, "--fd", str(fd), "--log-level", "critical", *options]


def hypercorn(*options: str) -> Callable[[int], list[str]]:
    app = "tests.integrations.guarded_peer:app"
    return lambda fd: ["hypercorn", app, "--bind", f"fd://{fd}", "--log-level", "critical", *options]


@pytest.fixture(scope="module", params=["uvicorn", "hypercorn"])
def peer(request: pytest.FixtureRequest) -> Iterator[tuple[str, bool]]:
    """The URL of a server, and whether it is asked by HTTP/2."""
    two = request.param == "hypercorn"
    with running(hypercorn("--graceful-timeout", "0") if two else uvicorn()) as url:
        yield url, two


def open_wire(wire: Wire, url: str, two: bool, **fields: Any) -> Dependency:
    dependency = Dependency("orders", match=f"{url}/*", **{"timeout": 9.0, **fields})
    told = not two or wire.is_async
    with nullcontext() if told else pytest.warns(ResilienceWarning, match="over HTTP/2 in sync code"):
        wire.open([dependency], http1=not two, http2=two)
    wire.get(url + "/count")  # It may still be starting. What was counted before is forgotten, too.
    assert wire.get(url + "/count").http_version == ("HTTP/2" if two else "HTTP/1.1")
    return dependency


def counted(wire: Wire, url: str) -> dict[str, int]:
    found: dict[str, int] = wire.get(url + "/count").json()
    return {path: count for path, count in found.items() if path != "/count"}


def beside(wire: Wire, url: str, call: Callable[[], Any]) -> Any:
    """Call while another call holds the slot of the server for half a second; return the response."""
    if wire.is_async:

        async def scenario() -> Any:
            holder = asyncio.ensure_future(wire.client.get(url + "/hold/0.5"))
            await asyncio.sleep(0.15)
            answer = await call()
            assert (await holder).status_code == 200
            return answer

        return wire.run(scenario())
    with ThreadPoolExecutor(1) as thread:
        holder = thread.submit(wire.client.get, url + "/hold/0.5")
        time.sleep(0.15)
        answer = call()
        assert holder.result(5).status_code == 200
        return answer


@every_wire
def test_a_post_that_the_middleware_refused_is_repeated_and_runs_once(
    wire: Wire, peer: tuple[str, bool]
) -> None:
    """It says that the work was not begun: any method may be repeated, and nobody is blamed."""
    url, two = peer
    dependency = open_wire(wire, url, two, retry=PATIENT, breaker=EAGER)
    answer = beside(wire, url, lambda: wire.client.post(url + "/order", content=b"once"))
    assert answer.status_code == 200
    assert counted(wire, url) == {"/hold/0.5": 1, "/order": 1}
    snapshot = dependency.snapshot()
    assert snapshot.retries >= 1
    assert snapshot.attempts["5xx"] == snapshot.retries
    assert (snapshot.breaker, snapshot.in_use) == ("closed", 0)


@every_wire
def test_what_a_stranger_says_about_his_refusal_is_not_believed(wire: Wire, peer: tuple[str, bool]) -> None:
    url, two = peer
    dependency = open_wire(wire, url, two, retry=PATIENT, breaker=None, trusted=False)
    answer = beside(wire, url, lambda: wire.client.post(url + "/order", content=b"once"))
    assert answer.status_code == 503
    assert answer.headers[REFUSAL_HEADER]
    assert counted(wire, url) == {"/hold/0.5": 1}
    assert dependency.snapshot().retries_refused == {"unsafe": 1}


@every_wire
def test_its_own_failures_open_the_circuit_and_its_return_closes_it(
    wire: Wire, peer: tuple[str, bool]
) -> None:
    url, two = peer
    breaker = BreakerPolicy(
        window=4, minimum_calls=4, failure_ratio=1.0, open_for=0.3, open_jitter=0.0, trials=1
    )
    dependency = open_wire(wire, url, two, retry=None, breaker=breaker)
    for _ in range(4):
        assert wire.request("POST", url + "/status/500").status_code == 500
    with pytest.raises(CallRefused) as caught:
        wire.get(url + "/order")
    assert caught.value.reason is Reason.CIRCUIT_OPEN
    time.sleep(0.35)
    assert counted(wire, url) == {"/status/500": 4}, (
        "the trial, which also says that nothing was sent meanwhile"
    )
    assert dependency.snapshot().breaker == "closed"


@every_wire
def test_the_budget_ends_the_work_on_both_sides(wire: Wire, peer: tuple[str, bool]) -> None:
    """The caller gets his time back, and the server its slot: it was told, and cancelled what nobody waits for."""
    url, two = peer
    dependency = open_wire(wire, url, two, retry=RetryPolicy(attempts=3), breaker=EAGER, reserve=0.05)
    with current().within(0.5):
        began = time.monotonic()
        error, took = timed(lambda: wire.get(url + "/slow"))
    # Whoever is first: the server says 504 shortly before the end, or the client ends it.
    assert error is None or isinstance(error, DeadlineExceeded)
    assert took < 0.5 + 1.5
    assert dependency.snapshot().in_use == 0
    while True:
        seen = counted(wire, url)
        if seen.get("cancelled"):
            break
        assert time.monotonic() < began + 3.0, "the server works on for nobody"
        time.sleep(0.02)
    assert wire.get(url + "/order").status_code == 200


# -- connections that the server ends ------------------------------------------------------------------------------------------


@every_wire
def test_a_server_that_is_started_again_costs_retries_and_no_error(wire: Wire) -> None:
    """Nobody listens for a moment: nothing was sent, so that a POST waits for the next one, too."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with running(uvicorn(), listener.dup()):
            retry = RetryPolicy(
                attempts=10, backoff_base=0.1, backoff_cap=2.0, jitter="equal", budget_per_second=1000.0
            )
            dependency = open_wire(wire, url, False, retry=retry, breaker=None, total_timeout=20.0)
    error, _ = timed(lambda: socket.create_connection(("127.0.0.1", port), 1.0))
    assert isinstance(error, ConnectionRefusedError)

    def again() -> Any:
        return running(uvicorn(), socket.create_server(("127.0.0.1", port)))

    if wire.is_async:

        async def scenario() -> Any:
            call = asyncio.ensure_future(wire.client.post(url + "/order"))
            await asyncio.sleep(0.3)
            assert not call.done()
            with again():
                return await call

        answer = wire.run(scenario())
    else:
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(wire.client.post, url + "/order")
            time.sleep(0.3)
            assert not call.done()
            with again():
                answer = call.result(15)
    assert answer.status_code == 200
    snapshot = dependency.snapshot()
    assert snapshot.retries >= 1
    assert set(snapshot.attempts) == {"2xx", "error"}


@pytest.fixture(scope="module")
def few() -> Iterator[str]:
    """A hypercorn that ends each connection after a few streams, with GOAWAY."""
    with running(hypercorn("--config", "python:tests.integrations.http2_few")) as url:
        yield url


@every_wire
def test_calls_outlive_the_connections_that_http2_ends(wire: Wire, few: str) -> None:
    """A connection that says GOAWAY takes no more streams: the next call has another one."""
    for _ in range(3):
        dependency = open_wire(wire, few, True, retry=PATIENT, breaker=EAGER)
        try:
            answers = [wire.get(few + "/free").status_code for _ in range(30)]
        except wire.lib.RemoteProtocolError:
            # GOAWAY was read between a head and its body, which the test below is about.
            wire.run(wire.client.aclose() if wire.is_async else wire.client.close())
            continue
        break
    assert answers == [200] * 30
    assert counted(wire, few) == {"/free": 30}, "each of them ran once"
    snapshot = dependency.snapshot()
    assert (snapshot.breaker, snapshot.recent_transitions, snapshot.in_use) == ("closed", (), 0)


@every_wire
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_body_that_the_end_of_a_connection_of_http2_cuts_off_is_never_repeated(
    wire: Wire, few: str, method: str
) -> None:
    """The library gives up the bodies of a connection once it has read GOAWAY: the head was there, so the work was done."""
    dependency = open_wire(wire, few, True, retry=PATIENT, breaker=None)
    answered, cut = 0, 0
    for _ in range(30):
        try:
            answered += wire.request(method, few + "/free").status_code == 200
        except wire.lib.RemoteProtocolError:
            cut += 1
    assert (answered + cut, dependency.snapshot().attempts.get("body", 0)) == (30, cut)
    assert answered >= 20
    assert dependency.snapshot().retries == 0
    assert counted(wire, few)["/free"] == 30, "each of them ran once"
    assert dependency.snapshot().in_use == 0


@async_wires
def test_calls_that_share_a_connection_come_back_whatever_its_end_does_to_them(wire: Wire, few: str) -> None:
    """Twelve at once over connections that end after five streams each: an answer or an error for each, nothing held."""
    dependency = open_wire(wire, few, True, retry=PATIENT, breaker=None)

    async def scenario() -> None:
        for _ in range(3):
            calls = (wire.client.put(few + "/free") for _ in range(12))
            for answer in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(answer, BaseException):
                    assert isinstance(answer, wire.lib.TransportError)
                else:
                    assert answer.status_code == 200
        assert (await wire.client.get(few + "/free")).status_code == 200

    wire.run(scenario())
    snapshot = dependency.snapshot()
    assert snapshot.in_use == 0
    assert snapshot.attempts["2xx"] >= 10


@every_wire
def test_an_idle_connection_that_http2_has_closed_is_nobodys_fault(wire: Wire, few: str) -> None:
    """The library does not look whether it is still open: the call is repeated, and the circuit hears of nothing."""
    dependency = open_wire(wire, few, True, retry=PATIENT, breaker=EAGER)
    for _ in range(2):
        time.sleep(0.5)
        assert wire.request("PUT", few + "/free").status_code == 200
    snapshot = dependency.snapshot()
    assert (snapshot.retries, snapshot.breaker, snapshot.recent_transitions) == (2, "closed", ())
