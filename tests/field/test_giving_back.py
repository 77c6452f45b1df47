"""B34: what is held is given back without waiting for anything, however calls and requests end."""

from __future__ import annotations

import ast
import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.rejection import REFUSAL_HEADER
from resilient_mw.runtime.context import budget
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.testing import ManualClock, ScriptedASGI, ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from tests.field.calls import (
    ONE_TRIAL,
    ROOT,
    URL,
    async_wires,
    half_open,
    nothing_held,
    owner,
    prices,
    sync_wires,
    taken,
    turns,
    unsteady,
)
from tests.integrations.httpx_wires import Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, head

# -- B34: what is held is given back without waiting for anything --------------------------------------------------------

GIVES_BACK = {
    "abandon",
    "cancel",
    "end",
    "ended",
    "failed",
    "interrupted",
    "leave",
    "_leave",
    "release",
    "_free",
}
SHELLS = [
    "resilient_mw/runtime/drive_async.py",
    "resilient_mw/runtime/async_gate.py",
    "resilient_mw/transport/aio.py",
    "resilient_mw/transport/streams.py",
    "resilient_mw/asgi/exchange.py",
    "resilient_mw/asgi/middleware.py",
    "integrations/resilient_mw_integrations/_httpx_gate.py",
]


def _suspends(node: ast.AST) -> bool:
    return isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith)


def _gives_back(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GIVES_BACK
    )


