"""Idempotency keys under ASGI inside admission and beside it: slots of those who wait, lost work, refusals, figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.core import ports
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.events import KeyUsed
from resilient_mw.core.pages import RefusalPage
from resilient_mw.idempotency import State
from resilient_mw.runtime.guard import guard_of
from tests.asgi.driver import Request, budget, http_scope
from tests.asgi.test_idempotency import KEY, Away, Payments, guarded, post, state_in, waits
from tests.wsgi.helpers import outcomes, queued, refused, slots_taken

pytestmark = pytest.mark.usefixtures("own_time")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it has not happened within ten seconds")


async def first_at_work(app: Payments, outer: Any) -> Request:
    app.go.clear()
    first = post(outer).start()
    await app.inside.wait()
    return first


class TestSlots:
    async def test_b85_those_who_wait_hold_no_slot(self) -> None:
        """One slot more than the first one's: twenty repeats wait, and another caller is served meanwhile."""
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = await first_at_work(app, outer)
        repeats = []
        for number in range(20):
            repeats.append(post(outer).start())
            await waits(middleware, number + 1)
        assert slots_taken(policy) == 1
        other = Request(outer, http_scope("/payments", "PUT")).start()
        await until(lambda: app.runs == 2)
        app.go.set()
        await first.end()
        await other.end()
        for repeat in repeats:
            await repeat.end()
        assert app.runs == 2
        assert {repeat.header("idempotency-replayed") for repeat in repeats} == {"true"}
        assert {repeat.raised for repeat in repeats} == {None}
        assert slots_taken(policy) == 0

    async def test_who_has_to_run_after_all_takes_a_slot_first(self) -> None:
        """B86: the first one fails; of those who wait one runs, with a slot, and the others get its answer."""

        async def answer(receive: Any, send: Any) -> None:
            assert 1 <= slots_taken(policy) <= 2  # the first one's may be on its way back
            if app.runs == 1:
                raise RuntimeError("no")
            await app.paid(receive, send)

        app = Payments(answer)
        policy = ServerPolicy(limit=2, queue=10)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = await first_at_work(app, outer)
        repeats = []
        for number in range(5):
            repeats.append(post(outer).start())
            await waits(middleware, number + 1)
        app.go.set()
        await first.end()
        for repeat in repeats:
            await repeat.end()
        assert isinstance(first.raised, RuntimeError)
        assert app.runs == 2
        assert {repeat.body for repeat in repeats} == {b'{"number":2}'}
        assert slots_taken(policy) == queued(policy) == 0
        assert outcomes(policy) == {"error": 1, "completed": 5, "lent": 1}

    async def test_no_slot_for_who_has_to_run_frees_the_key(self) -> None:
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = await first_at_work(app, outer)
        repeat = post(outer).start()
        await waits(middleware)
        others = [Request(outer, http_scope("/payments", "PUT")).start()]
        await until(lambda: app.runs == 2)
        # The first one is gone, and somebody else has its slot before the repeat can.
        middleware.joins.ended = lambda *_: None  # type: ignore[method-assign]
        first.cancel()
        app.answer = None  # type: ignore[assignment]
        await first.end()
        others.append(Request(outer, http_scope("/payments", "PUT")).start())
        await until(lambda: app.runs == 3)
        assert slots_taken(policy) == 2
        assert guard_of(policy).controller.waiting == 0
        await middleware.store.release(middleware.store._store.records()[0].record)  # type: ignore[attr-defined]
        await repeat.end()
        assert (repeat.status, repeat.header("x-refusal-reason")) == (503, "queue_full")
        assert refused(policy) == {"queue_full": 1}
        assert state_in(middleware) is None
        for other in others:
            other.cancel()
            await other.end()
        assert slots_taken(policy) == 0

    async def test_the_deadline_covers_the_waiting(self) -> None:
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = await first_at_work(app, outer)
        repeat = await post(outer, KEY, budget(200)).run()
        assert repeat.status in {409, 504}
        assert middleware.joins.waiting == 0
        assert slots_taken(policy) == 1
        app.go.set()
        await first.end()
        assert first.status == 201

    async def test_a_caller_who_leaves_while_waiting_leaves_nothing(self) -> None:
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = await first_at_work(app, outer)
        repeat = post(outer).start()
        await waits(middleware)
        repeat.disconnect()
        await repeat.end()
        assert middleware.joins.waiting == 0
        assert slots_taken(policy) == 1
        app.go.set()
        await first.end()
        assert app.runs == 1
        assert slots_taken(policy) == 0

    async def test_outside_admission_too(self) -> None:
        """Its refusals are not recorded, its deadline leaves the outcome unknown."""
        app = Payments()
        policy = ServerPolicy(limit=1, queue=0, deadline_default=0.2)
        middleware = guarded(ResilienceMiddleware(app, policy))
        app.go.clear()
        first = post(middleware).start()
        await app.inside.wait()
        full = await post(middleware, (KEY[0], b"k-2")).run()
        assert full.header("x-refusal-reason") == "queue_full"
        await first.end()
        assert first.status == 504
        assert state_in(middleware) is State.UNKNOWN


