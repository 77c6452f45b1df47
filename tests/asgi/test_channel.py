"""The reader that listens for a disconnect: bounded, loses nothing, latches for everybody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

import pytest

from resilient_mw.asgi.channel import MOST_BYTES, MOST_MESSAGES, Channel, nothing
from tests.asgi.driver import DISCONNECT, ONE_SHOT, Message, Request, hello, nothing_left, until

pytestmark = pytest.mark.usefixtures("own_time")


class Source:
    """A server's `receive`, read by a channel."""

    def __init__(self, *parts: bytes, telling: str = ONE_SHOT) -> None:
        self.request = Request(hello, body=parts, telling=telling)
        if parts:
            self.request._incoming[-1]["more_body"] = True
        self.told = 0
        self.channel = self.open(self.request.receive)

    def open(self, receive: Callable[[], Any]) -> Channel:
        def on_disconnect() -> bool:
            self.told += 1
            return False

        return Channel(receive, on_disconnect, Context())

    @property
    def unread(self) -> int:
        return len(self.request._incoming)


async def _settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_reading_ahead_stops_at_64_kib() -> None:
    source = Source(*[b"x" * 10_000] * 30)
    async with nothing_left():
        source.channel.listen()
        await _settle()
        assert source.unread == 30 - 7, "the seventh part passes 64 KiB"
        for number in range(30):
            message: Any = await source.channel.receive()
            assert len(message["body"]) == 10_000
            await _settle()
            kept = 30 - number - 1 - source.unread
            assert kept <= MOST_BYTES // 10_000 + 1
        assert source.unread == 0
        source.channel.stop()


async def test_reading_ahead_stops_at_16_messages() -> None:
    """Empty parts cost nothing but objects: these are bounded, too."""
    source = Source(*[b""] * 100)
    async with nothing_left():
        source.channel.listen()
        await _settle()
        assert source.unread == 100 - MOST_MESSAGES
        await source.channel.receive()
        await _settle()
        assert source.unread == 99 - MOST_MESSAGES
        source.channel.stop()


async def test_nobody_reads_while_enough_is_kept() -> None:
    """Back-pressure reaches the server: its `receive` is not even called."""
    source = Source(b"x" * MOST_BYTES)
    async with nothing_left():
        source.channel.listen()
        await _settle()
        assert source.request.steps == 1
        source.channel.listen()
        await _settle()
        assert source.request.steps == 1
        await source.channel.receive()
        await _settle()
        assert source.request.steps == 2
        source.channel.stop()


async def test_the_disconnect_is_heard_behind_what_is_kept() -> None:
    source = Source(b"a", b"b")
    async with nothing_left():
        source.channel.listen()
        await _settle()
        source.request.disconnect()
        await _settle()
        assert source.told == 1
        bodies = [(await source.channel.receive()).get("body") for _ in range(2)]
        assert bodies == [b"a", b"b"], "what had arrived is still delivered"
        for _ in range(3):
            assert await source.channel.receive() == {"type": "http.disconnect"}
        assert source.told == 1


@pytest.mark.parametrize("telling", ["latched", "one-shot"])
async def test_a_disconnect_told_once_reaches_every_receiver(telling: str) -> None:
    """Some servers (hypercorn, daphne) tell one receiver, once; then their `receive` hangs."""
    source = Source(telling=telling)
    async with nothing_left():
        receivers = [asyncio.create_task(source.channel.receive()) for _ in range(5)]
        await _settle()
        assert source.request.inside_receive == 1, "one reader, however many receive"
        source.request.disconnect()
        for receiver in receivers:
            assert await asyncio.wait_for(receiver, 1) == {"type": "http.disconnect"}
        assert await asyncio.wait_for(source.channel.receive(), 1) == {"type": "http.disconnect"}
        assert source.told == 1


async def test_several_receivers_get_each_message_once() -> None:
    source = Source()
    got: list[Any] = []

    async def receiver() -> None:
        got.append((await source.channel.receive())["body"])  # type: ignore[typeddict-item]

    async with nothing_left():
        receivers = [asyncio.create_task(receiver()) for _ in range(10)]
        for number in range(10):
            await _settle()
            source.request.feed(b"%d" % number)
        await asyncio.wait(receivers)
        source.channel.stop()
    assert sorted(got) == [b"%d" % number for number in range(10)]


