"""Turns the middlewares off, so that a test sees the application alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from resilient_mw.runtime import switch


@contextmanager
def disabled() -> Iterator[None]:
    """Let every request that arrives meanwhile pass straight to the application, as if there were no middleware.

    It holds for the whole process, all threads and event loops, both middlewares and all policies, because a test often
    sends its requests from another thread than the one that serves them. Requests that were admitted before stay
    guarded. Nesting is fine. `current()` is then the context without limits, as in a script. Idempotency keys are still
    honoured, since what they protect is the work, and not the server.

    Example:
        with disabled():
            client.get("/reports")
    """
    switch.turn_off()
    try:
        yield
    finally:
        switch.turn_on()
