"""What the middlewares of idempotency keys count: outcomes, and how the store answers. Plain integers under one lock.

Why a store cannot answer is logged: its refusals tell callers nothing of it.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final

from resilient_mw.core.idempotency_snapshot import TransitionSnapshot
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.flush import LOG_EVERY
from resilient_mw.runtime.forks import after_fork

TRANSITIONS: Final = ("begin", "look", "renew", "complete", "abandon")


class IdempotencyFigures:
    """The counters of one application. Safe to use from any thread.

    Args:
        name: of the policy, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._logged = -LOG_EVERY
        self._outcomes: dict[str, int] = {}
        self._store = {transition: [0, 0, 0] for transition in TRANSITIONS}
        after_fork(self)

    def forked(self) -> None:
        """Have a lock of its own in a forked child."""
        self._lock = threading.Lock()

    def count(self, outcome: str) -> None:
        """Count an outcome."""
        with self._lock:
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1

    def asking(self, transition: str) -> Asking:
        """Return what counts a question to the store, with `with` around it."""
        return Asking(self, transition)

    def asked(self, transition: str, began: float, now: float, error: Exception | None) -> None:
        """Count a question to the store, and log at most once a minute why it could not answer."""
        with self._lock:
            counts = self._store[transition]
            counts[0] += 1
            counts[1] += error is not None
            counts[2] += round((now - began) * 1_000_000)
            tell = error is not None and now - self._logged >= LOG_EVERY
            if tell:
                self._logged = now
        if tell:
            import logging  # only loaded when something is wrong

            logging.getLogger("resilient_mw").error(
                "%s: the store of idempotency keys cannot be used (%s): %s: %s",
                self._name,
                transition,
                type(error).__name__,
                error,
            )

    def outcomes(self) -> dict[str, int]:
        """Return the outcomes that were counted."""
        with self._lock:
            return dict(self._outcomes)

    def store(self) -> dict[str, TransitionSnapshot]:
        """Return how the store has answered."""
        with self._lock:
            return {transition: TransitionSnapshot(*counts) for transition, counts in self._store.items()}


class Asking:
    """One question to a store."""

    __slots__ = ("_began", "_figures", "_transition")

    def __init__(self, figures: IdempotencyFigures, transition: str) -> None:
        self._figures = figures
        self._transition = transition

    def __enter__(self) -> None:
        self._began = MONOTONIC.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A caller who has gone is no failure of the store.
        failure = error if isinstance(error, Exception) else None
        self._figures.asked(self._transition, self._began, MONOTONIC.now(), failure)
