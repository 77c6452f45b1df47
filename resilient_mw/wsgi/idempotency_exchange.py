"""One request with a key under WSGI: obeys its machine, and ends the record on every way out."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.actions import (
    Abandon,
    Action,
    Actions,
    AskStatus,
    Begin,
    HandOver,
    HashBody,
    ReadBody,
    Refuse,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.record import Begun
from resilient_mw.idempotency.work import Work
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import current
from resilient_mw.runtime.handed import Handed
from resilient_mw.runtime.idempotency_desk import runs_as
from resilient_mw.runtime.lent_slots import Lent, lend, take_here
from resilient_mw.wsgi.idempotency_attempt import Attempt
from resilient_mw.wsgi.idempotency_handing import hand_over
from resilient_mw.wsgi.idempotency_input import HashedInput

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

    from resilient_mw.wsgi.idempotency import IdempotencyMiddleware


class IdempotencyExchange:
    """One request.

    Args:
        middleware: whose it is.
        environ: the request.
        start_response: the server's, or that of a middleware around.
        body: the request body.
        request: the machine.
        route: the template, for durations.
    """

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        body: HashedInput,
        *,
        request: IdempotentRequest,
        route: str,
    ) -> None:
        self._middleware = middleware
        self._desk = middleware.desk
        self._records = middleware.records
        self._environ = environ
        self._start_response = start_response
        self._body = body
        self._request = request
        self._route = route
        self._context = current()
        self._lent: list[Lent] = []
        self._replays = "replayed"  # what a replay counts as
        self._unknown = False
        self._attempt: Attempt | None = None

    def serve(self, actions: Actions) -> Iterable[bytes]:
        """Obey the machine until there is a response, and return its body.

        Args:
            actions: what it wants first.
        """
        answer: Iterable[bytes] | None = None
        try:
            while answer is None:
                following: Actions = ()
                for action in actions:
                    if isinstance(action, (Run, Replay, Refuse, HandOver)):
                        answer = self._answer(action)
                    else:
                        following = self._obey(action)
                if answer is None and not following:
                    answer = self._gone()
                actions = following
        except BaseException:
            if self._attempt is not None:
                self._attempt.rest()
            raise
        if self._attempt is not None and self._request.work is not None and not self._request.work.held:
            self._attempt.rest()
        return answer

    def _answer(self, action: Run | Replay | Refuse | HandOver) -> Iterable[bytes]:
        if isinstance(action, HandOver):
            handed = Handed(action.claim, self._body.digest)
            return hand_over(handed, self._middleware.app, self._environ, self._start_response, self._refuse)
        if isinstance(action, Replay):
            return self._replay(action.answer)
        if isinstance(action, Refuse):
            return self._refuse(action)
        attempt = self._attempt
        if attempt is None:  # the store is away
            attempt = self._attempt = self._new_attempt()
        refused = self._slots_again()
        if refused is not None:
            return self._refuse(refused)
        if self._request.work is not None and not self._request.work.held:  # it was lost in the queue
            return self._refuse(Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, self._request.lease))
        if self._context.cancelled:
            # The store, or the wait for a slot, has taken what was left: the key is as it was.
            attempt.end(Work.given_up)
            self._context.check()
        ran = runs_as(action.fence, unknown=self._unknown)
        return attempt.run(self._environ, self._start_response, ran)

    def _obey(self, action: Action) -> Actions:
        request = self._request
        if isinstance(action, ReadBody):
            fingerprint = self._body.fetch(action.most)
            return () if self._body.gone else request.body_read(fingerprint)
        if isinstance(action, HashBody):
            digest = self._body.drain()
            return () if digest is None else request.body_hashed(MONOTONIC.now(), digest)
        if isinstance(action, Begin):
            return self._begin(action)
        if isinstance(action, Wait):
            return self._wait(action)
        if isinstance(action, AskStatus):
            refused = self._slots_again()
            return self._ask_status(action) if refused is None else (refused,)
        self._records.end((action,), self._route, None)
        return ()

    def _begin(self, action: Begin) -> Actions:
        claim = action.claim
        try:
            outcome = self._records.begin(claim, self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        except BaseException:  # the server ends this thread: what was begun is not run
            self._records.end(
                (Abandon(claim, "unknown" if claim.take_unknown else "forget"),), self._route, None
            )
            raise
        self._unknown = isinstance(outcome, Begun) and outcome.unknown
        actions = self._request.began(MONOTONIC.now(), outcome)
        if self._request.work is not None:
            self._attempt = self._new_attempt()
        return actions

    def _new_attempt(self) -> Attempt:
        work = self._request.work
        if work is None:
            raise RuntimeError("nothing was begun")
        return Attempt(self._middleware, work, self._route, self._context, self._body)

    def _wait(self, action: Wait) -> Actions:
        """Wait for the end of the attempt that is at work, in this process or in another one. Meanwhile, hold no slot."""
        woken = threading.Lock()
        woken.acquire()
        joins = self._desk.joins
        place = joins.join(action.record, lambda: _release(woken))
        if place is None:
            return self._request.no_place()
        self._replays = "joined"
        try:
            if not self._lent:
                self._lent = lend(self._context)
            woken.acquire(timeout=max(0.0, action.look_at - MONOTONIC.now()))
        finally:
            joins.leave(place)
        if place.seen is not None:
            return self._request.looked(MONOTONIC.now(), place.seen)
        if self._context.cancel_reason is CancelReason.CLIENT_DISCONNECT:
            raise RequestCancelled(CancelReason.CLIENT_DISCONNECT)  # nobody waits for the answer any more
        try:
            record = self._records.look(action.record, self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        return self._request.looked(MONOTONIC.now(), record)

    def _slots_again(self) -> Refuse | None:
        """Have the slots again that were given back while waiting; if that cannot be, give the key up, and say why."""
        lent, self._lent = self._lent, []
        if not lent or self._attempt is None:
            return None
        try:
            refused = take_here(lent)
        except BaseException:
            self._attempt.end(Work.given_up)
            raise
        if refused is None or refused.reason is None:
            return None
        self._attempt.end(Work.given_up)
        return Refuse(refused.reason, refused.retry_after)

    def _ask_status(self, action: AskStatus) -> Actions:
        """Ask the operation itself; whoever fails does not know, and one that must be awaited cannot be asked here."""
        ask: Any = self._request.status_function
        attempt = self._attempt
        if attempt is None:
            raise RuntimeError("nothing was begun")
        self._replays = "settled"
        try:
            verdict = ask(action.about)
            if inspect.iscoroutine(verdict):
                verdict.close()
                raise TypeError("under WSGI a status function cannot be async")
        except Exception as error:  # noqa: BLE001  the user's function
            self._desk.listeners.guest_failed("on_unknown", error)
            verdict = "unknown"
        except BaseException:
            attempt.end(Work.given_up)
            raise
        told: list[Action] = []
        attempt.tell(lambda _: told.extend(self._request.told(verdict)))
        return tuple(told)

    def _replay(self, answer: StoredAnswer) -> list[bytes]:
        self._desk.count(self._route, self._replays)
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.replay_headers()
        ]
        self._start_response(_status_line(answer.status), headers)
        return [answer.body] if answer.body else []

    def _refuse(self, refuse: Refuse, start_response: StartResponse | None = None) -> list[bytes]:
        self._desk.count(self._route, refuse.reason.value)
        answer = self._middleware.answers.of(self._context)[refuse.reason]
        method = self._environ.get("REQUEST_METHOD", "")
        start = start_response or self._start_response
        return answer.start(method, self._environ, refuse.retry_after, start, None)

    def _gone(self) -> list[bytes]:
        """Answer somebody who has gone in the middle of his request: no server does without an answer."""
        self._start_response("400 Bad Request", [("Content-Type", "text/plain"), ("Content-Length", "0")])
        return []

    def _time(self) -> float:
        return self._desk.time(self._context)


def _release(woken: threading.Lock) -> None:
    try:
        woken.release()
    except RuntimeError:
        pass  # It was woken already.


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Unknown"
