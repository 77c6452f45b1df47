"""The application of the fuzz test: it does what a plan's steps say, and records what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context, copy_context
from math import inf
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import current
from tests.asgi.driver import Message
from tests.asgi.fuzz_plan import RequestPlan, Step

if TYPE_CHECKING:
    from tests.asgi.fuzz_world import World

EARLY = 0.002
"""Seconds by which a section may be over before its time."""
TOLD_WITHIN = 0.2
"""Seconds after its end within which a request hears of it that listens beside its work."""


class Handling:
    """One run of the handler.

    Attributes:
        record: the request's context, ours.
        sent: what it sent, in order, and the instant at which `send` returned; inf: it raised or did not return.
        received: what `receive` gave to it.
        over_at: the instant at which its `on_cancel` callback was called.
        finishing_at, complete_at: the instants at which it began to send its last message, and had sent it.
        raised: what left it.
        holding: what keeps its slot: itself while it runs, and what it has held.
        freed: whether it does not keep its slot any more, since the head has been sent.
        sections: the ends of its sections that are open.
        had_sections, interrupted: how many it has entered, and how many of them were cancelled before their time was over.
        complaints: what it found wrong meanwhile.
    """

    def __init__(self, world: World, plan: RequestPlan, receive: Any, send: Any) -> None:
        self.world = world
        self.plan = plan
        self.record = current()
        self.context: Context = copy_context()
        self.own_task = asyncio.current_task()
        self.sent: list[tuple[Message, float]] = []
        self.received: list[Message] = []
        self.entered_at = world.now()
        self.left_at = self.finishing_at = self.complete_at = inf
        self.over_at: float | None = None
        self.reasons: list[CancelReason] = []
        self.raised: BaseException | None = None
        self.listening = self.most_listening = 0
        self.holding = 1
        self.freed = False
        self.sections: list[float] = []
        self.had_sections = self.interrupted = 0
        self.complaints: list[str] = []
        self._receive = receive
        self._send = send
        self._trailers = False
        if plan.notes:
            self.record.on_cancel(self._over)

    def _over(self, reason: CancelReason) -> None:
        if any(self.world.now() < until - EARLY for until in self.sections):
            self.complaints.append("its callback was called while a section was open")
        self.over_at = self.world.now()
        self.reasons.append(reason)

    async def run(self) -> None:
        try:
            await self.follow(self.plan.steps)
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.left_at = self.world.now()

    async def follow(self, steps: tuple[Step, ...]) -> None:
        for name, *arguments in steps:
            if current().remaining() > self.record.remaining() and not self.sections:
                self.complaints.append(f"the context is another one in step {name}")
            await getattr(self, name)(*arguments)

    async def send(self, message: Message, *, last: bool = False) -> None:
        place = len(self.sent)
        self.sent.append((message, inf))
        if last:
            self.finishing_at = min(self.finishing_at, self.world.now())
        try:
            await self._send(message)
        except ConnectionResetError:
            if self.complete_at == inf:
                self.complaints.append("a lost connection was reported to it as an error")
            raise
        self.sent[place] = (message, self.world.now())
        if message["type"] == "http.response.start" and self.record.reason is None:
            self.world.head_left(self)
        if last and self.complete_at == inf:
            self.complete_at = self.world.now()

    async def receive(self) -> Message:
        self.listening += 1
        self.most_listening = max(self.most_listening, self.listening)
        try:
            message: Message = await self._receive()
        finally:
            self.listening -= 1
        self.received.append(message)
        if message["type"] == "http.disconnect" and not self.world.may_be_told(self):
            self.complaints.append("it was told of a disconnect while the caller was there")
        return message

    # -- answers -------------------------------------------------------------------------------------------------------

    async def start(self, trailers: bool) -> None:
        self._trailers = trailers
        await self.send({"type": "http.response.start", "status": 200, "headers": [], "trailers": trailers})

    async def part(self, size: int) -> None:
        await self.send({"type": "http.response.body", "body": bytes(size), "more_body": True})

    async def last(self) -> None:
        await self.send({"type": "http.response.body", "body": b"x"}, last=not self._trailers)

    async def trailers(self) -> None:
        await self.send({"type": "http.response.trailers", "headers": [], "more_trailers": False}, last=True)

    async def pathsend(self) -> None:
        await self.send({"type": "http.response.pathsend", "path": "/nowhere"}, last=True)

    async def hint(self) -> None:
        await self.send({"type": "http.response.early_hint", "links": []})

    async def stream(self, gap: float, count: int) -> None:
        for _ in range(count):
            await self.part(1)
            await asyncio.sleep(gap)

    async def late(self) -> None:
        """Send a last message once more, as broken applications do; or at last, where there was none."""
        await self.send({"type": "http.response.body", "body": b"late"}, last=not self._trailers)

    # -- time ----------------------------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def block(self, seconds: float) -> None:
        """Keep the loop for oneself."""
        self.world.block(seconds)

    async def swallow(self, seconds: float, more: float) -> None:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(more)

    async def clean_up(self, seconds: float, more: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.sleep(more)

    async def ignore(self, seconds: float) -> None:
        """Ignore every cancel for a while."""
        end = self.world.now() + seconds
        # A timer may fire a little early, and the rest of the time be too short for another.
        while (rest := end - self.world.now()) > 0.001:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(rest)

    async def wait_for(self, seconds: float, within: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(seconds), within)

    async def check(self) -> None:
        current().check()

    async def fail(self) -> None:
        raise LookupError

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def read(self, count: int) -> None:
        for _ in range(count):
            message = await self.receive()
            if not message.get("more_body", False):
                return

    async def read_all(self) -> None:
        while (await self.receive()).get("more_body", False):
            pass

    async def listen(self, within: float, count: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for _ in range(count):
                    await self.receive()

    async def until_gone(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def listeners(self, count: int, within: float) -> None:
        """Call `receive()` several times at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await asyncio.gather(*(self.receive() for _ in range(count)))

    async def framework(self, seconds: float) -> None:
        """Work in a task of its own and listen meanwhile, as Django and Quart do."""
        tasks = {asyncio.ensure_future(asyncio.sleep(seconds)), asyncio.ensure_future(self.receive())}
        began = self.world.now()
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            told = self.world.now() - max(began, self.over_at or inf)
            if told > TOLD_WITHIN + self.world.blocked:
                self.complaints.append(f"who listens beside its work was told {told} s after the end")
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.wait(tasks)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def group(self, branches: tuple[tuple[Step, ...], ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for each in branches:
                group.create_task(self.follow(each))

    async def gather(self, branches: tuple[tuple[Step, ...], ...]) -> None:
        await asyncio.gather(*map(self.follow, branches), return_exceptions=True)

    async def task(self, steps: tuple[Step, ...]) -> None:
        await asyncio.create_task(self.follow(steps))

    async def shield(self, steps: tuple[Step, ...]) -> None:
        """Shield what must be finished, and end it if nobody waits for it any longer."""
        inner = asyncio.ensure_future(self.follow(steps))
        self.world.children.add(inner)
        inner.add_done_callback(self.world.children.discard)
        try:
            await asyncio.shield(inner)
        finally:
            inner.cancel()
            inner.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def within(self, seconds: float, steps: tuple[Step, ...]) -> None:
        async with current().within(seconds):
            await self.follow(steps)

    async def section(self, seconds: float, steps: tuple[Step, ...]) -> None:
        """Do what must complete."""
        self.had_sections += 1
        # The parent of this task has its cancel already, and may hand it down: that is the application's own.
        late = self.record.reason is not None and asyncio.current_task() is not self.own_task
        async with current().shield(seconds) as section:
            until = self.world.now() + section.remaining()  # it ends with the one around it
            self.sections.append(until)
            try:
                await self.follow(steps)
            except asyncio.CancelledError:
                self.interrupted += not late and self.world.now() < until - EARLY
                raise
            finally:
                self.sections.remove(until)

    async def child(self, seconds: float, held: bool) -> None:
        """Start a task and leave it alone."""
        task = asyncio.create_task(self._alone(seconds))
        self.world.children.add(task)
        task.add_done_callback(self.world.children.discard)
        if held:
            self._hold(task)

    async def _alone(self, seconds: float) -> None:
        with suppress(TimeoutError, RuntimeError, OSError):
            async with asyncio.timeout(seconds):
                await self.receive()
                await asyncio.sleep(seconds)

    async def hold(self, seconds: float) -> None:
        future = self.world.loop.create_future()
        self.world.loop.call_later(seconds, future.set_result, None)
        self._hold(future)

    def _hold(self, future: asyncio.Future[Any]) -> None:
        self.world.holds(self, future)  # first, so that our account is never behind
        current().hold(future)

    async def on_cancel(self, seconds: float) -> None:
        """Register a callback that takes its time."""
        current().on_cancel(lambda _: asyncio.sleep(seconds))


def application(world: World) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """Return the application of a sequence: each request is handled as its plan says."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        wire = world.wires_by_scope[id(scope)]
        handling = Handling(world, wire.plan, receive, send)
        world.entered(wire, handling)
        try:
            await handling.run()
        finally:
            if not handling.freed:
                world.lets_go(handling)

    return app
