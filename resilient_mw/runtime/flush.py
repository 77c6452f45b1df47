"""Events on their way to listeners: outside every lock, and a broken listener does no harm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilient_mw.core.events import Event, GuardFailed
from resilient_mw.core.ports import Clock

LOG_EVERY = 60.0
"""Seconds between two log lines about the same failing part."""


class Listeners:
    """Hands events to the policy's listeners, and keeps count of what went wrong in our own code.

    Attributes:
        errors: failures so far: of listeners and other functions of the user's, and of guards that let a request pass.
    """

    def __init__(self, listeners: Sequence[Callable[[Event], None]], clock: Clock) -> None:
        self._listeners = tuple(listeners)
        self._clock = clock
        self._logged: dict[str, float] = {}
        self.errors = 0

    def change(self, listeners: Sequence[Callable[[Event], None]]) -> None:
        """Have others listen from now on."""
        self._listeners = tuple(listeners)

    def __bool__(self) -> bool:
        """Return whether anybody listens, so that nobody builds an event for nothing."""
        return bool(self._listeners)

    def emit(self, event: Event) -> None:
        """Tell every listener."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001  a listener is a guest: whatever it raises stays with it
                self._count("listener", error)

    def failed(self, where: str, error: Exception) -> None:
        """Count a failure of our own code that let a request pass, log it at most once a minute, and tell listeners."""
        self._count(where, error)
        if self._listeners:
            self.emit(GuardFailed(where, error))

    def guest_failed(self, where: str, error: BaseException) -> None:
        """Count a failure of a function of the user's that we have called, and log it at most once a minute."""
        self._count(where, error)

    def _count(self, where: str, error: BaseException) -> None:
        self.errors += 1
        now = self._clock.now()
        if now - self._logged.get(where, -LOG_EVERY) >= LOG_EVERY:
            self._logged[where] = now
            import logging  # only loaded when something is wrong

            logging.getLogger("resilient_mw").error(
                "%s failed; what it was meant for went on without it", where, exc_info=error
            )
