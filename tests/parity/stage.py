"""Virtual time for threads: one of them runs at a time, and the clock moves when all of them wait."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable

from tests.runtime.virtual_time import VirtualClock


class Stage:
    """Runs threads in virtual time, in order of the instants for which they wait.

    Attributes:
        clock: their clock.
    """

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._count = 0
        self._parked = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def wait_until(self, instant: float) -> None:
        """Let others run until an instant. Called by the one thread that runs."""
        turn = threading.Event()
        heapq.heappush(self._waiting, (instant, self._count, turn))
        self._count += 1
        self._parked.release()
        assert turn.wait(60), "nobody gave this thread its turn"

    def run(self, parts: Iterable[tuple[float, Callable[[], None]]]) -> None:
        """Run each part in a thread of its own, from its instant on, until all have ended."""
        threads = []
        for instant, part in parts:
            thread = threading.Thread(target=self._play, args=(instant, part), daemon=True)
            threads.append(thread)
            thread.start()
            self._wait_for_the_one_that_runs()
        while self._waiting:
            instant, _, turn = heapq.heappop(self._waiting)
            self.clock.move_to(max(instant, self.clock.now()))
            turn.set()
            self._wait_for_the_one_that_runs()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if self._errors:
            raise self._errors[0]

    def _play(self, instant: float, part: Callable[[], None]) -> None:
        try:
            self.wait_until(instant)
            part()
        except BaseException as error:  # noqa: BLE001  it is raised again in the thread of the test
            self._errors.append(error)
        finally:
            self._parked.release()

    def _wait_for_the_one_that_runs(self) -> None:
        assert self._parked.acquire(timeout=60), "a thread neither waits nor ends"
