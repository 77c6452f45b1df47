"""The bodies of calls through aiohttp: an alarm ends them with their attempt, and their connection tells when they ended.

Nothing runs in between: reading costs what it costs without us.
"""

from __future__ import annotations

import asyncio
import sys
import weakref

import aiohttp

from resilient_mw.transport.streams import Delivery
from resilient_mw_integrations._facade import Nothing


class Wire:
    """A body that nobody has taken over yet."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def aclose(self) -> None:
        self.answer.release()


class Body:
    """The body of a delivered response: ends with its attempt, and tells its call of its end.

    Args:
        delivery: the response, seen from its call.
        _errors: not used: aiohttp raises them elsewhere.
    """

    def __init__(self, delivery: Delivery, *_errors: object) -> None:
        answer = delivery.stream.answer
        delivery.stream = Nothing()
        self._delivery = delivery
        self._timer: asyncio.TimerHandle | None = None
        # With a callback it is dead before the finalizers of a collection run, which may not take a lock.
        self._answer: weakref.ref[aiohttp.ClientResponse] = weakref.ref(answer, self._collected)
        connection = answer.connection
        if connection is None:
            self.released()
            return
        left = delivery.scope.left()
        if left is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._alarm)
        connection.add_callback(self.released)

    def released(self) -> None:
        """Tell how the body ended: its connection has been given back or closed."""
        self._stop()
        delivery, answer = self._delivery, self._answer()
        delivery.closed = True
        if answer is None:
            delivery.forgotten()
            return
        error = answer.content.exception()
        if isinstance(sys.exception(), asyncio.CancelledError):
            delivery.interrupted()
        elif isinstance(error, Exception) and type(error) is not aiohttp.ClientConnectionError:
            delivery.failed(error, timed_out=isinstance(error, TimeoutError))
        else:
            delivery.ended()  # Complete, or closed early.

    def _alarm(self) -> None:
        """End the body: its time is over."""
        self._timer = None
        answer, delivery = self._answer(), self._delivery
        if answer is None or answer.connection is None:
            return
        error = delivery.failed(delivery.timed_out(), timed_out=True)
        # Not now: a reader that was woken just before would not look at the error, and find the connection closed.
        asyncio.get_running_loop().call_soon(_close, answer, error)

    def _collected(self, _answer: object) -> None:
        self._stop()
        self._delivery.closed = True
        self._delivery.forgotten()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _close(answer: aiohttp.ClientResponse, error: Exception) -> None:
    """Tell who reads the body, and close the connection, unless it has been given back."""
    if answer.connection is not None:
        answer.content.set_exception(error)
        answer.close()
