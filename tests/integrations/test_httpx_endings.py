"""How calls end otherwise: cancelled, interrupted, forgotten, or closed. Nothing is held afterwards."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import DeadlineExceeded, ResilienceError, ResilienceWarning
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import KINDS, Wire, every_wire, timed
from tests.transport.tcp_server import Connection, RawServer, head

ROOT = Path(__file__).resolve().parents[2]

async_wires = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "async"], ids="-".join)


def prices(url: str, **keywords: Any) -> Dependency:
    keywords.setdefault("retry", None)
    return Dependency("prices", match=f"{url}/*", bulkhead=1, **keywords)


def snapshot(dependency: Dependency) -> Any:
    owner: Any = dependency.owner[0]
    return owner.snapshot()


def stalls_then_serves(connection: Connection) -> None:
    """Half a body for /half, nothing for /never, 503 for /busy, a complete answer for everything else."""
    while (request := connection.request()) is not None:
        if request.path == "/half":
            connection.send(head(200, 1000) + b"x" * 500)
            connection.hang()
            return
        if request.path == "/never":
            connection.hang()
            return
        connection.answer(503 if request.path == "/busy" else 200)


def one_connection(wire: Wire) -> dict[str, Any]:
    return {"limits": wire.lib.Limits(max_connections=1)}


# -- B61: cancelled --------------------------------------------------------------------------------------------------------


async def cancelled_by_task(work: Awaitable[Any]) -> None:
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def cancelled_by_timeout(work: Awaitable[Any]) -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.05):
            await work
    assert not isinstance(caught.value, DeadlineExceeded)


async def cancelled_by_budget(work: Awaitable[Any]) -> None:
    with pytest.raises(DeadlineExceeded):
        async with current().within(0.1):
            await work


CANCELLATIONS: dict[str, Callable[[Awaitable[Any]], Awaitable[None]]] = {
    "task": cancelled_by_task,
    "timeout": cancelled_by_timeout,
    "budget": cancelled_by_budget,
}


@async_wires
@pytest.mark.parametrize("path", ["/half", "/never"])
@pytest.mark.parametrize("way", CANCELLATIONS)
def test_b61_a_cancelled_call_holds_nothing(wire: Wire, path: str, way: str) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url, timeout=9.0)
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> None:
            await CANCELLATIONS[way](wire.client.get(server.url + path))
            assert snapshot(dependency).in_use == 0
            async with asyncio.timeout(3):  # long before the attempt would have been over by itself
                response = await wire.client.get(server.url + "/")
            assert response.content == b"ok"

        wire.run(scenario())
        assert snapshot(dependency).breaker == "closed"
        assert (
            snapshot(dependency).attempts.get("cancelled", 0)
            + snapshot(dependency).attempts.get("timeout", 0)
            + (snapshot(dependency).attempts.get("body", 0))
            == 1
        )
        assert len(wire.pool().connections) == 1


@async_wires
def test_b61_cancelled_during_the_back_off(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        retry = RetryPolicy(attempts=2, backoff_base=5.0, backoff_cap=5.0)
        dependency = prices(server.url, retry=retry, total_timeout=60.0)
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> None:
            owner: Any = dependency.owner[0]
            owner.state.backoff = lambda attempts: 5.0
            await cancelled_by_task(wire.client.get(server.url + "/busy"))
            assert snapshot(dependency).in_use == 0
            assert (await wire.client.get(server.url + "/")).content == b"ok"

        wire.run(scenario())
        assert snapshot(dependency).retries == 0


@async_wires
@pytest.mark.parametrize("steps", range(1, 7))
def test_b61_cancelled_while_a_half_read_response_is_closed(wire: Wire, steps: int) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url)
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> None:
            request = wire.client.build_request("GET", server.url + "/half")
            response = await wire.client.send(request, stream=True)
            task = asyncio.ensure_future(response.aclose())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            for _ in range(10):
                await asyncio.sleep(0)
            assert snapshot(dependency).in_use == 0
            assert (await wire.client.get(server.url + "/")).content == b"ok"
            assert len(wire.pool().connections) == 1

        wire.run(scenario())


@async_wires
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30])
def test_b61_cancelled_at_any_await_of_a_retry(wire: Wire, steps: int) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(
            server.url, retry=RetryPolicy(attempts=9, backoff_base=0.0, budget_per_second=1000.0)
        )
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> None:
            task = asyncio.ensure_future(wire.client.get(server.url + "/busy"))
            for _ in range(steps):
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.wait([task])
            assert snapshot(dependency).in_use == 0
            assert (await wire.client.get(server.url + "/")).content == b"ok"

        wire.run(scenario())


@async_wires
@pytest.mark.parametrize("state", ["CONNECTING", "NEW, Request Count: 0", "ACTIVE"])
def test_b64_cancelled_between_two_steps_of_the_pool(wire: Wire, state: str) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url)
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> bool:
            task = asyncio.ensure_future(wire.client.get(server.url + "/never"))
            for _ in range(1000):
                await asyncio.sleep(0)
                if any(state in connection.info() for connection in wire.pool().connections):
                    break
            else:
                return False
            task.cancel()
            await asyncio.wait([task])
            assert snapshot(dependency).in_use == 0
            assert (await wire.client.get(server.url + "/", timeout=1.0)).content == b"ok"
            return True

        if not wire.run(scenario()):
            pytest.skip(f"{wire.name} never stops there")


@async_wires
@pytest.mark.parametrize("path", ["/half", "/never"])
@pytest.mark.parametrize("way", CANCELLATIONS)
def test_b61_a_cancelled_trial_gives_its_place_back(wire: Wire, path: str, way: str) -> None:
    with RawServer(stalls_then_serves) as server:
        breaker = BreakerPolicy(window=1, minimum_calls=1, open_for=0.05, open_jitter=0.0, trials=1)
        dependency = prices(server.url, breaker=breaker)
        wire.open([dependency], **one_connection(wire))

        async def scenario() -> None:
            await wire.client.get(server.url + "/busy")
            await asyncio.sleep(0.06)
            await CANCELLATIONS[way](wire.client.get(server.url + path))
            assert snapshot(dependency).breaker == "half_open"
            assert (await wire.client.get(server.url + "/")).content == b"ok"
            assert snapshot(dependency).breaker == "closed"

        wire.run(scenario())


@async_wires
def test_b61_a_client_can_be_closed_right_after_a_cancel(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        wire.open([prices(server.url)], **one_connection(wire))

        async def scenario() -> None:
            for path in ("/half", "/never"):
                task = asyncio.ensure_future(wire.client.get(server.url + path))
                await asyncio.sleep(0.03)
                task.cancel()
                await asyncio.wait((task,))
            await wire.client.aclose()
            assert not wire.pool().connections

        wire.run(scenario())
        wire.client = None


@async_wires
@pytest.mark.parametrize("way", ["budget", "cancelled"])
def test_b64_many_cancelled_calls_do_not_eat_the_pool(wire: Wire, way: str) -> None:
    def serve(connection: Connection) -> None:
        while connection.request() is not None:
            if connection.server.over.wait(0.01) or not connection.answer(200, b"x" * 100):
                return

    with RawServer(serve) as server:
        dependency = Dependency(
            "prices", match=f"{server.url}/*", retry=None, smallest_budget=0.0, reserve=0.0
        )
        wire.open([dependency], limits=wire.lib.Limits(max_connections=5))

        async def one(number: int) -> None:
            try:
                if way == "budget":
                    with current().within(0.004 * (number % 12) + 0.001):
                        await wire.client.get(server.url + "/")
                else:
                    async with asyncio.timeout(0.004 * (number % 12) + 0.001):
                        await wire.client.get(server.url + "/")
            except (wire.lib.TimeoutException, TimeoutError):
                pass

        async def churn() -> None:
            for _ in range(15):
                await asyncio.gather(*(one(number) for number in range(20)))
            for _ in range(10):
                assert (await wire.client.get(server.url + "/", timeout=2.0)).status_code == 200

        wire.run(churn())
        assert snapshot(dependency).in_use == 0
        assert snapshot(dependency).attempts.keys() & {"timeout", "cancelled"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "sync"], ids="-".join)
def test_b64_many_expired_calls_of_threads_do_not_eat_the_pool(wire: Wire) -> None:
    def serve(connection: Connection) -> None:
        while connection.request() is not None:
            if connection.server.over.wait(0.01) or not connection.answer(200, b"x" * 100):
                return

    with RawServer(serve) as server:
        dependency = Dependency(
            "prices", match=f"{server.url}/*", retry=None, smallest_budget=0.0, reserve=0.0
        )
        wire.open([dependency], limits=wire.lib.Limits(max_connections=3))

        def one(number: int) -> None:
            for _ in range(25):
                try:
                    with current().within(0.004 * (number % 3) + 0.008):
                        wire.client.get(server.url + "/")
                except wire.lib.TimeoutException:
                    pass

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(one, range(12)))
        for _ in range(5):
            assert wire.get(server.url + "/", timeout=2.0).status_code == 200
        assert snapshot(dependency).in_use == 0
        assert snapshot(dependency).expired


@every_wire
def test_b64_nobody_waits_in_the_queue_of_the_pool_itself(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        wire.open([Dependency("prices", match=f"{server.url}/*", retry=None)], **one_connection(wire))
        first = wire.send("GET", server.url + "/half")
        if wire.is_async:

            async def second_call() -> Any:
                call = asyncio.ensure_future(wire.client.get(server.url + "/second"))
                await asyncio.sleep(0.05)
                seen.append(repr(wire.pool()))
                await first.aclose()
                return await call

            seen: list[str] = []
            assert wire.run(second_call()).content == b"ok"
        else:
            with ThreadPoolExecutor(1) as thread:
                call = thread.submit(wire.client.get, server.url + "/second")
                server.over.wait(0.05)
                seen = [repr(wire.pool())]
                first.close()
                assert call.result().content == b"ok"
        assert "1 active, 0 queued" in seen[0]


# -- interrupted -------------------------------------------------------------------------------------------------------------


@every_wire
def test_an_interruption_in_the_body_closes_it(wire: Wire) -> None:
    class Interrupted(BaseException):
        pass

    closed: list[str] = []
    bases = (wire.lib.SyncByteStream, wire.lib.AsyncByteStream)

    class Stream(*bases):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            yield b"x"
            raise Interrupted

        async def __aiter__(self) -> Any:
            yield b"x"
            raise Interrupted

        def close(self) -> None:
            closed.append("close")

        async def aclose(self) -> None:
            closed.append("close")

    dependency = prices("http://prices.test")
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(200, stream=Stream())))
    response = wire.send("GET", "http://prices.test/")
    with pytest.raises(Interrupted):
        wire.read(response)
    assert closed == ["close"]
    assert snapshot(dependency).in_use == 0
    assert snapshot(dependency).attempts == {"cancelled": 1}


# -- bodies: the slot lives as long as they do ------------------------------------------------------------------------------


@every_wire
def test_b35_a_slot_is_held_to_the_end_of_the_body(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        response = wire.send("GET", server.url + "/")
        assert snapshot(dependency).in_use == 1
        wire.read(response)
        assert snapshot(dependency).in_use == 0
        response = wire.send("GET", server.url + "/half")
        assert snapshot(dependency).in_use == 1
        wire.close(response)
        wire.close(response)
        assert snapshot(dependency).in_use == 0
        assert snapshot(dependency).attempts == {"2xx": 2}


@every_wire
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_a_response_without_a_body_is_over_at_once(wire: Wire, method: str, status: int) -> None:
    def serve(connection: Connection) -> None:
        while connection.request() is not None:
            connection.send(head(status, 100 if method == "HEAD" else None))

    with RawServer(serve) as server:
        dependency = prices(server.url)
        wire.open([dependency], **one_connection(wire))
        response = wire.send(method, server.url + "/")
        assert snapshot(dependency).in_use == 0
        wire.close(response)
        assert wire.request(method, server.url + "/").status_code == status


@every_wire
def test_a_response_that_is_complete_already(wire: Wire) -> None:
    dependency = prices("http://prices.test")
    wire.open([dependency], wire.handler(lambda request: wire.lib.Response(200, json={"a": 1})))
    response = wire.send("GET", "http://prices.test/")
    assert snapshot(dependency).in_use == 0
    assert response.json() == {"a": 1}


@every_wire
def test_a_forgotten_response_gives_its_slot_and_connection_back(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url)
        wire.open([dependency], **one_connection(wire))
        response = wire.send("GET", server.url + "/half")
        assert snapshot(dependency).in_use == 1
        held = [response]
        del response
        with pytest.warns(ResilienceWarning, match="thrown away without being read or closed"):
            forget(held)
        assert snapshot(dependency).in_use == 0
        assert wire.get(server.url + "/").content == b"ok"
        assert snapshot(dependency).attempts == {"cancelled": 1, "2xx": 1}


@every_wire
def test_a_finalizer_that_runs_while_the_lock_is_held_does_not_wait_for_it(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(server.url)
        wire.open([dependency])
        response = wire.send("GET", server.url + "/half")
        owner: Any = dependency.owner[0]
        held = [response]
        del response
        with owner._lock, pytest.warns(ResilienceWarning):
            forget(held)
        assert snapshot(dependency).in_use == 0


def forget(held: list[Any]) -> None:
    """Throw away what is held; responses and their streams hold each other, so it takes a collection."""
    held.clear()
    gc.collect()


# -- B53: closed -------------------------------------------------------------------------------------------------------------


class Counting:
    """An inner transport that counts what is forwarded."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __enter__(self) -> Self:
        self.seen.append("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.seen.append(f"exit {error[0].__name__}" if isinstance(error[0], type) else "exit")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def close(self) -> None:
        self.seen.append("close")

    async def aclose(self) -> None:
        self.seen.append("close")


def counted(wire: Wire) -> Any:
    base = wire.lib.AsyncBaseTransport if wire.is_async else wire.lib.MockTransport
    kind: Any = type("Counted", (Counting, base), {})
    return kind()


def inside(wire: Wire, error: Exception | None = None) -> None:
    """Use the client as a context manager."""
    if wire.is_async:

        async def use() -> None:
            async with wire.client:
                if error is not None:
                    raise error

        wire.run(use())
    else:
        with wire.client:
            if error is not None:
                raise error


@every_wire
def test_b53_closing_is_forwarded_exactly_once(wire: Wire) -> None:
    inner = counted(wire)
    wire.open([], inner)
    wire.run(wire.client.aclose() if wire.is_async else wire.client.close())
    assert inner.seen == ["close"]


@every_wire
def test_b53_a_context_is_forwarded_exactly_once(wire: Wire) -> None:
    inner, mounted = counted(wire), counted(wire)
    wire.open([], inner, client={"mounts": {"http://other.test": wire.transport_class([], mounted)}})
    inside(wire)
    assert inner.seen == mounted.seen == ["enter", "exit"]


@every_wire
def test_b53_an_error_inside_reaches_the_inner_transport(wire: Wire) -> None:
    inner = counted(wire)
    wire.open([], inner)
    with pytest.raises(ZeroDivisionError):
        inside(wire, ZeroDivisionError())
    assert inner.seen == ["enter", "exit ZeroDivisionError"]


@every_wire
def test_b53_wrapped_transports_and_mounts_are_closed_once(wire: Wire) -> None:
    inner, mounted = counted(wire), counted(wire)
    wire.client = wire.client_class(
        transport=inner, mounts={"http://a.test": mounted, "http://b.test": mounted}
    )
    wire.ours.wrap(wire.client, [prices("http://prices.test")])
    assert [type(each) for each in wire.client._mounts.values()] == [wire.transport_class] * 2
    wire.run(wire.client.aclose() if wire.is_async else wire.client.close())
    assert inner.seen == ["close"]
    assert mounted.seen == ["close", "close"]  # Mounted twice, so the library itself closes it twice.


@every_wire
def test_b53_no_socket_stays_open(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        wire.open([prices(server.url)])
        wire.get(server.url + "/")
        (connection,) = wire.pool().connections
        sock = connection._connection._network_stream.get_extra_info("socket")
        assert sock.fileno() != -1
        wire.run(wire.client.aclose() if wire.is_async else wire.client.close())
        assert sock.fileno() == -1
        wire.client = None


IN_REAL_LIFE = """
import asyncio, importlib
from resilient_mw.calls.dependency import Dependency
from tests.transport.tcp_server import RawServer

def serve(connection):
    while connection.request():
        connection.answer()

async def call(lib, ours, url):
    prices = [Dependency("prices", match=url + "*")]
    async with lib.AsyncClient(transport=ours.AsyncResilientTransport(prices, verify=False)) as client:
        await client.get(url)
        async with client.stream("GET", url):
            pass
    client = ours.wrap(lib.AsyncClient(verify=False), prices)
    await client.get(url)
    await client.aclose()

with RawServer(serve) as server:
    url = server.url + "/"
    for name in ("httpx", "httpx2"):
        lib = importlib.import_module(name)
        ours = importlib.import_module("resilient_mw_integrations." + name)
        prices = [Dependency("prices", match=url + "*")]
        with lib.Client(transport=ours.ResilientTransport(prices, verify=False)) as client:
            client.get(url)
            with client.stream("GET", url):
                pass
        client = ours.wrap(lib.Client(verify=False), prices)
        client.get(url)
        client.close()
        del client
        asyncio.run(call(lib, ours, url))
print("fine")
"""


def test_b53_no_resource_is_left_behind_in_real_life() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_REAL_LIFE],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([".", "integrations"])},
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("fine", "")


