"""A run whose response may come in one piece: it is its own body then, and nothing of ours is made for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resilient_mw.admission.entry import COMPLETED
from resilient_mw.admission.verdict import is_bodiless
from resilient_mw.wsgi.run import Run


class WholeRun(Run):
    """A run with nothing to do between chunks. It is made with the arguments of a `Run`."""

    __slots__ = ("_piece",)

    _piece: Sequence[bytes]  # set when it becomes the body

    def passes_whole(self, piece: list[bytes]) -> bool:
        """Start the response if it is whole and in time; return whether this run is the body for the server."""
        context, head = self.context, self._head
        self._left_at = now = self._guard.clock.now()
        # Else something is to be said or done first: see Run.start() and ThreadContext.complete().
        if head is None or now >= context.deadline_at or context.hooks is not None or context.degraded:
            return False
        status, headers, exc_info = head
        if exc_info is not None:
            return False
        # The head stays: once the response has started nobody asks for it, and it holds no error.
        self.started = self.complete = context.ended = True
        self._piece = piece
        self._server_start(status, headers)
        return True

    def start(self) -> None:
        """Hand the application's response head to the server, with no detour if it is a usual one."""
        head = self._head
        # Nobody tells the rest of a deadline where such runs are made.
        if head is None or head[2] is not None or self.context.degraded or is_bodiless(self.method, head[0]):
            super().start()
            return
        self.started = True
        self._head = None
        self._server_write = self._server_start(head[0], head[1])

    # -- what the server calls, once it is the body --------------------------------------------------------------------

    def __iter__(self) -> Iterator[bytes]:
        # Nothing of the application is left to run, so nothing of ours has to stand between.
        return iter(self._piece)

    def __len__(self) -> int:
        return 1

    def close(self) -> None:
        """End the run. Once, however often the server calls it."""
        if self.closed:
            return
        self.closed = True
        self._piece = ()
        context = self.context
        if context.held is not None or context.reason is not None:
            self.end()
        else:
            self._end_at_once()

    def end(self) -> None:
        """Give the slots back and count the run, with no detour if it was a usual one."""
        context = self.context
        if (
            self.complete
            and not self.failed
            and context.ended
            and context.hooks is None
            and context.reason is None
            and context.held is None
            and self._left_at <= context.deadline_at
        ):
            self._end_at_once()
        else:
            super().end()

    def _end_at_once(self) -> None:
        guard, context = self._guard, self.context
        try:
            at = guard.clock.now()
            guard.end(
                self._entry, context._cost, COMPLETED, at - self._admitted_at, context._tenant, at  # noqa: SLF001
            )  # fmt: skip
            if at >= guard.overload.look_at:
                guard.look()
        except Exception as error:  # noqa: BLE001  the response is on its way, whatever our own code does
            guard.listeners.failed("release", error)

    def __del__(self) -> None:
        # As of a body that the server has dropped: no lock may be taken here.
        if not self.closed:
            self.abandoned.append(self)
