"""Idempotency keys under ASGI where something is unusual: who cancels, where an application is mounted, what a body is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency_body import HashedBody
from resilient_mw.idempotency import State
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.stores.memory import MemoryIdempotencyStore
from tests.asgi.driver import Request, http_scope
from tests.asgi.test_idempotency import KEY, Payments, guarded, post, state_in
from tests.asgi.test_idempotency_inside import until
from tests.wsgi.helpers import queued, slots_taken

SHORT, LONG, OTHER = (b"short",), (b"a longer ", b"body"), (b"another long", b" body")


class TestCancelled:
    async def test_what_an_admission_inside_cancels_is_not_known(self) -> None:
        """The order turned round: the caller leaves, and the work ends without a word about what it has done."""
        app = Payments()
        app.go.clear()
        middleware = guarded(ResilienceMiddleware(app, ServerPolicy()))
        first = post(middleware).start()
        await app.inside.wait()
        first.disconnect()
        await first.end()
        assert (first.messages, state_in(middleware)) == ([], State.UNKNOWN)
        app.go.set()
        assert (await post(middleware).run()).status == 409
        assert app.runs == 1

    @pytest.mark.parametrize("afterwards", ["answers", "fails"])
    async def test_without_admission_too_the_answer_of_cancelled_work_is_not_recorded(
        self, afterwards: str
    ) -> None:
        """Who cancels is the server, or a middleware of somebody else."""

        async def answer(receive: Any, send: Any) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if afterwards == "fails":
                    raise RuntimeError("the connection is broken") from None
                await app.paid(receive, send)

        app = Payments(answer)
        middleware = guarded(app)
        first = post(middleware).start()
        await app.inside.wait()
        first.cancel()
        await first.end()
        assert state_in(middleware) is State.UNKNOWN

    async def test_b86_what_ends_a_worker_leaves_unknown(self) -> None:
        class End(BaseException):
            pass

        async def answer(_: Any, __: Any) -> None:
            raise End

        app = Payments(answer)
        middleware = guarded(app)
        first = await post(middleware).run()
        assert isinstance(first.raised, End)
        assert state_in(middleware) is State.UNKNOWN

    async def test_time_limits_of_the_handlers_own_are_no_cancel(self) -> None:
        async def answer(receive: Any, send: Any) -> None:
            try:
                async with asyncio.timeout(0.001):
                    await asyncio.Event().wait()
            except TimeoutError:
                await app.paid(receive, send)

        app = Payments(answer)
        middleware = guarded(app)
        await post(middleware).run()
        assert state_in(middleware) is State.COMPLETED


async def test_an_async_status_function_is_called_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine that a thread has made is awaited by nobody if the request is cancelled meanwhile."""

    async def status(_: Any) -> Any:
        return "not_done"

    app = Payments()
    app.go.clear()
    middleware = guarded(app, on_unknown=status)
    first = post(middleware).start()
    await app.inside.wait()
    first.cancel()
    await first.end()
    app.go.set()
    monkeypatch.delattr(asyncio, "to_thread")
    assert (await post(middleware).run()).status == 201


async def test_each_place_where_an_application_is_mounted_has_keys_of_its_own() -> None:
    app = Payments()
    middleware = guarded(app)
    for root in ("/shop", "/office", "/shop"):
        scope = http_scope(f"{root}/payments", "POST", headers=[KEY], root_path=root)
        await Request(middleware, scope, body=(b"{}",)).run()
    assert app.runs == 2


async def test_what_no_database_takes_does_not_come_to_the_store() -> None:
    app = Payments()
    middleware = guarded(app)
    scope = http_scope("/", "POST", headers=[KEY]) | {"path": "/pay\0\ud800ments"}
    await Request(middleware, scope).run()
    (record,) = await middleware.store.records()
    assert record.about.route == "/pay\ufffd?ments"


async def test_work_that_was_lost_while_it_waited_for_a_slot_is_not_begun() -> None:
    """Somebody else is at it by then, or an operator has released the key."""
    runs = {"POST": 0, "PUT": 0}
    fail, go = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, _: Any, send: Any) -> None:
        runs[scope["method"]] += 1
        if scope["method"] == "POST":
            await fail.wait()
            raise RuntimeError("no")
        await go.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    store, policy = MemoryIdempotencyStore(), ServerPolicy(limit=2, queue=5)
    middleware = guarded(app, store, heartbeat=0.01)
    outer = ResilienceMiddleware(middleware, policy)
    first = post(outer).start()
    await until(lambda: runs["POST"] == 1)
    repeat = post(outer).start()
    await until(lambda: middleware.joins.waiting == 1)
    others = [Request(outer, http_scope("/payments", "PUT")).start() for _ in range(2)]
    await until(lambda: runs["PUT"] == 1 and queued(policy) == 1)
    fail.set()
    await first.end()
    await until(lambda: runs["PUT"] == 2 and queued(policy) == 1)  # which is the repeat
    (record,) = store.records()
    assert store.release(record.record, running=True)
    await until(lambda: middleware.desk.figures.outcomes().get("lost") == 1)
    go.set()
    for each in (*others, repeat):
        await each.end()
    assert (repeat.status, runs["POST"]) == (409, 1)
    assert slots_taken(policy) == 0


class TestLongBodies:
    async def left_unknown(self, body: tuple[bytes, ...]) -> tuple[Payments, Any]:
        app = Payments()
        app.go.clear()
        middleware = guarded(app, on_unknown="retry", buffer_request=6)
        first = post(middleware, body=body).start()
        await app.inside.wait()
        first.cancel()
        await first.end()
        app.go.set()
        assert state_in(middleware) is State.UNKNOWN
        return app, middleware

    async def test_one_does_not_take_the_record_of_another_payload(self) -> None:
        """Else the short one's caller would be given the answer to the long one."""
        app, middleware = await self.left_unknown(SHORT)
        other = await post(middleware, body=LONG).run()
        again = await post(middleware, body=SHORT).run()
        assert (other.status, again.status) == (409, 201)
        assert app.bodies == [b"short", b"short"]
        assert (await post(middleware, body=SHORT).run()).body == again.body

    async def test_one_takes_the_record_of_a_long_one(self) -> None:
        app, middleware = await self.left_unknown(LONG)
        again, repeat = await post(middleware, body=LONG).run(), await post(middleware, body=LONG).run()
        assert (again.status, repeat.body, app.runs) == (201, again.body, 2)
        assert (await post(middleware, body=OTHER).run()).status == 422

    async def test_pieces_without_bytes_are_not_kept(self) -> None:
        left = 10_000

        async def receive() -> Any:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": b"" if left else b"{}", "more_body": left > 0}

        body = HashedBody(receive, Fingerprint())
        assert await body.read(100) is not None
        assert len(body._kept) == 1
        assert (await body.receive())["body"] == b"{}"


async def test_what_goes_on_after_the_answer_is_not_part_of_its_time() -> None:
    """`Retry-After` tells when there will be an answer."""
    told: list[float | None] = []

    async def answer(receive: Any, send: Any) -> None:
        await app.paid(receive, send)
        told.append(middleware.joins.typical("/payments"))

    app = Payments(answer)
    middleware = guarded(app)
    await post(middleware).run()
    assert told[0] is not None
    assert told == [middleware.joins.typical("/payments")]