@pytest.mark.parametrize("turns", range(8))
async def test_a_receive_that_is_cancelled_loses_nothing(turns: int) -> None:
    """Cancelled at each turn of the loop while a message is on its way to it."""
    source = Source()
    async with nothing_left():
        for number in range(5):
            receiver = asyncio.create_task(source.channel.receive())
            await _settle()
            source.request.feed(b"%d" % number)
            for _ in range(turns):
                await asyncio.sleep(0)
            receiver.cancel()
            await asyncio.wait({receiver})
            message: Any = await source.channel.receive() if receiver.cancelled() else receiver.result()
            assert message["body"] == b"%d" % number
        source.channel.stop()


async def test_an_error_of_the_servers_receive_reaches_the_application() -> None:
    async def receive() -> Message:
        raise OSError("the server is broken")

    source = Source()
    channel = source.open(receive)
    async with nothing_left():
        channel.listen()
        await _settle()
        for _ in range(2):
            with pytest.raises(OSError, match="the server is broken"):
                await channel.receive()
    assert source.told == 0, "an error is no disconnect"


async def test_offered_disconnects_reach_those_who_listen_and_those_who_will() -> None:
    source = Source()
    async with nothing_left():
        assert source.channel.offer_disconnect() is False
        assert await source.channel.receive() == {"type": "http.disconnect"}

        source = Source()
        listener = asyncio.create_task(source.channel.receive())
        await _settle()
        assert source.channel.offer_disconnect() is True
        assert await listener == {"type": "http.disconnect"}
        assert source.channel.offer_disconnect() is False
        source.channel.stop()
    assert source.told == 0, "whoever offers knows already"


async def test_after_the_end_nobody_listens_any_more() -> None:
    """A task that the application left behind is told that it is over, and starts no reader."""
    source = Source()
    async with nothing_left():
        left_behind = asyncio.create_task(source.channel.receive())
        await _settle()
        source.channel.stop()
        assert await asyncio.wait_for(left_behind, 1) == {"type": "http.disconnect"}
        await _settle()
        assert source.request.inside_receive == 0
        assert await source.channel.receive() == {"type": "http.disconnect"}
        source.channel.listen()
        await _settle()
        assert source.request.inside_receive == 0
    assert source.told == 0
    assert source.channel.on_disconnect is nothing


async def test_a_paused_channel_leaves_the_servers_receive_alone() -> None:
    source = Source(b"a")
    source.channel.paused = True
    async with nothing_left():
        receiver = asyncio.create_task(source.channel.receive())
        await _settle()
        assert source.request.steps == 0
        source.channel.paused = False
        source.channel.listen()
        assert (await receiver)["body"] == b"a"  # type: ignore[typeddict-item]
        source.channel.stop()


async def test_receive_is_called_in_the_given_context() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    context = Context()
    context.run(variable.set, "set")
    seen: list[str] = []

    async def receive() -> Message:
        seen.append(variable.get())
        return {"type": "http.disconnect"}

    channel = Channel(receive, nothing, context)  # type: ignore[arg-type]
    async with nothing_left():
        channel.listen()
        await until(lambda: channel.disconnected)
    assert seen == ["set"]


async def test_a_disconnect_wakes_nobody_while_the_request_is_being_stopped() -> None:
    """B20: a framework that hears of it at the same time cancels its scope into a clean-up that runs already."""
    messages: asyncio.Queue[Message] = asyncio.Queue()
    channel = Channel(messages.get, lambda: True, copy_context())  # type: ignore[arg-type]
    pending = asyncio.create_task(channel.receive())
    messages.put_nowait(DISCONNECT)
    await asyncio.sleep(0.02)
    assert channel.disconnected
    assert not pending.done()
    assert await channel.receive() == DISCONNECT  # who asks now, learns it
    channel.offer_disconnect()
    assert await pending == DISCONNECT
