"""What the tests of carrying run in other processes: found there by name."""

from __future__ import annotations

import os
import time

from resilient_mw import DeadlineExceeded, current


def left_elsewhere(_: object = None) -> tuple[int, float]:
    """Return who runs this, and what is left there."""
    return os.getpid(), current().remaining()


def left_after(seconds: float) -> float:
    """Work for a while, and return what is left then."""
    time.sleep(seconds)
    return current().remaining()


def work_until_it_is_over(most: float) -> str:
    """Work until the context says that it no longer matters."""
    for _ in range(int(most / 0.005)):
        try:
            current().check()
        except DeadlineExceeded:
            return "deadline"
        time.sleep(0.005)
    return "never"
