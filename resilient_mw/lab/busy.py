"""How many worker threads of an application are in its endpoints at once."""

from __future__ import annotations

import threading


class Busy:
    """Counts the threads that are inside of it.

    Attributes:
        peak: the most at once.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.peak = max(self.peak, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