@every_wire
@pytest.mark.parametrize("way", ["close", "exit"])
def test_b53_a_back_off_ends_when_the_transport_is_closed(wire: Wire, way: str) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(
            server.url, retry=RetryPolicy(attempts=2, max_retry_after=60.0), total_timeout=90.0
        )
        wire.open([dependency])
        owner: Any = dependency.owner[0]
        waits = threading.Event()

        def thirty(attempts: int) -> float:
            waits.set()
            return 30.0

        owner.state.backoff = thirty

        def call() -> None:
            if wire.is_async:
                wire.run(_close_soon(wire, wire.client.get(server.url + "/busy"), way, waits))
            else:
                client = wire.client.__enter__() if way == "exit" else wire.client
                end = client.close if way == "close" else partial(client.__exit__, None, None, None)

                def end_soon() -> None:
                    waits.wait(10)
                    time.sleep(0.2)
                    end()

                threading.Thread(target=end_soon).start()
                wire.client.get(server.url + "/busy")

        error, took = timed(call)
        assert isinstance(error, wire.ours.TransportClosed)
        assert isinstance(error, ResilienceError)
        told: Any = error
        assert isinstance(told, wire.lib.TransportError)
        assert "was closed while a call to 'prices' waited" in str(error)
        assert took < 10.0  # it would have waited for thirty
        assert snapshot(dependency).in_use == 0


