"""The attempt at the work of a key under WSGI: keeps the lease, runs the application, and ends the record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.idempotency.actions import Action, Actions
from resilient_mw.idempotency.work import Work
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import RequestContext
from resilient_mw.runtime.heartbeats import HEARTBEATS, Beat
from resilient_mw.wsgi.idempotency_body import Answering, CapturedBody
from resilient_mw.wsgi.idempotency_input import HashedInput

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from resilient_mw.wsgi.idempotency import IdempotencyMiddleware

PLAIN = (list, tuple)


class Attempt:
    """Work under a record. Each of `completed` and `failed` is told once at most, and only one of them.

    Args:
        middleware: whose it is.
        work: the machine.
        route: the template, for durations.
        context: of the request.
        body: the request body.
    """

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        work: Work,
        route: str,
        context: RequestContext,
        body: HashedInput,
    ) -> None:
        self._app = middleware.app
        self._desk = middleware.desk
        self._records = middleware.records
        self._work = work
        self._route = route
        self._context: Any = context
        self._body = body
        self._ran: str | None = None
        self._began = 0.0
        self._beat = Beat(work, self._records.renew, self._lose, self._records.store)
        if work.next_wakeup() is not None:
            HEARTBEATS.add(self._beat)

    def run(self, environ: WSGIEnvironment, start_response: StartResponse, ran: str) -> Iterable[bytes]:
        """Run the application and return the body of its response.

        Args:
            environ: the request.
            start_response: the server's, or that of a middleware around.
            ran: what the work counts as if its answer is recorded.

        Raises:
            BaseException: what the application raises.
        """
        self._ran = ran
        self._began = MONOTONIC.now()
        answering = Answering(environ.get("REQUEST_METHOD", ""), start_response, self)
        try:
            result = self._app(environ, answering.start_response)
        except BaseException as error:
            answering.fail(error)
            raise
        if type(result) in PLAIN:
            for chunk in result:
                answering.piece(chunk)
            answering.complete()
            return result
        return CapturedBody(answering, result)

    def completed(self) -> None:
        """Have the answer recorded."""
        self._desk.joins.took(self._route, MONOTONIC.now() - self._began)
        cancelled, fingerprint = self._context.cancelled, self._body.digest()
        self.end(lambda work: work.ended(cancelled=cancelled, fingerprint=fingerprint))

    def failed(self, *, left: bool) -> None:
        """Have the record ended as one without an answer."""
        cancelled = left or self._context.cancelled
        self.end(lambda work: work.failed(cancelled=cancelled))

    def forgotten(self) -> None:
        """Let the lease end by itself."""
        self._beat.stopped = True

    def tell(self, say: Callable[[Work], Actions | None]) -> None:
        """Tell the work something, while the heartbeat does not."""
        with self._beat.lock:
            say(self._work)

    def end(self, say: Callable[[Work], Actions]) -> None:
        """Tell the work how it ends, and do what it wants then."""
        actions: list[Action] = []
        self.tell(lambda work: actions.extend(say(work)))
        self.rest()
        self._records.end(actions, self._route, self._ran)

    def rest(self) -> None:
        """Have the heartbeat end."""
        HEARTBEATS.remove(self._beat)

    def _lose(self) -> None:
        """Tell the work that somebody else does it: a thread cannot be stopped, but its callbacks can be called."""
        self._desk.count(self._route, "lost")
        cancel = getattr(self._context, "cancel", None)
        if cancel is not None and not getattr(self._context, "ended", False):
            cancel(CancelReason.CALLER)
