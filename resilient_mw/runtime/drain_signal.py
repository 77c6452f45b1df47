"""A drain that begins at a signal, and gives the server the signal afterwards.

At SIGTERM servers stop listening at once, so a delay in which load balancers could notice that an instance is not ready any
more has to come before. The handler here drains, waits, and then lets the server's own handler have the signal as if it came
only then.

Servers install handlers in two ways. A function given to `signal.signal` is called. Event loops are told by a byte in
a pipe instead (`signal.set_wakeup_fd`, which `loop.add_signal_handler` uses): that pipe is replaced by another one, and a
thread copies what comes out of it to the loop's, except the signal, for which the loop is only woken.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

AGAIN = 1.0
"""Seconds after which a handler on a loop is put in place again, if a server has put its own over it since the start-up."""
ASYNCIOS = "_sighandler_noop"


class DrainSignal:
    """The handler of one signal in this process.

    Args:
        number: the signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.drains: list[Callable[[], float]] = []
        self._previous: object = None
        self._wakeup = -1  # the pipe of the loop, and the one in its place
        self._reading = self._writing = -1
        self._waiting = False
        self._passed = False

    def install(self) -> None:
        """Take the place of the handler that is there, unless it is this one.

        Raises:
            ValueError: this is not the main thread, or the handler that is there was not made by Python code.
        """
        previous = signal.getsignal(self.number)
        if previous == self.handle:
            return
        if previous is None:
            raise ValueError(
                f"the handler of signal {self.number} was not made by Python code and cannot be called"
            )
        try:
            signal.signal(self.number, self.handle)
        except ValueError as error:
            raise ValueError(
                f"drain_on_signal() works in the main thread only, at the start: {error}"
            ) from None
        self._previous = previous
        self._divert()

    def handle(self, _number: int, frame: FrameType | None) -> None:
        """Drain and pass the signal on after the longest delay; a second signal does not wait."""
        if self._waiting:
            self._pass_on(frame)
            return
        self._waiting = True
        delay = max(drain() for drain in self.drains)
        if delay:
            with suppress(RuntimeError):  # no threads left, or the interpreter is about to end
                # No lock of `threading` is taken: this thread may hold it where the signal interrupted it.
                _thread.start_new_thread(self._repeat, (delay,))
                return
        self._pass_on(frame)

    def forked(self) -> None:
        """Give the place back in a forked child: thread and pipe are the parent's."""
        with suppress(ValueError, TypeError):
            if self._wakeup >= 0:
                signal.set_wakeup_fd(-1)
            signal.signal(self.number, self._previous)  # type: ignore[arg-type]

    def _divert(self) -> None:
        """Keep the signal from the event loop that would be woken by it."""
        if self._writing < 0:
            self._reading, self._writing = os.pipe()
            os.set_blocking(self._writing, False)
        before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        if before == self._writing:
            return
        first, self._wakeup = self._wakeup < 0, before
        if before < 0:
            signal.set_wakeup_fd(-1)
        elif first:
            _thread.start_new_thread(self._copy, ())

    def _copy(self) -> None:
        while numbers := os.read(self._reading, 64):
            # To loops a zero means: wake up, and nothing else.
            told = bytes(0 if number == self.number else number for number in numbers)
            with suppress(OSError):  # the loop has been closed, or is awake anyway
                os.write(self._wakeup, told)

    def _repeat(self, delay: float) -> None:
        threading.Event().wait(delay)
        main = threading.main_thread().ident
        if not self._passed and main is not None:
            signal.pthread_kill(main, self.number)

    def _pass_on(self, frame: FrameType | None) -> None:
        self._passed = True
        previous = self._previous
        if callable(previous):
            previous(self.number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(self.number, signal.SIG_DFL)
            os.kill(os.getpid(), self.number)
        if self._wakeup >= 0:
            with suppress(OSError):
                # asyncio's loops take the signal from the pipe, and their handler is a function that does nothing.
                by_pipe = getattr(previous, "__name__", "") == ASYNCIOS
                os.write(self._wakeup, bytes((self.number if by_pipe else 0,)))


_installed: dict[int, DrainSignal] = {}


def drain_on_signal(number: int, drain: Callable[[], float]) -> None:
    """Have `drain` called at a signal, and the server's own handler after as many seconds as it returns.

    Args:
        number: the signal; where None is given by users, SIGTERM.
        drain: begins a drain and returns its delay. Called in a signal handler: it must take no lock.

    Raises:
        ValueError: this is not the main thread, there is no such signal, or its handler cannot be called.
    """
    handler = _installed.get(number)
    if handler is None:
        handler = DrainSignal(number)
    handler.install()
    _installed[number] = handler
    if drain not in handler.drains:
        handler.drains.append(drain)
    if "asyncio" in sys.modules:
        from asyncio import get_running_loop

        with suppress(RuntimeError):
            # Some servers start the application before they install their own handlers.
            get_running_loop().call_later(AGAIN, handler.install)


def _forked() -> None:
    for handler in _installed.values():
        handler.forked()
    _installed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
