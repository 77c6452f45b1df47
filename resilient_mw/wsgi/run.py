"""One running request: what passes between server and application, and what holds its slot.

The application's `start_response` is held back until its answer is known, which is when its first body bytes are
there or its body has ended. Until then it may call `start_response` again, be late, or fail, and the caller still
gets one clean response: servers differ in how they replace a response that was started (some append the headers),
and at least one reads status and headers as soon as the application has returned, before it iterates.
"""
# The contexts of one request are one subject in several files: private names keep the face of the user's object small.
# ruff: noqa: SLF001

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.verdict import is_bodiless, is_late, outcome_of, reported_reason
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import BodyTooLarge, DeadlineExceeded, ResilienceError
from resilient_mw.core.headers.deadlines import format_timeout_ms
from resilient_mw.core.problem import RefusalFigures
from resilient_mw.runtime.degrade import DEGRADED_HEADER
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.thread_context import ThreadContext

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


REPLACED = (CancelReason.DEADLINE, CancelReason.SHUTDOWN, CancelReason.CLIENT_DISCONNECT)
"""What an application may report that is no error of its own: it is answered in its place."""


class Run:
    """The record of one admitted request. From its making on it holds the slots; `end()` gives them back.

    Attributes:
        context: what `current()` returns while the application works on this request.
        method: of the request.
        started: whether a response has been handed to the server.
        complete: whether the application has handed out its whole response. A response without a body is complete with
            its head, and some servers take no more of it.
        failed: whether an exception of the application's own ended it.
        closed: whether its end has begun; it has one only.
        abandoned: where a run is left whose body the server dropped without closing it.
    """

    __slots__ = (
        "_admitted_at",
        "_entry",
        "_guard",
        "_head",
        "_left_at",
        "_resumed_at",
        "_server_start",
        "_server_write",
        "abandoned",
        "closed",
        "complete",
        "context",
        "failed",
        "method",
        "started",
    )

    _server_write: Callable[[bytes], object] | None  # what the server returned for the head

    def __init__(  # noqa: PLR0917  made for every request: keywords would cost
        self,
        guard: Guard,
        entry: RouteEntry,
        cost: int,
        context: ThreadContext,
        admitted_at: float,
        method: str,
        start_response: StartResponse,
        abandoned: deque[Run],
        tenant: str | None = None,
    ) -> None:
        self._guard = guard
        self._entry = entry
        context._cost = cost
        context._tenant = tenant
        self._admitted_at = admitted_at
        self._resumed_at = admitted_at
        self._left_at = admitted_at
        self._server_start = start_response
        self._head: tuple[str, list[tuple[str, str]], ExcInfo | None] | None = None
        self.context = context
        self.method = method
        self.abandoned = abandoned
        self.started = False
        self.complete = False
        self.failed = False
        self.closed = False

    # -- what the application calls ------------------------------------------------------------------------------------

    def start_response(
        self, status: str, headers: Sequence[tuple[str, str]], exc_info: ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Keep the response's head until the answer is known; afterwards pass on to the server, which raises.

        Raises:
            AssertionError: a second call without `exc_info`, which is what servers raise.
        """
        if self._head is None and not self.started:
            self._head = (status, list(headers), exc_info)
            return self.write
        if self.started:
            try:
                if exc_info is None:
                    return self._server_start(status, list(headers))
                return self._server_start(status, list(headers), exc_info)
            finally:
                exc_info = None  # no cycle between this frame and the traceback
        if exc_info is None:
            raise AssertionError("start_response() was called a second time without exc_info")
        self._head = (status, list(headers), exc_info)
        return self.write

    def write(self, data: bytes) -> None:
        """Send body bytes at once: the imperative way, for applications that need it.

        Raises:
            DeadlineExceeded: the deadline has passed.
        """
        if not data and not self.started:
            return
        if self.over():
            raise self.cut_off()
        if not self.started:
            self.start()
        if self._server_write is None:
            raise TypeError("the server's start_response() returned no write(): return the body instead")
        self._server_write(data)

    # -- what the body and the middleware call -------------------------------------------------------------------------

    def passes_whole(self, piece: list[bytes]) -> bool:  # noqa: ARG002  runs that can be their own body ask
        """Start the response if it is whole and in time; return whether this run is the body for the server.

        Args:
            piece: the only chunk of the response, in the application's own list or tuple.
        """
        return False

    def resume(self) -> None:
        """Note that the application goes on from here: the time before was the peer's."""
        self._resumed_at = self._guard.clock.now()

    def over(self) -> bool:
        """Note that the application has come back; return whether the deadline has passed, or its body was too large."""
        now = self._left_at = self._guard.clock.now()
        context = self.context
        return now >= context.deadline_at or (
            context.reason is not None and context.reason is CancelReason.BODY_TOO_LARGE
        )

    def hands_files_over(self) -> bool:
        """Return whether the server may send a file by itself: where nothing of ours has to see its pieces."""
        return self._entry.stream is None and not self.started

    def look(self) -> None:
        """Cancel the work if the caller has gone. The server learns of it by itself when it sends the next chunk."""
        context = self.context
        if context.reason is None and context.has_lost_its_caller(self._left_at):
            context.cancel(CancelReason.CLIENT_DISCONNECT)

    def cut_off(self) -> ResilienceError:
        """Return what tells the server, or the application that writes on, that the response ends here."""
        if self.context.reason is CancelReason.BODY_TOO_LARGE:
            return BodyTooLarge("the request body was too large, and the response had begun")
        return DeadlineExceeded("the deadline of this request passed before its response was complete")

    def start(self) -> None:
        """Hand the application's response head to the server: the answer is known."""
        self.started = True
        head, self._head = self._head, None
        if head is None:
            return  # it never called start_response(); the server says so in its own words
        status, headers, exc_info = head
        if self.context.degraded:
            headers.append((DEGRADED_HEADER, "1"))
        name = self._tells()
        if name is not None:
            headers = [pair for pair in headers if pair[0].lower() != name.lower()]
            # As of its last step: to a context whose response is complete there is no deadline any more.
            headers.append((name, format_timeout_ms(self.context.deadline_at - self._left_at)))
        if is_bodiless(self.method, status):
            self.complete = True
            self.context.look_no_more()
        if exc_info is None:
            self._server_write = self._server_start(status, headers)
            return
        self._server_write = self._server_start(status, headers, exc_info)

    def start_anew(self) -> StartResponse:
        """Forget what the application has said so far; return what takes the head of another answer."""
        self._head = None
        return self.start_response

    def replace(self) -> StartResponse:
        """Note that the request was over first; return the server's `start_response` for the answer that says so."""
        self.started = True
        self._head = None
        self.context.cancel(CancelReason.DEADLINE)
        return self._server_start

    def figures(self) -> RefusalFigures | None:
        """Return what the answer says of this instant in debug mode; None otherwise."""
        return self._guard.figures(self._entry, self.context.deadline_at)

    def is_expiry(self, error: BaseException) -> bool:
        """Take note of what left the application; return whether the request is over, with a response still to start."""
        self.over()
        if self.context.reason is CancelReason.BODY_TOO_LARGE:
            return not self.started
        reason = reported_reason(error, self._left_at, self.context.deadline_at)
        if reason is None:
            self.failed = True
            return False
        self.context.cancel(reason)
        return reason in REPLACED and not self.started

    def end(self) -> None:
        """Give the slots back and count the run. Exactly once, when its work has stopped."""
        self._head = None  # it may hold a traceback, which leads back here
        try:
            self.context.end()
        finally:
            self._give_back(self._guard.clock.now())

    def give_up(self) -> None:
        """End a run whose body was dropped: its work stopped when the application came back last."""
        self.closed = True
        self.failed = not self.complete
        self.context.end()
        self._give_back(self._left_at)

    def _give_back(self, at: float) -> None:
        pending = [future for future in self.context.held or () if not future.done()]
        if not pending:
            self._count(at)
            return
        # The work goes on in futures that the application named, and the last one to end gives the slots back. They
        # may end in several threads at once: exactly one of them finds no token left.
        tokens = [None] * (len(pending) - 1)

        def ended(_: object) -> None:
            try:
                tokens.pop()
            except IndexError:
                self._count(self._guard.clock.now())

        for future in pending:
            future.add_done_callback(ended)

    def _tells(self) -> str | None:
        return self._guard.policy.deadline_response_header

    def _ended(self, outcome: str, ran: float) -> None:
        context = self.context  # it knows whether it has lent its slots meanwhile
        self._guard.end(self._entry, context._cost, outcome, ran, context._tenant)

    def _count(self, at: float) -> None:
        context, guard, entry = self.context, self._guard, self._entry
        reason, ran = context.reason, at - self._admitted_at
        try:
            self._ended(outcome_of(reason, failed=self.failed, complete=self.complete), ran)
            if at >= guard.overload.look_at:
                guard.look()
            if reason is not None:
                guard.cancelled(entry, reason, ran)
            if self._left_at > context.deadline_at and is_late(
                self._resumed_at, self._left_at, context.deadline_at
            ):
                guard.late(entry, CancelReason.DEADLINE)
        except Exception as error:  # noqa: BLE001  the response is on its way, whatever our own code does
            guard.listeners.failed("release", error)