class TestLost:
    async def test_work_that_somebody_else_has_is_cancelled(self) -> None:
        """Its record was released by hand: it is told so by the next heartbeat, and its caller gets a 409."""
        app = Payments()
        middleware = guarded(app, lease=0.5, heartbeat=0.05)
        first = await first_at_work(app, middleware)
        store = middleware.store._store  # type: ignore[attr-defined]
        assert store.release(store.records()[0].record, running=True)
        await first.end()
        assert first.raised is None
        assert first.status == 409
        assert int(first.header("retry-after") or 0) == 1
        assert state_in(middleware) is None
        assert middleware.desk.figures.outcomes() == {"lost": 1, "idempotency_in_progress": 1}

    async def test_what_it_answers_in_its_clean_up_is_dropped(self) -> None:
        app = Payments()
        middleware = guarded(app, lease=0.5, heartbeat=0.05)

        async def stubborn(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                await app.paid(receive, send)

        middleware.app = stubborn
        first = await first_at_work(app, middleware)
        store = middleware.store._store  # type: ignore[attr-defined]
        store.release(store.records()[0].record, running=True)
        await first.end()
        assert first.status == 409
        assert store.records() == []

    async def test_a_cancellation_by_the_server_stays_one(self) -> None:
        app = Payments()
        middleware = guarded(app, lease=0.5, heartbeat=0.05)
        first = await first_at_work(app, middleware)
        first.cancel()
        await first.end()
        assert isinstance(first.raised, asyncio.CancelledError)


class TestRefusals:
    async def test_pages_of_the_origins_of_admission_can_read_them(self) -> None:
        origin = (b"origin", b"https://shop.example")
        middleware = guarded(Payments(), use="required")
        outer = ResilienceMiddleware(middleware, ServerPolicy(cors_origins=["https://shop.example"]))
        answer = await post(outer, origin).run()
        assert answer.status == 400
        assert answer.header("access-control-allow-origin") == "https://shop.example"
        alone = await post(middleware, origin).run()
        assert (alone.status, alone.header("access-control-allow-origin")) == (400, None)

    async def test_the_application_draws_them(self) -> None:
        def page(refused: Any) -> RefusalPage:
            return RefusalPage(f"<h1>{refused.reason}</h1>", "text/html")

        outer = ResilienceMiddleware(guarded(Payments(), use="required"), ServerPolicy(refusal_page=page))
        answer = await post(outer, (b"x-a", b"1")).run()
        assert (answer.status, answer.body) == (400, b"<h1>idempotency_key_missing</h1>")
        assert answer.header("x-refusal-reason") == "idempotency_key_missing"


class TestFigures:
    async def test_each_request_with_a_key_is_counted_once(self) -> None:
        told: list[Any] = []
        app = Payments()
        middleware = guarded(app, listeners=[told.append], name="pay", wait="conflict")
        first = await first_at_work(app, middleware)
        await post(middleware).run()
        app.go.set()
        await first.end()
        await post(middleware).run()
        await post(middleware, body=(b"other",)).run()
        await Request(middleware, http_scope("/payments", "POST")).run()
        expected = {
            "idempotency_in_progress": 1,
            "first": 1,
            "replayed": 1,
            "idempotency_key_reused": 1,
        }
        (figures,) = [each for each in ports.idempotency_snapshots() if each.app == "pay"]
        assert figures.outcomes == expected
        assert told == [KeyUsed("/payments", outcome) for outcome in expected]
        assert {name: each.asked for name, each in figures.store.items()} == {
            "begin": 4,
            "look": 0,
            "renew": 0,
            "complete": 1,
            "abandon": 0,
        }
        assert figures.store["complete"].microseconds >= 0
        assert (figures.waiting, figures.places) == (0, 1000)

    async def test_a_store_that_fails_is_counted(self) -> None:
        middleware = guarded(Payments(), Away("begin", "complete"))
        await post(middleware).run()
        await until(lambda: middleware.desk.figures.store()["abandon"].asked == 1)
        assert middleware.desk.figures.store()["begin"].failed == 1
        assert middleware.desk.figures.outcomes() == {"idempotency_store_unavailable": 1}
        unrecorded = guarded(Payments(), Away("complete"))
        await post(unrecorded).run()
        assert unrecorded.desk.figures.outcomes() == {"unrecorded": 1}
        unprotected = guarded(Payments(), Away("begin"), store_down="open")
        await post(unprotected).run()
        assert unprotected.desk.figures.outcomes() == {"unprotected": 1}


async def test_other_scopes_pass() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])
        if scope["type"] == "lifespan":
            await send({"type": "lifespan.startup.complete"})

    middleware = guarded(app)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    for kind in ("lifespan", "websocket", "of.tomorrow"):
        await middleware({"type": kind}, None, send)
    assert seen == ["lifespan", "websocket", "of.tomorrow"]
    assert sent == [{"type": "lifespan.startup.complete"}]
    assert middleware.desk.started


async def test_files_trailers_and_hints_pass() -> None:
    messages = [
        {"type": "http.response.early_hint", "links": [b"</a>"]},
        {"type": "http.response.start", "status": 200, "headers": [], "trailers": True},
        {"type": "http.response.pathsend", "path": "/a"},
        {"type": "http.response.trailers", "headers": [], "more_trailers": False},
    ]

    async def answer(_: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    middleware = guarded(Payments(answer))
    assert (await post(middleware).run()).messages == messages
    second = await post(middleware).run()
    assert second.status == 409
    assert b"idempotency_body_not_kept" in second.body


async def test_a_mark_that_nothing_leads_to_is_named() -> None:
    from resilient_mw.idempotency import idempotent_route

    @idempotent_route(required=True)
    def forgotten() -> None: ...

    middleware = guarded(Payments())
    with pytest.warns(ResilienceWarning, match="forgotten"):
        await post(middleware).run()
    del forgotten


def test_a_policy_is_one() -> None:
    with pytest.raises(ValueError, match="must be an IdempotencyPolicy"):
        IdempotencyMiddleware(Payments(), ServerPolicy(), store=Away())  # type: ignore[arg-type]
