"""One request with a key under ASGI: obeys its machine, and ends the record on every way out."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from resilient_mw.asgi.idempotency_body import HashedBody, Receive
from resilient_mw.idempotency.actions import (
    Abandon,
    Action,
    Actions,
    AskStatus,
    Begin,
    Complete,
    HashBody,
    Pass,
    ReadBody,
    Refuse,
    Renew,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import current
from resilient_mw.runtime.joins import recorded

if TYPE_CHECKING:
    from resilient_mw.asgi.idempotency import IdempotencyMiddleware
    from resilient_mw.idempotency.work import Work

_under_way: set[asyncio.Task[Any]] = set()
"""What must be told to a store after its request has gone: the event loop itself keeps tasks weakly."""


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
        self._scope = scope
        self._body = body
        self._send = send
        self._request = request
        self._route = route
        self._heart: asyncio.Task[None] | None = None

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
        if isinstance(action, Begin):
            return await self._begin(action)
        if isinstance(action, Wait):
            return await self._wait(action)
        if isinstance(action, AskStatus):
            return await self._ask_status(action)
        if isinstance(action, Replay):
            await self._replay(action.answer)
        elif isinstance(action, Refuse):
            await self._middleware.refuse(self._scope, self._send, action.reason, action.retry_after)
        else:
            await self._write(action)
        return ()

    async def _begin(self, action: Begin) -> Actions:
        try:
            outcome = await self._middleware.store.begin(action.claim, timeout=self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        actions = self._request.began(MONOTONIC.now(), outcome)
        work = self._request.work
        if work is not None and work.next_wakeup() is not None:
            self._heart = asyncio.create_task(self._beat(work))
        return actions

    async def _wait(self, action: Wait) -> Actions:
        """Wait for the end of the attempt that is at work, in this process or in another one."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        place = self._middleware.joins.join(action.record, partial(_wake, loop, woken))
        if place is None:
            return self._request.no_place()
        try:
            await asyncio.wait((woken,), timeout=max(0.0, action.look_at - MONOTONIC.now()))
        finally:
            self._middleware.joins.leave(place)
        if place.seen is not None:
            return self._request.looked(MONOTONIC.now(), place.seen)
        try:
            record = await self._middleware.store.look(action.record, timeout=self._time())
        except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
            return self._request.store_failed()
        return self._request.looked(MONOTONIC.now(), record)

    async def _ask_status(self, action: AskStatus) -> Actions:
        """Ask the operation itself; whoever fails does not know."""
        ask: Any = self._request.status_function
        try:
            # A function that blocks must not hold up the loop; an async one only makes its coroutine there.
            verdict = await asyncio.to_thread(ask, action.about)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception:  # noqa: BLE001  the user's function
            verdict = "unknown"
        except BaseException:
            await self._end(self._work().given_up())
            raise
        return self._request.told(verdict)

    async def _run(self) -> None:
        work = self._work()
        began = MONOTONIC.now()
        try:
            await self._middleware.app(self._scope, self._body.receive, self._sending)
        except GeneratorExit:
            raise  # The garbage collector ends a forgotten request: nothing can be awaited, the lease ends by itself.
        except BaseException as error:
            cancelled = isinstance(error, asyncio.CancelledError) or current().cancelled
            await self._end(work.failed(cancelled=cancelled))
            raise
        else:
            self._middleware.joins.took(self._route, MONOTONIC.now() - began)
            await self._end(work.failed(cancelled=current().cancelled))

    async def _sending(self, message: Any) -> None:
        """Pass a message on; the last one of the answer waits for the record."""
        work, kind = self._work(), message["type"]
        last = False
        if kind == "http.response.start":
            work.head(message["status"], message.get("headers", ()))
        elif kind == "http.response.body":
            work.piece(message.get("body", b""))
            last = not message.get("more_body", False)
        elif kind in {"http.response.pathsend", "http.response.zerocopysend"}:
            work.body_elsewhere()
            last = not message.get("more_body", False)
        if last:
            await self._end(work.ended(cancelled=current().cancelled, fingerprint=self._body.digest()))
        await self._send(message)

    async def _replay(self, answer: StoredAnswer) -> None:
        headers = [(name.lower(), value) for name, value in answer.replay_headers()]
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self._send({"type": "http.response.body", "body": answer.body or b"", "more_body": False})
        except OSError:
            pass  # The caller has gone.

    async def _beat(self, work: Work) -> None:
        """Keep the lease while the work runs."""
        while (at := work.next_wakeup()) is not None:
            await asyncio.sleep(max(0.0, at - MONOTONIC.now()))
            for action in work.tick(MONOTONIC.now()):
                if not isinstance(action, Renew):
                    continue
                try:
                    held = await self._middleware.store.renew(
                        action.claim, timeout=self._middleware.policy.store_timeout
                    )
                except Exception:  # noqa: BLE001  whatever a store raises: it could not do it
                    work.renew_failed(MONOTONIC.now())
                else:
                    work.renewed(held)

    async def _end(self, actions: Actions) -> None:
        for action in actions:
            await self._write(action)

    async def _write(self, action: Action) -> None:
        """Have the record ended, also while the request is cancelled."""
        if not isinstance(action, (Complete, Abandon)):
            return
        task = asyncio.create_task(self._told(self._ending(action)))
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        if self._request.work is not None:
            await asyncio.shield(task)
        # Else the store is away, and is asked in case that it had begun what it could not say: nobody waits for that.

    async def _ending(self, action: Complete | Abandon) -> None:
        store, claim = self._middleware.store, action.claim
        timeout = self._middleware.policy.store_timeout
        seen = None
        try:
            if isinstance(action, Abandon):
                await store.abandon(claim, action.ending, timeout=timeout)
            elif await store.complete(claim, action.answer, fingerprint=action.fingerprint, timeout=timeout):
                seen = recorded(claim, action.answer, action.fingerprint)
        finally:
            self._middleware.joins.ended(claim.record, seen)

    async def _told(self, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except Exception:  # noqa: BLE001, S110  whatever a store raises: it could not do it
            pass  # The lease ends by itself, and the outcome is unknown then.

    def _work(self) -> Work:
        if self._request.work is None:
            raise RuntimeError("nothing was begun")
        return self._request.work

    def _time(self) -> float:
        """Return the seconds that a question to the store may take."""
        return min(self._middleware.policy.store_timeout, current().remaining())


def _wake(loop: asyncio.AbstractEventLoop, woken: asyncio.Future[None]) -> None:
    def done() -> None:
        if not woken.done():
            woken.set_result(None)

    try:
        loop.call_soon_threadsafe(done)
    except RuntimeError:
        pass  # That loop is closed: nobody waits there any more.
