"""B32: cancelled at every step, and at random with everything else going on; nothing may be lost or done twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from resilient_mw import RouteRule, current
from resilient_mw.asgi import ResilienceMiddleware
from tests.asgi.driver import (
    HANG,
    IGNORE,
    LATCHED,
    ONE_SHOT,
    RAISE,
    App,
    Request,
    answer,
    budget,
    figures,
    http_scope,
    nothing_left,
    outcomes,
    queued,
    slots,
    until,
)

LIMIT = 2


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# -- every step --------------------------------------------------------------------------------------------------------


async def runs(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await turns(12)
    await answer(send)


async def streams(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(6):
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await turns(2)
    await send({"type": "http.response.body"})


async def works_on_in_the_background(scope: Any, receive: Any, send: Any) -> None:
    await answer(send)
    await turns(15)


async def listens_beside_its_work(scope: Any, receive: Any, send: Any) -> None:
    """As frameworks do that run the handler in a task of its own."""
    await receive()
    listener, work = asyncio.ensure_future(receive()), asyncio.ensure_future(turns(10))
    try:
        await asyncio.wait({listener, work}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (listener, work):
            each.cancel()
        await asyncio.wait({listener, work})
    await answer(send)


async def cleans_up(scope: Any, receive: Any, send: Any) -> None:
    try:
        await turns(10)
    finally:
        await turns(5)
    await answer(send)


KINDS = {
    each.__name__: each
    for each in (runs, streams, works_on_in_the_background, listens_beside_its_work, cleans_up)
}


class Bench:
    """A middleware with `LIMIT` slots and a queue, whose handlers are counted."""

    def __init__(self, **fields: Any) -> None:
        self.running = 0
        self.most = 0
        settings: dict[str, Any] = {"limit": LIMIT, "queue": 3, "wait_share": 1.0} | fields
        self.middleware = ResilienceMiddleware(self.app, **settings)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await scope["handler"](scope, receive, send)
        finally:
            self.running -= 1

    def request(self, handler: Callable[..., Any], **more: Any) -> Request:
        scope = http_scope(more.pop("path", "/"), handler=handler, headers=more.pop("headers", []))
        return Request(more.pop("served", self.middleware), scope, **more)

    async def has_all_its_slots(self) -> None:
        """Assert that as many requests as ever are let in at once."""
        gate = asyncio.Event()

        async def waits(scope: Any, receive: Any, send: Any) -> None:
            await gate.wait()
            await answer(send)

        requests = [self.request(waits).start() for _ in range(LIMIT)]
        await turns(3)
        assert (slots(self.middleware), queued(self.middleware)) == (LIMIT, 0)
        gate.set()
        for request in requests:
            assert (await request.end()).status == 200


def well_formed(request: Request) -> None:
    """Assert what holds for the messages on the wire, whatever happened."""
    kinds = [each["type"] for each in request.messages]
    assert kinds.count("http.response.start") <= 1
    if kinds:
        assert kinds[0] == "http.response.start"
    last = [
        not each.get("more_body", False) for each in request.messages if each["type"] == "http.response.body"
    ]
    assert sum(last) <= 1
    assert not any(last[:-1]), "nothing comes after the end"
    if request.status in {503, 504}:
        assert len(kinds) <= 2
        assert request.header("content-type") == "application/problem+json"


@pytest.mark.parametrize("full", [False, True], ids=["at once", "queued"])
@pytest.mark.parametrize("name", list(KINDS))
async def test_b32_the_server_cancels_at_any_step(name: str, full: bool) -> None:
    """B32: a request that runs, or waits and then runs, is cancelled after its k-th step."""
    bench = Bench()
    undisturbed = 0
    async with nothing_left(bench.middleware):
        for step in range(61):
            holders = [bench.request(runs).start() for _ in range(LIMIT if full else 0)]
            await turns(2)
            request = bench.request(KINDS[name]).start()
            await turns(step)
            assert request.task is not None
            running = not request.task.done()
            request.cancel()
            await request.end(1.0)
            if running:
                assert isinstance(request.raised, asyncio.CancelledError), (step, request.messages)
                assert request.cancelling == 1
            else:
                undisturbed += 1
                assert request.raised is None
                assert request.cancelling == 0
            well_formed(request)
            for holder in holders:
                assert (await holder.end()).status == 200
            assert slots(bench.middleware) == 0, step
            assert queued(bench.middleware) == 0, step
        await bench.has_all_its_slots()
    assert bench.most == LIMIT
    assert 0 < undisturbed < 58, "the steps covered the whole request and what comes before"


@pytest.mark.parametrize("way", ["refused on arrival", "refused while it waits"])
async def test_b32_the_server_cancels_a_refusal_at_any_step(way: str) -> None:
    bench = Bench(max_wait=0.0 if way == "refused on arrival" else 0.001)
    gate = asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await gate.wait()
        await answer(send)

    async with nothing_left(bench.middleware):
        holders = [bench.request(waits).start() for _ in range(LIMIT)]
        await turns(2)
        for step in range(30):
            request = bench.request(runs).start()
            await turns(step)
            if way == "refused while it waits" and step % 3:
                time.sleep(0.0015)  # noqa: ASYNC251  its time is over when the loop looks again
                await turns(step % 5)
            request.cancel()
            await request.end(1.0)
            well_formed(request)
            assert request.status in {None, 503}
            assert queued(bench.middleware) == 0
        gate.set()
        for holder in holders:
            await holder.end()
        await bench.has_all_its_slots()


@pytest.mark.parametrize("name", list(KINDS))
async def test_b19_a_cancel_of_the_server_beside_one_of_ours_is_never_swallowed(name: str) -> None:
    """B19: the caller leaves at one step, the server cancels at another, before, with or after it."""
    bench = Bench()
    async with nothing_left(bench.middleware):
        for leaves in range(0, 24, 2):
            for cancels in range(max(0, leaves - 4), leaves + 8):
                request = bench.request(KINDS[name]).start()
                for turn in range(40):
                    assert request.task is not None
                    if turn == leaves:
                        request.disconnect()
                    if turn == cancels:
                        running = not request.task.done()
                        request.cancel()
                    await asyncio.sleep(0)
                await request.end(1.0)
                assert isinstance(request.raised, asyncio.CancelledError) is running
                assert request.cancelling == int(running)
                well_formed(request)
        await bench.has_all_its_slots()


async def test_b19_a_cancel_of_the_server_around_the_deadline_is_never_swallowed() -> None:
    """B19: 300 requests with one deadline, cancelled from 1.5 ms before to 1.5 ms after it."""

    async def sleeps(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(5)

    bench = Bench(limit=300, deadline_default=0.15)
    loop = asyncio.get_running_loop()
    cancelled: set[int] = set()

    def cancel(number: int, request: Request) -> None:
        assert request.task is not None
        if not request.task.done():
            cancelled.add(number)
            request.cancel()

    async with nothing_left(bench.middleware):
        requests = [bench.request(sleeps).start() for _ in range(300)]
        await turns(1)
        for number, request in enumerate(requests):
            offset = 0.01 * (number - 150) / 1000
            loop.call_later(0.15 - (time.monotonic() - request.began) + offset, cancel, number, request)
        for request in requests:
            await request.end()
    for number, request in enumerate(requests):
        well_formed(request)
        assert isinstance(request.raised, asyncio.CancelledError) is (number in cancelled)
        assert request.cancelling == int(number in cancelled)
        assert number in cancelled or request.status == 504


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, LookupError])
@pytest.mark.parametrize("when", ["before", "begun", "complete", "after the deadline"])
async def test_b32_whatever_leaves_the_application_leaves_the_middleware(
    error: type[BaseException], when: str
) -> None:
    """B32: the slot comes back for exceptions that are no `Exception`, too; only a handler's own answer to our cancel ends here."""

    async def raises(scope: Any, receive: Any, send: Any) -> None:
        if when == "after the deadline":
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(5)
        if when in {"begun", "complete"}:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if when == "complete":
            await send({"type": "http.response.body"})
        raise error

    bench = Bench(deadline_default=0.05)
    async with nothing_left(bench.middleware):
        request = await bench.request(raises).run()
        swallowed = when == "after the deadline" and error is LookupError
        assert type(request.raised) is (type(None) if swallowed else error)
        assert outcomes(bench.middleware) == {"deadline" if when == "after the deadline" else "error": 1}
        assert slots(bench.middleware) == 0
        await bench.has_all_its_slots()


