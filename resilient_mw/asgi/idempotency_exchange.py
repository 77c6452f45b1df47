"""One request with a key under ASGI: obeys its machine, and ends the record on every way out."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.idempotency_body import HashedBody, Receive
from resilient_mw.asgi.idempotency_handing import hand_over
from resilient_mw.asgi.idempotency_records import wake
from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.actions import (
    Abandon,
    Action,
    Actions,
    AskStatus,
    Begin,
    Complete,
    HandOver,
    HashBody,
    Pass,
    ReadBody,
    Refuse,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.record import Begun
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import current
from resilient_mw.runtime.handed import Handed
from resilient_mw.runtime.idempotency_desk import runs_as
from resilient_mw.runtime.lent_slots import Lent, lend, take

if TYPE_CHECKING:
    from resilient_mw.asgi.idempotency import IdempotencyMiddleware
    from resilient_mw.idempotency.work import Work

SHIELD_LOOK = 0.05
"""Seconds between two looks at a shielded section that holds back the end of lost work."""


class IdempotencyExchange:
    """One request.

    Args:
        middleware: whose it is.
        scope: the ASGI scope.
        body: the request body.
        send: the server's, or that of a middleware around.
        request: the machine.
        route: the template, for durations.
    """

    def __init__(
        self,
        middleware: IdempotencyMiddleware,
        scope: Any,
        body: HashedBody,
        send: Any,
        *,
        request: IdempotentRequest,
        route: str,
    ) -> None:
        self._middleware = middleware
        self._records = middleware.records
        self._scope = scope
        self._body = body
        self._send = send
        self._request = request
        self._route = route
        self._context = current()
        self._heart: asyncio.Task[None] | None = None
        self._lent: list[Lent] = []
        self._replays = "replayed"  # what a replay counts as
        self._ran: str | None = None  # what the work counts as
        self._unknown = False
        self._started = False
        self._runs_in: asyncio.Task[Any] | None = None  # while it can be cancelled
        self._before, self._began = 0, 0.0  # cancels of it that are older than the work; when that began
        self._lost = False

    async def serve(self, actions: Actions, receive: Receive) -> None:
        """Obey the machine until the request is answered.

        Args:
            actions: what it wants first.
            receive: the server's, for a request that passes.
        """
        try:
            while actions:
                following: Actions = ()
                for action in actions:
                    if isinstance(action, Pass):
                        await self._middleware.app(self._scope, receive, self._send)
                    elif isinstance(action, Run):
                        self._ran = runs_as(action.fence, unknown=self._unknown)
                        if await self._slots_again():
                            await self._run()
                    else:
                        following = await self._obey(action)
                actions = following
        finally:
            if self._heart is not None:
                self._heart.cancel()

    async def _obey(self, action: Action) -> Actions:
        request = self._request
        if isinstance(action, ReadBody):
            fingerprint = await self._body.read(action.most)
            return () if self._body.gone else request.body_read(fingerprint)
        if isinstance(action, HashBody):
            digest = await self._body.drain()
            return () if digest is None else request.body_hashed(MONOTONIC.now(), digest)
        if isinstance(action, HandOver):
            handed = Handed(action.claim, self._body.digest)
            return await hand_over(handed, self._middleware.app, self._scope, self._body.receive, self._send)
        if isinstance(action, Begin):
            return await self._begin(action)
        if isinstance(action, Wait):
            return await self._wait(action)
        if isinstance(action, AskStatus):
            return await self._ask_status(action) if await self._slots_again() else ()
        if isinstance(action, Replay):
            await self._replay(action.answer)
        elif isinstance(action, Refuse):
            await self._refuse(action.reason, action.retry_after)
        elif isinstance(action, (Complete, Abandon)):
            # While the store is away it is asked in case that it had begun what it could not say: nobody waits for that.
            work = request.work
            await self._records.end((action,), self._route, None, wait=work is not None)
        return ()

    async def _begin(self, action: Begin) -> Actions:
        try:
            outcome = await self._records.begin(action.claim, self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        self._unknown = isinstance(outcome, Begun) and outcome.unknown
        actions = self._request.began(MONOTONIC.now(), outcome)
        work = self._request.work
        if work is not None and work.next_wakeup() is not None:
            self._heart = asyncio.create_task(self._records.keep(work, self._lose))
        return actions

    async def _wait(self, action: Wait) -> Actions:
        """Wait for the end of the attempt that is at work, in this process or in another one. Meanwhile, hold no slot."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        joins = self._middleware.joins
        place = joins.join(action.record, partial(wake, loop, woken))
        if place is None:
            return self._request.no_place()
        self._replays = "joined"
        try:
            if not self._lent:
                self._lent = lend(self._context)
            await asyncio.wait((woken,), timeout=max(0.0, action.look_at - MONOTONIC.now()))
        finally:
            joins.leave(place)
        if place.seen is not None:
            return self._request.looked(MONOTONIC.now(), place.seen)
        try:
            record = await self._records.look(action.record, self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        return self._request.looked(MONOTONIC.now(), record)

    async def _slots_again(self) -> bool:
        """Have the slots again that were given back while waiting; if that cannot be, give the key up, and refuse."""
        lent, self._lent = self._lent, []
        if not lent:
            return True
        try:
            refused = await take(lent)
        except BaseException:
            await self._end(self._work().given_up(), None)
            raise
        if refused is None or refused.reason is None:
            return True
        await self._end(self._work().given_up(), None)
        await self._refuse(refused.reason, refused.retry_after)
        return False

    async def _ask_status(self, action: AskStatus) -> Actions:
        """Ask the operation itself; whoever fails does not know."""
        ask: Any = self._request.status_function
        self._replays = "settled"
        try:
            # A function that blocks must not hold up the loop. What an async one makes there nobody would await after a cancel.
            here = inspect.iscoroutinefunction(ask)
            verdict = ask(action.about) if here else await asyncio.to_thread(ask, action.about)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception:  # noqa: BLE001  the user's function
            verdict = "unknown"
        except BaseException:
            await self._end(self._work().given_up(), None)
            raise
        return self._request.told(verdict)

    async def _run(self) -> None:
        work = self._work()
        if not work.held:  # it was lost in the queue
            await self._tell_lost()
            return
        self._began = MONOTONIC.now()
        task = self._runs_in = asyncio.current_task()
        self._before = 0 if task is None else task.cancelling()
        try:
            await self._middleware.app(self._scope, self._body.receive, self._sending)
        except GeneratorExit:
            raise  # The garbage collector ends a forgotten request: nothing can be awaited, the lease ends by itself.
        except BaseException as error:
            stopped = isinstance(error, asyncio.CancelledError)
            # An `Exception` says of the work that it has failed; everything else has cut it off.
            cancelled = self._stopped() or not isinstance(error, Exception)
            self._runs_in = None
            if self._lost and task is not None and task.uncancel() <= self._before and stopped:
                await self._tell_lost()
                return
            await self._end(work.failed(cancelled=cancelled), self._ran)
            raise
        self._runs_in = None
        if self._lost and task is not None:
            task.uncancel()
            await self._tell_lost()
            return
        # Who ends without a whole answer, and without an error, was told that nobody waits for it: what it has done is not known.
        await self._end(work.failed(cancelled=True), self._ran)

    async def _sending(self, message: Any) -> None:
        """Pass a message on; the last one of the answer waits for the record."""
        if self._lost:
            await asyncio.sleep(0)  # What is no longer ours to do has no answer.
            return
        work, kind = self._work(), message["type"]
        last = False
        if kind == "http.response.start":
            self._started = True
            work.head(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            work.piece(message.get("body", b""))
            last = not message.get("more_body", False)
        elif kind in {"http.response.pathsend", "http.response.zerocopysend"}:
            work.body_elsewhere()
            last = not message.get("more_body", False)
        if last:
            self._middleware.joins.took(self._route, MONOTONIC.now() - self._began)
            await self._end(work.ended(cancelled=self._stopped(), fingerprint=self._body.digest()), self._ran)
        await self._send(message)

    def _stopped(self) -> bool:
        """Return whether the work was cancelled: by the admission around, or by whoever else has its task."""
        task = self._runs_in
        return self._context.cancelled or (task is not None and task.cancelling() > self._before)

    async def _refuse(self, reason: Reason, retry_after: int | None) -> None:
        self._middleware.desk.count(self._route, reason.value)
        refusal = self._middleware.refusals.of(self._context)[reason]
        await refusal.send(self._scope, self._send, retry_after, None)

    async def _tell_lost(self) -> None:
        """Say that somebody else is at work; where the head of the answer has left, the server cuts the rest off."""
        if not self._started:
            await self._refuse(Reason.IDEMPOTENCY_IN_PROGRESS, self._request.lease)

    async def _replay(self, answer: StoredAnswer) -> None:
        self._middleware.desk.count(self._route, self._replays)
        headers = [(name.lower(), value) for name, value in answer.replay_headers()]
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "http.response.body", "body": answer.body or b"", "more_body": False})
        except OSError:
            pass  # The caller has gone.

    async def _lose(self) -> None:
        """Cancel the handler: somebody else does its work. Not inside a section that must complete."""
        self._middleware.desk.count(self._route, "lost")
        while getattr(self._context, "shielded", False):  # noqa: ASYNC110  a section tells nobody that it is left
            await asyncio.sleep(SHIELD_LOOK)
        if self._runs_in is not None:
            self._lost = True
            self._runs_in.cancel()

    async def _end(self, actions: Actions, ran: str | None) -> None:
        await self._records.end(actions, self._route, ran)

    def _work(self) -> Work:
        if self._request.work is None:
            raise RuntimeError("nothing was begun")
        return self._request.work

    def _time(self) -> float:
        return self._middleware.desk.time(self._context)
