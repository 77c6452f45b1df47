"""Heartbeats of work in threads: one helper thread per process renews the leases of everything that is at work.

It is started by the first work that has a lease, and ends when there has been none for a while.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from resilient_mw.idempotency.actions import Renew
from resilient_mw.idempotency.record import Claim
from resilient_mw.idempotency.work import Work
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.forks import after_fork

LINGER: Final = 10.0
"""Seconds without work after which the thread ends."""
NAME: Final = "resilient_mw heartbeats"


class Beat:
    """The heartbeat of one work.

    Args:
        work: what runs. Two threads tell it things: hold `lock` while doing so.
        renew: asks the store.
        lose: called once, in the helper thread, if somebody else has the record.
        store: the same object for everything that asks the same store.

    Attributes:
        lock: around every call of the work.
        at: monotonic seconds of the next one.
        stopped: set it, and there is none.
    """

    __slots__ = ("_lose", "_renew", "_work", "at", "lock", "stopped", "store")

    def __init__(
        self, work: Work, renew: Callable[[Claim], bool], lose: Callable[[], None], store: object
    ) -> None:
        self._work = work
        self._renew = renew
        self._lose = lose
        self.store = store
        self.lock = threading.Lock()
        self.at = 0.0 if (at := work.next_wakeup()) is None else at
        self.stopped = False

    def beat(self, *, away: bool) -> bool:
        """Renew the lease if it is time for that.

        Args:
            away: whether the store could not be asked just now; then it is not asked.

        Returns:
            Whether the store could be asked.
        """
        with self.lock:
            actions = self._work.tick(MONOTONIC.now())
        answers = True
        for action in actions:
            if not isinstance(action, Renew):
                continue
            try:
                held = None if away else self._renew(action.claim)
            except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
                held, answers = None, False
            with self.lock:
                if held is None:
                    self._work.renew_failed(MONOTONIC.now())
                    lost = False
                else:
                    lost = bool(self._work.renewed(held))
            if lost:
                self._lose()
        with self.lock:
            at = self._work.next_wakeup()
        if at is None:
            self.stopped = True
        else:
            self.at = at
        return answers


class Heartbeats:
    """The helper thread, and what it looks after."""

    def __init__(self) -> None:
        self.forked()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: the work is the parent's, and so is the thread."""
        self._changed = threading.Condition(threading.Lock())
        self._beats: set[Beat] = set()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether the helper thread exists."""
        return self._thread is not None

    def add(self, beat: Beat) -> None:
        """Look after a work. Where no thread can be started, its lease ends by itself."""
        with self._changed:
            self._beats.add(beat)
            if self._thread is not None:
                self._changed.notify()
                return
            thread = threading.Thread(target=self._run, name=NAME, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no threads left, or the interpreter is about to end
                return
            self._thread = thread

    def remove(self, beat: Beat) -> None:
        """Look after it no longer."""
        beat.stopped = True
        with self._changed:
            self._beats.discard(beat)

    def _run(self) -> None:
        while (due := self._wait()) is not None:
            away: set[int] = set()
            for beat in due:
                # A store that is away costs its time-out once, and not once for each work.
                if not beat.stopped and not beat.beat(away=id(beat.store) in away):
                    away.add(id(beat.store))

    def _wait(self) -> list[Beat] | None:
        """Sleep until something is due; None: there has been nothing for long enough."""
        with self._changed:
            while True:
                self._beats = {beat for beat in self._beats if not beat.stopped}
                if not self._beats:
                    if not self._changed.wait(LINGER) and not self._beats:
                        # Under the lock: whoever adds something next starts a new thread.
                        self._thread = None
                        return None
                    continue
                now = MONOTONIC.now()
                due = [beat for beat in self._beats if beat.at <= now]
                if due:
                    return due
                self._changed.wait(min(beat.at for beat in self._beats) - now)


HEARTBEATS = Heartbeats()
"""Those of this process."""