# -- at random ---------------------------------------------------------------------------------------------------------


class Script:
    """A handler that does random things with its request, and leaves nothing behind by itself."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.steps = [rng.choice(self.CHOICES) for _ in range(rng.randint(1, 6))]
        self.answers = rng.random() < 0.9
        self.background = rng.random() < 0.3
        self.swallowed = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for step in self.steps:
            await step(self, receive, send)
        if self.answers:
            parts = self.rng.randint(1, 4)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in range(1, parts + 1):
                await send({"type": "http.response.body", "body": b"x", "more_body": part < parts})
                await self.pause(receive, send)
        if self.background:
            await self.pause(receive, send)

    async def pause(self, receive: Any, send: Any) -> None:
        await turns(self.rng.randint(0, 4))

    async def sleep(self, receive: Any, send: Any) -> None:
        await asyncio.sleep(self.rng.random() * 0.008)

    async def listen(self, receive: Any, send: Any) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self.rng.random() * 0.004):
                for _ in range(self.rng.randint(1, 3)):
                    await receive()

    async def group(self, receive: Any, send: Any) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.rng.randint(1, 3)):
                group.create_task(self.rng.choice([self.pause, self.sleep, self.listen])(receive, send))

    async def gather(self, receive: Any, send: Any) -> None:
        await asyncio.gather(*(self.sleep(receive, send) for _ in range(2)), return_exceptions=True)

    async def wait_like_a_framework(self, receive: Any, send: Any) -> None:
        tasks = {asyncio.ensure_future(self.sleep(receive, send)), asyncio.ensure_future(receive())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)

    async def thread(self, receive: Any, send: Any) -> None:
        await asyncio.to_thread(time.sleep, self.rng.random() * 0.004)

    async def swallow(self, receive: Any, send: Any) -> None:
        try:
            await self.sleep(receive, send)
        except asyncio.CancelledError:
            self.swallowed = True
            await self.pause(receive, send)

    async def clean_up_slowly(self, receive: Any, send: Any) -> None:
        try:
            await self.sleep(receive, send)
        finally:
            await asyncio.sleep(0.002)

    async def fail(self, receive: Any, send: Any) -> None:
        raise LookupError

    async def check(self, receive: Any, send: Any) -> None:
        current().check()

    async def within(self, receive: Any, send: Any) -> None:
        async with current().within(self.rng.random() * 0.005):
            await self.sleep(receive, send)

    async def hook(self, receive: Any, send: Any) -> None:
        current().on_cancel(lambda reason: turns(3))

    async def hint(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.early_hint", "links": []})

    CHOICES = (
        pause, sleep, sleep, listen, listen, group, gather, wait_like_a_framework, thread, swallow, clean_up_slowly,
        fail, check, within, hook,
    )  # fmt: skip


def _in_a_task(app: Any) -> App:
    """As a middleware does that runs what is below it in a task of its own."""

    async def layer(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(app(scope, receive, send))

    return layer


PATHS = ["/", "/", "/low", "/high", "/health"]


async def storm(seed: int) -> list[Request]:
    """Send 12 random requests at once, with random disconnects and cancels, and check everything afterwards."""
    rng = random.Random(seed)
    rules = [RouteRule("/low", priority="sheddable"), RouteRule("/high", priority="critical")]
    bench = Bench(
        queue=rng.randint(0, 4), max_wait=rng.choice([0.001, 0.005, 1.0]), exempt_limit=2, smallest_budget=0.001,
        routes=rules,
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    requests: list[Request] = []
    exempt = 0
    outer = ResilienceMiddleware(
        bench.middleware, limit=100, smallest_budget=0.001, deadline_default=rng.choice([0.004, 0.012, 1.0])
    )
    served = rng.choice([bench.middleware, bench.middleware, outer, _in_a_task(bench.middleware)])
    async with nothing_left(bench.middleware, outer, collect=False):
        for _ in range(12):
            path = rng.choice(PATHS)
            exempt += path == "/health"
            parts = [bytes(rng.randint(0, 3)) for _ in range(rng.randint(1, 20))]
            lost = rng.choice([IGNORE, IGNORE, RAISE, HANG])
            request = bench.request(
                Script(rng), served=served, path=path, body=parts, telling=rng.choice([LATCHED, ONE_SHOT]), lost=lost,
                cancel_at=rng.choice([None, None, None, rng.randint(0, 8)]),
                headers=[budget(rng.choice([2, 5, 10, 20]))] if lost == HANG or rng.random() < 0.6 else [],
            ).start()  # fmt: skip
            requests.append(request)
            if rng.random() < 0.4:
                loop.call_later(rng.random() * 0.015, request.disconnect)
            if rng.random() < 0.2:
                loop.call_later(rng.random() * 0.015, request.cancel)
            await turns(rng.randint(0, 3))
        await until(lambda: slots(bench.middleware) == queued(bench.middleware) == 0, 3.0)
        for request in requests:
            if request.gone and request._lost == HANG:
                request.cancel()  # a refusal or 504 may hang in the server's send(), without a slot
            await request.end(2.0)  # a 504 that hangs gets one second
        assert bench.most <= LIMIT + min(exempt, 2)
        await bench.has_all_its_slots()
    for request in requests:
        well_formed(request)
        foreign = isinstance(request.raised, asyncio.CancelledError)
        # Only the handler itself may swallow what the server asked for, or fail in the very step that was to be cancelled.
        assert (
            foreign is (request.cancelling > 0)
            or request.scope["handler"].swallowed
            or isinstance(request.raised, LookupError)
        ), request.raised
        assert foreign or request.raised is None or isinstance(request.raised, (LookupError, TimeoutError))
    assert figures(bench.middleware).guard_errors == 0
    return requests


@pytest.mark.parametrize("block", range(10))
async def test_random_messages_disconnects_and_cancels(block: int) -> None:
    """B32: 3,000 requests in all. The number of the failing storm is printed; give it to `storm()` to see it again."""
    seen: dict[object, int] = {}
    async with nothing_left():
        for seed in range(block * 25, block * 25 + 25):
            try:
                requests = await storm(seed)
            except BaseException:
                print(f"storm({seed})")
                raise
            for request in requests:
                result = request.status if request.raised is None else type(request.raised).__name__
                seen[result] = seen.get(result, 0) + 1
    assert {200, 503, 504, None, "CancelledError"} <= set(seen), seen
