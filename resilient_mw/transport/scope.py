"""What the layers below a transport know about the attempt they work for: until when it may run, and where it stands.

A library reads its timeout once for many operations, so each of them may take that long. Whoever does the single
operations (the network backend of the default transport) asks the scope before each one instead.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from typing import Any, Protocol, TypeVar

from resilient_mw.calls.events import Phase
from resilient_mw.core.ports import Clock

T = TypeVar("T")

GRACE = 0.03
"""Seconds after its end at which an attempt through a foreign transport is cancelled: its own timeouts come first, since
a cancellation can cost a pool a connection."""


class Wire(Protocol):
    """A connection of a sync attempt.

    Attributes:
        shared: whether others use it at the same time (HTTP/2).
    """

    shared: bool

    def get_extra_info(self, info: str) -> Any:
        """Return what it knows about itself: `socket`, above all."""
        ...


class Scope:
    """One attempt, as seen from below.

    Args:
        clock: the one clock.
        until: the instant at which the attempt is over, its body included; inf: never.

    Attributes:
        phase: where it is; None while nothing has told.
        connected: whether a connection was made for it. False: it goes over one that was kept open, or nothing has told.
        received: bytes that came in; None where nobody counts them.
        interruptible: whether the task is inside an operation that it may be cancelled in.
        wire: the connection that the thread of a sync attempt works on; None where nobody tells.
        abandoned: whether nobody waits for the attempt any more: it is to end before its next operation.
    """

    # As `Attempt` does: what nothing has told yet is not written for each attempt.
    _connect_until = math.inf
    phase: Phase | None = None
    connected = False
    received: int | None = None
    interruptible = False
    abandoned = False
    wire: Wire | None = None

    def __init__(self, clock: Clock, until: float) -> None:
        self._clock = clock
        self.until = until

    def cut(self) -> None:
        """End a sync attempt that another thread makes: now if it waits for its connection, else at its next operation.

        A connection that others share is left alone, and so is the attempt: it ends with its timeouts.
        """
        if self.wire is not None and self.wire.shared:
            return
        self.until = -math.inf  # Before the wire is looked at: whoever comes to one now looks at this.
        wire = None if self.wire is None else self.wire.get_extra_info("socket")
        if isinstance(wire, socket.socket):
            with suppress(OSError):  # It is closed already.
                # Not the method of a TLS socket, which would let what is written from now on go out unencrypted.
                socket.socket.shutdown(wire, socket.SHUT_RDWR)

    def left(self, timeout: float | None = None) -> float | None:
        """Return seconds that the next operation may take; None: no bound. 0 or less: the attempt is over."""
        return _least(timeout, self.until - self._clock.now())

    def is_over(self) -> bool:
        """Return whether the time of the attempt is over."""
        return self._clock.now() >= self.until

    def left_and_grace(self) -> float | None:
        """Return seconds after which the attempt is cancelled, where its own timeouts are to come first; None: no bound."""
        return None if self.until == math.inf else self.until - self._clock.now() + GRACE

    def connecting(self, timeout: float | None) -> None:
        """Note that a connection is being made: resolving, connecting and TLS may take `timeout` seconds in all."""
        self.connected = True
        self._connect_until = math.inf if timeout is None else self._clock.now() + timeout

    def left_to_connect(self, timeout: float | None = None) -> float | None:
        """Return seconds that the next step of connecting may take; None: no bound."""
        return _least(timeout, min(self.until, self._connect_until) - self._clock.now())

    def count(self, size: int) -> None:
        """Count bytes that came in; 0 says that somebody counts."""
        self.received = size + (self.received or 0)

    async def operate(self, operation: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Do an operation of an async attempt, in which its task may be cancelled.

        Raises:
            CancelledError: nobody waits for the attempt any more.
        """
        if self.abandoned:
            raise asyncio.CancelledError
        self.interruptible = True
        try:
            return await operation(*args)
        finally:
            self.interruptible = False


def _least(timeout: float | None, left: float) -> float | None:
    if timeout is None:
        return None if left == math.inf else left
    return min(timeout, left)


SCOPE: ContextVar[Scope | None] = ContextVar("resilient_mw_attempt", default=None)
"""The attempt that the code below works for, set around each step into the inner transport."""


def leave(token: Token[Scope | None]) -> None:
    """Set what was set before a step, wherever this runs: a forgotten coroutine is closed in the collector's context."""
    try:
        SCOPE.reset(token)
    except ValueError:
        pass