def _place(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _too_late(source: str) -> Iterator[int]:
    """Yield the lines in which something is given back only after a step that a cancellation can break."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Try):
            continue
        for body in (*(handler.body for handler in node.handlers), node.finalbody):
            suspended = False
            for each in sorted(
                (inner for statement in body for inner in ast.walk(statement) if hasattr(inner, "lineno")),
                key=_place,
            ):
                suspended = suspended or _suspends(each)
                if suspended and _gives_back(each):
                    yield each.lineno


@pytest.mark.parametrize("path", SHELLS)
def test_b34_what_is_held_is_given_back_before_anything_is_awaited(path: str) -> None:
    assert list(_too_late((ROOT / path).read_text(encoding="utf-8"))) == []


def test_b34_the_reader_of_the_sources_sees_what_is_wrong() -> None:
    wrong = "async def f():\n try:\n  await g()\n except BaseException:\n  await h()\n  owner.cancel(c)\n  raise\n"
    assert list(_too_late(wrong)) == [6]
    assert list(_too_late(wrong.replace("await h()", "h()"))) == []


def test_b34_no_verb_that_gives_something_back_is_awaited() -> None:
    from resilient_mw.runtime.async_gate import AsyncWait
    from resilient_mw.runtime.guard import Guard
    from resilient_mw.transport.streams import Delivery
    from resilient_mw_integrations._httpx_gate import AsyncGate

    verbs: list[Callable[..., object]] = [
        DependencyOwner.tell, DependencyOwner.end, DependencyOwner.cancel, DependencyOwner.abandon,
        Delivery.ended, Delivery.failed, Delivery.interrupted, Delivery.forgotten,
        Guard.release, Guard.end, Guard.leave, Guard.finish, AsyncWait.abandon, AsyncGate._leave,
    ]  # fmt: skip
    assert [verb for verb in verbs if inspect.iscoroutinefunction(verb)] == []


class Interrupted(BaseException):
    """What nobody expects: a signal, a cancellation of another kind."""


class Stepping:
    """An inner transport in small steps. Each answer has three parts; all but every so many-th one are refusals."""

    def __init__(self, wire: Wire, step: Callable[[], None], every: int) -> None:
        self.lib = wire.lib
        self.step = step
        self.every = every
        self.count = 0
        bases = (SteppingBody, wire.lib.SyncByteStream, wire.lib.AsyncByteStream)
        self.body: Any = type("Body", bases, {})

    def answer(self) -> Any:
        self.count += 1
        if self.count % self.every:
            headers = {REFUSAL_HEADER: "queue_full"}
            return self.lib.Response(503, headers=headers, stream=self.body(self.step))
        return self.lib.Response(200, stream=self.body(self.step))

    def handle(self, request: Any) -> Any:
        self.step()
        self.step()
        return self.answer()

    async def handle_async(self, request: Any) -> Any:
        await turns(2)
        return self.answer()


class SteppingBody:
    """The body of such an answer."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.step = step

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(3):
            self.step()
            yield b"x"

    def close(self) -> None:
        self.step()
        self.step()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(3):
            await turns(1)
            yield b"x"

    async def aclose(self) -> None:
        await turns(2)


def stepped(wire: Wire, step: Callable[[], None], every: int = 2) -> Dependency:
    """A dependency with one place, one trial and a retry; the client calls it in small steps."""
    dependency = prices(
        bulkhead=1,
        breaker=ONE_TRIAL,
        total_timeout=None,
        retry=RetryPolicy(attempts=2, backoff_base=0.0, budget_ratio=0.0, budget_per_second=1000.0),
    )
    dependency.owner.append(DependencyOwner(dependency, ManualClock(), Random(1)))
    inner = Stepping(wire, step, every)
    wire.open([dependency], wire.handler(inner.handle_async if wire.is_async else inner.handle))
    return dependency


@async_wires
@pytest.mark.parametrize("again", [None, 1, 2, 3, 5])
def test_b34_a_cancel_at_any_step_gives_everything_back(wire: Wire, again: int | None) -> None:
    """`again`: a second cancellation strikes so many steps later, in the middle of the clean-up."""
    dependency = stepped(wire, lambda: None)
    seen: Counter[str] = Counter()

    async def cancelled_at(step: int) -> None:
        half_open(dependency)
        task = asyncio.ensure_future(wire.client.get(URL))
        await turns(step)
        task.cancel()
        if again is not None:
            await turns(again)
            task.cancel()
        await asyncio.wait((task,))
        seen["cancelled" if task.cancelled() else "answered"] += 1
        nothing_held(dependency)
        half_open(dependency)
        assert (await wire.client.get(URL)).status_code in {200, 503}
        nothing_held(dependency)

    async def all_of_them() -> None:
        for step in range(40):
            await cancelled_at(step)

    wire.run(all_of_them())
    assert set(seen) == {"cancelled", "answered"}
    assert owner(dependency).state.retries > 10


@async_wires
def test_b34_a_cancel_in_the_back_off_gives_its_place_in_the_retry_budget_back(wire: Wire) -> None:
    dependency = stepped(wire, lambda: None, every=1_000_000)
    waits = owner(dependency).state
    waits.backoff = lambda attempts: 1000.0  # type: ignore[method-assign]

    async def cancelled_at(step: int) -> None:
        half_open(dependency)
        task = asyncio.ensure_future(wire.client.get(URL))
        await turns(step)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        nothing_held(dependency)

    async def all_of_them() -> None:
        for step in range(0, 60, 2):
            await cancelled_at(step)

    wire.run(all_of_them())
    assert waits.retries == 0


@sync_wires
def test_b34_an_interruption_at_any_step_gives_everything_back(wire: Wire) -> None:
    left = 0
    seen: Counter[str] = Counter()

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Interrupted

    dependency = stepped(wire, step)
    for number in range(1, 16):
        half_open(dependency)
        left = number
        try:
            wire.client.get(URL)
            seen["answered"] += 1
        except Interrupted:
            seen["interrupted"] += 1
        nothing_held(dependency)
        left = 0
        half_open(dependency)
        assert wire.get(URL).status_code in {200, 503}
        nothing_held(dependency)
    assert set(seen) == {"interrupted", "answered"}


@every_wire
def test_b34_a_storm_of_callers_who_give_up_leaves_nothing_behind(wire: Wire) -> None:
    """Connections, places, trials and retries, of callers who hang up (twice) or whose budget ends at any instant."""
    with RawServer(unsteady) as server:
        dependency = prices(
            f"{server.url}/*",
            bulkhead=8,
            reserve=0.0,
            smallest_budget=0.0,
            breaker=BreakerPolicy(window=8, minimum_calls=8, failure_ratio=0.6, open_for=0.02, trials=2),
            retry=RetryPolicy(attempts=3, backoff_base=0.01, backoff_cap=0.01, budget_per_second=1000.0),
        )
        with pytest.warns(ResilienceWarning, match="the pool has 4 connections"):
            wire.open([dependency], limits=wire.lib.Limits(max_connections=4))
        random = Random(7)
        refusals = (wire.lib.TransportError, asyncio.CancelledError)

        async def caller() -> None:
            with budget(random.choice([0.01, 0.03, 1.0])):
                task = asyncio.ensure_future(wire.client.get(server.url + "/"))
            await asyncio.sleep(random.uniform(0.0, 0.02))
            task.cancel()
            await turns(random.choice([0, 1, 2, 5]))
            task.cancel()
            with suppress(*refusals):
                await task

        async def storm() -> None:
            for _ in range(20):
                await asyncio.gather(*(caller() for _ in range(12)))

        def worker(seed: int) -> None:
            luck = Random(seed)
            for _ in range(20):
                with budget(luck.choice([0.002, 0.005, 0.015, 0.03])), suppress(*refusals):
                    wire.client.get(server.url + "/")

        if wire.is_async:
            wire.run(storm())
        else:
            with ThreadPoolExecutor(12) as threads:
                list(threads.map(worker, range(12)))
        nothing_held(dependency)
        assert sum(owner(dependency).snapshot().attempts.values()) > 20
        time.sleep(0.03)  # The circuit may be open.
        for _ in range(6):
            assert wire.get(server.url + "/ok").status_code == 200
        assert owner(dependency).snapshot().breaker == "closed"
        nothing_held(dependency)


@pytest.mark.parametrize("again", [None, 1, 2, 3])
@pytest.mark.parametrize("who", ["the one that runs", "the one that waits"])
async def test_b34_a_slot_of_the_server_comes_back_whoever_is_cancelled_when(
    who: str, again: int | None
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await turns(6)
        finally:
            await turns(2)  # A clean-up that a second cancellation strikes.
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    policy = ServerPolicy(limit=1, queue=2, max_wait=30.0, wait_share=1.0)
    served: Any = AsgiMiddleware(app, policy)
    for step in range(25):
        requests = [ScriptedASGI(served) for _ in range(2)]
        tasks = [asyncio.ensure_future(request.run()) for request in requests]
        await turns(step)
        victim = requests[who == "the one that waits"]
        victim.cancel()
        if again is not None:
            await turns(again)
            victim.cancel()
        await asyncio.gather(*tasks)
        assert taken(policy) == (0, 0), f"step {step}"
        assert (await ScriptedASGI(served).run()).status == 200


def test_b34_a_slot_of_the_server_comes_back_wherever_a_thread_is_interrupted() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    left = 0

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Interrupted

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(3):
                step()
                yield b"x"

        def close(self) -> None:
            step()

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        step()
        start_response("200 OK", [("Content-Type", "text/plain")])
        step()
        return Body()

    served: Any = WsgiMiddleware(app, policy)
    interrupted = 0
    for number in range(1, 9):
        left = number
        try:
            ScriptedWSGI(served, validate=False).run()
        except Interrupted:
            interrupted += 1
        assert taken(policy) == (0, 0), f"step {number}"
        left = 0
        assert ScriptedWSGI(served, validate=False).run().body == b"xxx"
    assert interrupted >= 5


@async_wires
@pytest.mark.parametrize("turns_between", range(8))
def test_b34_a_second_cancel_while_a_body_is_cleaned_up_after_leaves_no_connection_behind(
    wire: Wire, turns_between: int
) -> None:
    def half_a_body(connection: Connection) -> None:
        while (request := connection.request()) is not None:
            if request.path == "/ok":
                connection.answer()
            else:
                connection.send(head(200, 100) + b"x")
                connection.hang()
                return

    with RawServer(half_a_body) as server:
        dependency = prices(f"{server.url}/*", timeout=2.0)
        wire.open([dependency], limits=wire.lib.Limits(max_connections=1))

        async def twice() -> None:
            task = asyncio.ensure_future(wire.client.get(server.url + "/half"))
            await asyncio.sleep(0.05)
            task.cancel()
            await turns(turns_between)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        wire.run(twice())
        assert wire.get(server.url + "/ok").status_code == 200
        nothing_held(dependency)
