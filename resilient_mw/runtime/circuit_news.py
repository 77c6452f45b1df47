"""Tells the listeners of a circuit what has changed. Call it outside every lock: a listener may call through the circuit."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from resilient_mw.calls.breaker_policy import Listener
from resilient_mw.core.snapshot import Transition


def tell_listeners(name: str, untold: deque[Transition], listeners: Collection[Listener]) -> int:
    """Tell of each change once, whoever else does so at the same time; return how many listeners failed."""
    failed = 0
    while True:
        try:
            change = untold.popleft()
        except IndexError:
            return failed
        for listener in listeners:
            try:
                listener(name, change)
            except Exception:  # noqa: BLE001  a listener that fails changes nothing
                failed += 1
