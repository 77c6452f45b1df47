"""Time that belongs to one test: it passes while the event loop waits, and by as much as it waits for.

A machine that is busy with something else stops a process for half a second now and then. A test whose bounds are
shorter would fail for that, so it gets a clock that such a stop does not move.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from resilient_mw.runtime.clocks import MonotonicClock

STEP = 1e-6
"""Seconds that each look at the clock takes: two events in a row never have one instant."""


class OwnTime:
    """The clock, and the selector that moves it.

    What comes from a thread or a socket comes at no instant of this clock: only for tests in which all is in one loop.
    """

    def __init__(self, selector: Any) -> None:
        self._at = time.monotonic()
        self._selector = selector
        self._thread = threading.get_ident()
        self._really_sleep = time.sleep

    def now(self) -> float:
        self._at += STEP
        return self._at

    def sleep(self, seconds: float) -> None:
        """Block the loop."""
        if threading.get_ident() == self._thread:
            self._at += seconds
        else:
            self._really_sleep(seconds)

    def select(self, timeout: float | None = None) -> Any:
        events = self._selector.select(timeout if timeout is None else 0)
        if not events and timeout is not None and timeout > 0:
            self._at += timeout
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._selector, name)


@contextmanager
def own_time_of(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let a loop, the product and the test have a time of their own."""
    selector = loop._selector  # type: ignore[attr-defined]
    own = OwnTime(selector)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_selector", own)
        patch.setattr(loop, "time", own.now)
        patch.setattr(time, "monotonic", own.now)
        patch.setattr(time, "sleep", own.sleep)
        patch.setattr(MonotonicClock, "now", staticmethod(own.now))
        yield
