"""The switch that takes both middlewares out of the way: for tests, and for people on call.

Both middlewares read `switch.DISABLED` once per request, when it arrives: requests that are already running stay
guarded to their end. Write it through the functions below only.
"""

from __future__ import annotations

import threading

from resilient_mw.runtime.forks import renew_lock

DISABLED = False
"""Whether requests go straight to the application, in the whole process. Read it through the module."""

_holders = 0
_for_good = False
_lock = threading.Lock()
renew_lock(__name__, "_lock")


def turn_off() -> None:
    """Let requests pass unguarded until `turn_on()` has been called as often as this."""
    global DISABLED, _holders
    with _lock:
        _holders += 1
        DISABLED = True


def turn_on() -> None:
    """Take one `turn_off()` back.

    Raises:
        RuntimeError: there is none to take back.
    """
    global DISABLED, _holders
    with _lock:
        if not _holders:
            raise RuntimeError("turn_on() was called more often than turn_off()")
        _holders -= 1
        DISABLED = _holders > 0


def turn_off_for_good() -> bool:
    """Let requests pass unguarded for as long as the process lives; return whether this was the first call."""
    global _for_good
    with _lock:
        first, _for_good = not _for_good, True
    if first:
        turn_off()
    return first