async def _close_soon(wire: Wire, call: Awaitable[Any], way: str, waits: threading.Event) -> None:
    if way == "exit":
        await wire.client.__aenter__()
    task = asyncio.ensure_future(call)
    await asyncio.to_thread(waits.wait, 10)
    await asyncio.sleep(0.05)
    await (wire.client.aclose() if way == "close" else wire.client.__aexit__())
    await task


@every_wire
def test_b53_a_transport_that_two_clients_share_goes_on_for_the_other_one(wire: Wire) -> None:
    with RawServer(stalls_then_serves) as server:
        dependency = prices(
            server.url, retry=RetryPolicy(attempts=2, backoff_base=0.01, budget_per_second=1000.0)
        )
        wire.open([dependency])
        other = wire.client_class(transport=wire.transport)
        wire.run(other.aclose() if wire.is_async else other.close())
        assert wire.get(server.url + "/busy").status_code == 503
        assert snapshot(dependency).retries == 1


# -- one state for both --------------------------------------------------------------------------------------------------------


def test_a_sync_and_an_async_client_share_the_state() -> None:
    dependency = Dependency(
        "prices", match="http://prices.test/*", retry=None, breaker=BreakerPolicy(window=2, minimum_calls=2)
    )
    wires = [Wire(("httpx", "sync")), Wire(("httpx2", "async"))]
    for wire in wires:
        wire.open([dependency], wire.handler(wire.always(500)))
        assert wire.get("http://prices.test/").status_code == 500
    for wire in wires:
        with pytest.raises(wire.ours.CallRefused):
            wire.get("http://prices.test/")
        wire.shut()
