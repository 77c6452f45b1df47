"""Answers that are over before the request is, on a server that does not bear them.

Hypercorn forgets an HTTP/2 stream with the end of its response; the next part of the request's body then ends the whole
connection, with every other request on it. Over HTTP/1.1 it stops reading after ten parts that nobody has taken, and
never gets over it. So the end of the response is kept back there until the request has ended, too. The caller has the
rest of his answer at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.exchange import surrounding

if TYPE_CHECKING:
    from asgiref.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, HTTPScope

REST_WITHIN = 5.0
"""Seconds that the rest of a request gets to come in once its answer is complete."""
END_WITHIN = 0.5
"""Seconds that the end of the response gets to leave: Hypercorn hangs there once the connection is lost."""
SPEC_OF_HYPERCORN = "2.1"


def must_be_read(scope: HTTPScope, receive: ASGIReceiveCallable) -> bool:
    """Return whether the server of this request needs to have it read to its end, and nobody sees to it yet."""
    if isinstance(getattr(receive, "__self__", None), WholeRequest):
        return False
    # Only Hypercorn offers pushes, over HTTP/2; the version that it names is the only other thing to know it by.
    # Test clients leave out either.
    version = (scope.get("asgi") or {}).get("spec_version")
    if version != SPEC_OF_HYPERCORN and "http.response.push" not in (scope.get("extensions") or ()):
        return False
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # no loop of asyncio: the middleware says so
    # Another one of ours around this one sees to it, to which the answer has to be complete when it is.
    return surrounding(task, scope) is None


async def read_whole(
    serve: Callable[..., Awaitable[None]],
    scope: HTTPScope,
    receive: ASGIReceiveCallable,
    send: ASGISendCallable,
) -> None:
    """Serve a request and return when it has been read to its end, or `REST_WITHIN` after its answer."""
    request = WholeRequest(receive, send)
    try:
        await serve(scope, request.receive, request.send)
    except Exception:
        await request.finish()
        raise
    else:
        await request.finish()
    finally:
        request.stop()


class WholeRequest:
    """The `receive` and `send` of a request that is to be read to its end."""

    __slots__ = ("_ending", "_gone", "_receive", "_send", "_trailers", "_whole")

    def __init__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self._receive = receive
        self._send = send
        self._trailers = False
        self._gone = False
        self._whole = asyncio.Event()  # the request has been read to its end, or its caller has gone
        self._ending: asyncio.Task[None] | None = None

    async def receive(self) -> ASGIReceiveEvent:
        """Receive as the server would."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._gone = True
            self._whole.set()
        elif not message.get("more_body", False):
            self._whole.set()
        return message

    async def send(self, message: Any) -> None:
        """Send as the server would; the end of a response whose request has not ended is kept back."""
        kind = message["type"]
        if kind == "http.response.start":
            self._trailers = bool(message.get("trailers", False))
        ends = kind == "http.response.body" and not message.get("more_body", False) and not self._trailers
        if self._ending is not None:
            return  # What comes after the end is nobody's.
        if not ends or self._whole.is_set():
            await self._send(message)
            return
        unfinished: Any = {**message, "more_body": True}
        await self._send(unfinished)
        self._ending = asyncio.get_running_loop().create_task(self._end())

    async def finish(self) -> None:
        """Wait until the request has been read to its end."""
        if self._ending is None:
            await self._read_on()
        else:
            await asyncio.wait({self._ending})

    def stop(self) -> None:
        """Do nothing more, whatever has been done."""
        if self._ending is not None:
            self._ending.cancel()

    async def _end(self) -> None:
        await self._read_on()
        if self._gone:
            return
        try:
            async with asyncio.timeout(END_WITHIN):
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except (OSError, TimeoutError):
            pass  # The caller has gone.

    async def _read_on(self) -> None:
        """Read the rest of the request and throw it away. The application may be reading, too."""
        if self._whole.is_set():
            return
        reading = asyncio.get_running_loop().create_task(self._throw_away())
        try:
            async with asyncio.timeout(REST_WITHIN):
                await self._whole.wait()
        except TimeoutError:
            pass
        finally:
            reading.cancel()

    async def _throw_away(self) -> None:
        try:
            while not self._whole.is_set():
                await self.receive()
        except Exception:  # noqa: BLE001  what stands around us cannot read any further, and nobody wants what comes
            self._whole.set()
