"""A caller over HTTP/2, frame by frame: several requests on one connection, each of which he may reset."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)


@dataclass
class Stream:
    """One request and what has come back of its answer.

    Attributes:
        whole: the server has ended the stream.
        reset: the error code with which the server has reset it.
        lost: the connection has ended.
        seconds: since the request was sent, when the head and the end came.
        times: when each piece of the body came, likewise.
    """

    number: int
    sent: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    reset: int | None = None
    lost: bool = False
    head_after: float = 0.0
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return self.whole or self.lost or self.reset is not None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class H2Wire:
    """One connection, with prior knowledge that the server speaks HTTP/2."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.terminated: ConnectionTerminated | None = None
        self.lost = False
        self._connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._streams: dict[int, Stream] = {}
        self._news = asyncio.Condition()
        self._connection.initiate_connection()
        self._flush()
        self._reading = asyncio.create_task(self._read())

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(
        self,
        path: str,
        *,
        method: str = "GET",
        budget: int | None = None,
        headers: list[tuple[str, str]] | None = None,
        open_body: bool = False,
    ) -> Stream:
        """Send the head of a request, which is all of it unless its body is left open."""
        number = self._connection.get_next_available_stream_id()
        lines = [(":method", method), (":scheme", "http"), (":authority", "service"), (":path", path)]
        if budget is not None:
            lines.append(("x-request-timeout-ms", str(budget)))
        stream = self._streams[number] = Stream(number, time.monotonic())
        self._connection.send_headers(number, lines + (headers or []), end_stream=not open_body)
        self._flush()
        return stream

    async def upload(self, stream: Stream, data: bytes, *, last: bool = False, within: float = 5.0) -> None:
        """Send a part of the body, as the server's windows allow."""
        async with asyncio.timeout(within):
            while True:
                window = self._connection.local_flow_control_window(stream.number)
                size = min(len(data), window, self._connection.max_outbound_frame_size)
                if size or not data:
                    part, data = data[:size], data[size:]
                    self._connection.send_data(stream.number, part, end_stream=last and not data)
                    self._flush()
                    await self.writer.drain()
                    if not data:
                        return
                else:
                    async with self._news:
                        await self._news.wait()

    def reset(self, stream: Stream) -> None:
        """Leave this request and keep the connection."""
        self._connection.reset_stream(stream.number, ErrorCodes.CANCEL)
        self._flush()

    def leave(self) -> None:
        """Drop the connection."""
        self.writer.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    async def head(self, stream: Stream, within: float = 10.0) -> Stream:
        return await self._until(stream, lambda: bool(stream.status) or stream.ended, within)

    async def read(self, stream: Stream, within: float = 10.0) -> Stream:
        """Wait until the stream has ended, one way or another."""
        return await self._until(stream, lambda: stream.ended, within)

    async def ask(self, path: str, **more: Any) -> Stream:
        return await self.read(self.send(path, **more))

    async def received(self, stream: Stream, size: int, within: float = 10.0) -> Stream:
        return await self._until(stream, lambda: len(stream.body) >= size or stream.ended, within)

    async def close(self) -> None:
        self._reading.cancel()
        self.writer.close()
        with suppress(asyncio.CancelledError, ConnectionError):
            await self._reading

    async def _until(self, stream: Stream, condition: Any, within: float) -> Stream:
        async with asyncio.timeout(within), self._news:
            await self._news.wait_for(condition)
        return stream

    async def _read(self) -> None:
        try:
            while data := await self.reader.read(65_536):
                for event in self._connection.receive_data(data):
                    self._take(event)
                self._flush()
                async with self._news:
                    self._news.notify_all()
        except ConnectionError:
            pass
        self.lost = True
        for stream in self._streams.values():
            if not stream.ended:
                stream.lost = True
        async with self._news:
            self._news.notify_all()

    def _take(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.terminated = event
        if isinstance(event, WindowUpdated) or not hasattr(event, "stream_id"):
            return
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        elapsed = time.monotonic() - stream.sent
        if isinstance(event, ResponseReceived):
            fields = {bytes(name).decode(): bytes(value).decode() for name, value in event.headers}
            stream.status = int(fields.pop(":status"))
            stream.headers = fields
            stream.head_after = elapsed
        elif isinstance(event, DataReceived):
            stream.body += event.data
            stream.times.append(elapsed)
            if event.flow_controlled_length:
                self._connection.acknowledge_received_data(event.flow_controlled_length, stream.number)
        elif isinstance(event, StreamEnded):
            stream.whole, stream.seconds = True, elapsed
        elif isinstance(event, StreamReset):
            stream.reset, stream.seconds = int(event.error_code), elapsed

    def _flush(self) -> None:
        data = self._connection.data_to_send()
        if data and not self.writer.is_closing():
            self.writer.write(data)


@asynccontextmanager
async def h2_connected(port: int) -> AsyncIterator[H2Wire]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    wire = H2Wire(reader, writer)
    try:
        yield wire
    finally:
        await wire.close()
