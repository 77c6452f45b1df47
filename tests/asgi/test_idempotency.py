"""Idempotency keys under ASGI: the work happens once, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import (
    IdempotencyPolicy,
    IdempotencyStore,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.runtime.idempotency_figures import IdempotencyFigures
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.testing import disabled
from tests.asgi.driver import Request, http_scope

pytestmark = pytest.mark.usefixtures("own_time")


KEY = (b"idempotency-key", b'"k-1"')


class Payments:
    """An application that counts what it does, and waits where a test wants it to."""

    def __init__(self, answer: Callable[[Any, Any], Awaitable[None]] | None = None) -> None:
        self.runs = 0
        self.bodies: list[bytes] = []
        self.inside = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.answer = answer or self.paid

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        self.inside.set()
        await self.go.wait()
        await self.answer(receive, send)

    async def paid(self, _: Any, send: Any) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"location", b"/payments/%d" % self.runs),
            (b"set-cookie", b"session=%d" % self.runs),
            (b"link", b"</a>"),
            (b"link", b"</b>; rel=\xe9"),
        ]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"number":', "more_body": True})
        await send({"type": "http.response.body", "body": b"%d}" % self.runs})


def guarded(app: Any, store: IdempotencyStore | None = None, **facts: Any) -> IdempotencyMiddleware:
    policy = IdempotencyPolicy(**{"single_tenant": True, **facts})
    return IdempotencyMiddleware(app, policy, store=store or MemoryIdempotencyStore())


def post(app: Any, *lines: tuple[bytes, bytes], body: Any = (b"{}",), **facts: Any) -> Request:
    scope = http_scope("/payments", "POST", headers=list(lines or (KEY,)), **facts)
    return Request(app, scope, body=body)


def state_in(middleware: IdempotencyMiddleware) -> State | None:
    records = middleware.store._store.records()  # type: ignore[attr-defined]
    assert len(records) <= 1
    return records[0].state if records else None


async def waits(middleware: IdempotencyMiddleware, number: int = 1) -> None:
    for _ in range(3000):
        if middleware.joins.waiting >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{middleware.joins.waiting} wait, not {number}")


async def test_the_second_one_gets_the_first_ones_answer() -> None:
    """B89: as it was sent, without cookies, and marked; the first one passes byte by byte."""
    app = Payments()
    middleware = guarded(app)
    plain = await post(app).run()
    app.runs = 0
    first, second = await post(middleware).run(), await post(middleware).run()
    assert app.runs == 1
    assert first.messages == plain.messages
    assert second.status == first.status == 201
    assert second.body == first.body == b'{"number":1}'
    assert second.messages[0]["headers"] == [
        (b"content-type", b"application/json"),
        (b"location", b"/payments/1"),
        (b"link", b"</a>"),
        (b"link", b"</b>; rel=\xe9"),
        (b"content-length", b"12"),
        (b"idempotency-replayed", b"true"),
    ]


async def test_other_requests_pass_untouched() -> None:
    app = Payments()
    middleware = guarded(app)
    for scope in (
        http_scope("/payments", "POST"),
        http_scope("/payments", "POST"),
        http_scope("/payments", "GET", headers=[KEY]),
        http_scope("/payments", "PUT", headers=[KEY]),
    ):
        request = await Request(middleware, scope).run()
        assert request.status == 201
    assert app.runs == 4


async def test_the_kill_switch_makes_no_payment_run_twice() -> None:
    app = Payments()
    middleware = ResilienceMiddleware(guarded(app, use="required"), ServerPolicy(limit=1))
    with disabled():
        first, second = await post(middleware).run(), await post(middleware).run()
        without = await post(middleware, (b"x-a", b"1")).run()
    assert (first.status, second.status, without.status) == (201, 201, 400)
    assert second.header("idempotency-replayed") == "true"
    assert app.runs == 1


@pytest.mark.parametrize(
    ("lines", "facts", "status", "reason"),
    [
        ([(b"x-a", b"1")], {"use": "required"}, 400, "idempotency_key_missing"),
        ([(b"idempotency-key", b"a b")], {}, 400, "idempotency_key_invalid"),
        ([KEY, KEY], {}, 400, "idempotency_key_invalid"),
        (
            [KEY],
            {"use": "required", "single_tenant": False, "caller": "X-User"},
            400,
            "idempotency_no_caller",
        ),
    ],
)
async def test_keys_that_are_refused(lines: Any, facts: Any, status: int, reason: str) -> None:
    app = Payments()
    request = await post(guarded(app, **facts), *lines).run()
    assert (request.status, request.header("x-refusal-reason")) == (status, reason)
    assert app.runs == 0


async def test_callers_do_not_see_each_other() -> None:
    app = Payments()
    middleware = guarded(app, single_tenant=False, caller="X-User")
    for name in (b"alice", b"bob", b"alice"):
        await post(middleware, KEY, (b"x-user", name)).run()
    assert app.runs == 2
    await post(middleware, KEY).run()
    await post(middleware, KEY).run()
    assert app.runs == 4, "nobody in particular gets no replay"


async def test_another_payload_is_422() -> None:
    app = Payments()
    middleware = guarded(app)
    await post(middleware, body=(b"one",)).run()
    for request in (
        post(middleware, body=(b"two",)),
        post(middleware, body=(b"one",), query_string=b"dry_run=1"),
    ):
        await request.run()
        assert (request.status, request.header("x-refusal-reason")) == (422, "idempotency_key_reused")
    assert (await post(middleware, body=(b"o", b"ne")).run()).status == 201
    assert app.runs == 1


async def test_a_large_body_streams_and_is_compared_all_the_same() -> None:
    """Nothing of it is kept: the handler gets each piece when it comes."""
    app = Payments()
    middleware = guarded(app, buffer_request=10)
    pieces = [b"x" * 8] * 20
    await post(middleware, body=pieces).run()
    assert app.bodies == [b"".join(pieces)]
    assert (await post(middleware, body=pieces).run()).header("idempotency-replayed") == "true"
    assert (await post(middleware, body=[*pieces, b"y"]).run()).status == 422
    assert app.runs == 1


async def test_b85_a_thousand_at_one_time_run_once() -> None:
    """All others wait, and get the one answer."""
    app = Payments()
    app.go.clear()
    middleware = guarded(app, max_wait=60.0)
    requests = [post(middleware) for _ in range(1000)]
    tasks = [asyncio.create_task(request.run(within=60)) for request in requests]
    await app.inside.wait()
    await waits(middleware, 999)
    app.go.set()
    await asyncio.gather(*tasks)
    assert app.runs == 1
    assert {request.body for request in requests} == {b'{"number":1}'}
    assert sum(request.header("idempotency-replayed") == "true" for request in requests) == 999
    assert middleware.joins.waiting == 0


async def test_no_place_to_wait_is_409_with_a_time() -> None:
    app = Payments()
    app.go.clear()
    for facts in ({"max_waiting": 0}, {"wait": "conflict"}, {"max_wait": 0.0}):
        middleware = guarded(app, **facts)
        first = asyncio.create_task(post(middleware).run())
        app.inside.clear()
        await app.inside.wait()
        second = await post(middleware).run()
        assert second.status == 409
        assert b"idempotency_in_progress" in second.body
        assert 1 <= int(second.header("retry-after") or 0) <= 30
        app.go.set()
        await first
        app.go.clear()


@pytest.mark.in_real_time
async def test_who_waits_for_another_process_looks_into_the_store(tmp_path: Path) -> None:
    """Two middlewares over one file: nobody wakes who waits at the other one."""
    app = Payments()
    app.go.clear()
    one, other = (guarded(app, SQLiteIdempotencyStore(tmp_path / "keys.db", durable=False)) for _ in range(2))
    first = asyncio.create_task(post(one).run())
    await app.inside.wait()
    second = asyncio.create_task(post(other).run())
    await waits(other)
    app.go.set()
    assert (await second).header("idempotency-replayed") == "true"
    await first
    assert app.runs == 1
    await one.store.close()
    await other.store.close()


async def test_a_waiter_runs_when_the_first_one_fails() -> None:
    """B86: an exception frees the key at once."""

    async def fails(_: Any, __: Any) -> None:
        raise RuntimeError("no")

    app = Payments(fails)
    app.go.clear()
    middleware = guarded(app)
    first = asyncio.create_task(post(middleware).run())
    await app.inside.wait()
    second = asyncio.create_task(post(middleware).run())
    await waits(middleware)
    app.go.set()
    await first
    assert isinstance(first.result().raised, RuntimeError)
    await second
    assert app.runs == 2
    assert state_in(middleware) is None


@pytest.mark.parametrize("status", [500, 503, 429, 408])
async def test_b88_what_passes_is_not_kept(status: int) -> None:
    async def answer(_: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = Payments(answer)
    middleware = guarded(app)
    for _ in range(2):
        assert (await post(middleware).run()).status == status
    assert app.runs == 2


async def test_a_cancelled_handler_leaves_unknown() -> None:
    """By the server, in the handler: the next one is told so, and does not run."""
    app = Payments()
    app.go.clear()
    middleware = guarded(app)
    first = post(middleware).start()
    await app.inside.wait()
    first.cancel()
    await first.end()
    assert isinstance(first.raised, asyncio.CancelledError)
    assert state_in(middleware) is State.UNKNOWN
    second = await post(middleware).run()
    assert second.status == 409
    assert b"idempotency_unknown" in second.body
    assert second.header("x-refusal-reason") is None
    assert app.runs == 1


async def test_the_deadline_leaves_unknown_whatever_the_handler_answers() -> None:
    """Inside admission: 504 on time; an answer of its clean-up is not recorded."""

    async def answer(_: Any, send: Any) -> None:
        await Payments.paid(app, _, send)

    app = Payments(answer)
    app.go.clear()
    policy = ServerPolicy(deadline_default=0.2)
    middleware = guarded(app)

    async def stubborn(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            assert current().cancelled
            await app.paid(receive, send)

    middleware.app = stubborn
    outer = ResilienceMiddleware(middleware, policy)
    assert (await post(outer).run()).status == 504
    for _ in range(1000):
        if state_in(middleware) is State.UNKNOWN:
            break
        await asyncio.sleep(0.01)
    assert state_in(middleware) is State.UNKNOWN


async def test_the_status_function_settles_the_unknown() -> None:
    """Sync or async; it is asked once, and what it says is recorded."""
    asked: list[Any] = []

    async def status(about: Any) -> Any:
        asked.append(about)
        return StoredAnswer(201, ((b"location", b"/payments/7"),), b"{}") if len(asked) == 1 else "not_done"

    app = Payments()
    app.go.clear()
    middleware = guarded(app, on_unknown=status)
    first = post(middleware).start()
    await app.inside.wait()
    first.cancel()
    await first.end()
    assert isinstance(first.raised, asyncio.CancelledError)
    for _ in range(2):
        settled = await post(middleware).run()
        assert (settled.status, settled.header("location")) == (201, "/payments/7")
    assert app.runs == len(asked) == 1
    assert (asked[0].key, asked[0].method, asked[0].route) == ("k-1", "POST", "/payments")


@pytest.mark.parametrize(
    ("verdict", "status", "runs"), [("not_done", 201, 2), ("unknown", 409, 1), (None, 409, 1)]
)
async def test_what_a_status_function_may_say(verdict: Any, status: int, runs: int) -> None:
    def ask(_: Any) -> Any:
        if verdict is None:
            raise RuntimeError("the ledger is away")
        return verdict

    app = Payments()
    app.go.clear()
    middleware = guarded(app, on_unknown=ask)
    first = post(middleware).start()
    await app.inside.wait()
    first.cancel()
    await first.end()
    assert isinstance(first.raised, asyncio.CancelledError)
    app.go.set()
    assert (await post(middleware).run()).status == status
    assert app.runs == runs
    assert state_in(middleware) is (State.COMPLETED if status == 201 else State.UNKNOWN)


async def test_b86_a_long_handler_keeps_its_key() -> None:
    """Three leases long, renewed while it runs."""
    app = Payments()
    app.go.clear()
    middleware = guarded(app, lease=0.4, heartbeat=0.05, on_unknown="retry", wait="conflict")
    first = asyncio.create_task(post(middleware).run())
    await app.inside.wait()
    for _ in range(12):
        await asyncio.sleep(0.1)
        assert (await post(middleware).run()).status in {409, 201}
    app.go.set()
    await first
    assert app.runs == 1


class Away(MemoryIdempotencyStore):
    """A store that is away for some questions."""

    def __init__(self, *questions: str) -> None:
        super().__init__()
        self.questions = set(questions)

    def begin(self, claim: Any, *, timeout: float = 5.0) -> Any:
        if "begin" in self.questions:
            raise StoreUnavailable("away")
        return super().begin(claim, timeout=timeout)

    def complete(self, *args: Any, **facts: Any) -> bool:
        if "complete" in self.questions:
            raise OSError("a driver's own error")
        return super().complete(*args, **facts)


async def test_the_store_is_away() -> None:
    app = Payments()
    closed = await post(guarded(app, Away("begin"))).run()
    assert (closed.status, closed.header("x-refusal-reason")) == (503, "idempotency_store_unavailable")
    assert closed.header("retry-after") == "5"
    assert app.runs == 0
    assert (await post(guarded(app, Away("begin"), store_down="open")).run()).status == 201
    assert app.runs == 1


async def test_why_the_store_cannot_be_used_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    middleware = guarded(Payments(), Away("begin"), name="shop")
    for _ in range(3):
        await post(middleware).run()
    (line,) = caplog.messages
    assert line == "shop: the store of idempotency keys cannot be used (begin): StoreUnavailable: away"
    IdempotencyFigures("other").asked("look", 0.0, 1.0, None)
    assert len(caplog.messages) == 1, "what was answered is no news"
    figures = IdempotencyFigures("shop")
    for now in (100.0, 159.0, 161.0):
        figures.asked("look", 99.0, now, OSError("refused"))
    assert (
        caplog.messages[1:]
        == ["shop: the store of idempotency keys cannot be used (look): OSError: refused"] * 2
    )


async def test_an_answer_that_cannot_be_recorded_is_given_all_the_same() -> None:
    """The work is done; its lease ends by itself."""
    app = Payments()
    middleware = guarded(app, Away("complete"))
    assert (await post(middleware).run()).status == 201
    assert state_in(middleware) is State.RUNNING


async def test_an_answer_that_is_too_large() -> None:
    """It passes as it is made; a repeat is told that the work is done."""
    app = Payments()
    middleware = guarded(app, max_answer=5)
    assert (await post(middleware).run()).body == b'{"number":1}'
    second = await post(middleware).run()
    assert second.status == 409
    assert b"idempotency_body_not_kept" in second.body


async def test_streams_are_not_held_back() -> None:
    """Each piece but the last leaves before the next one is made."""
    request: Request

    async def answer(_: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number in range(3):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
            assert len(request.messages) == number + 2
        await send({"type": "http.response.body", "body": b""})

    middleware = guarded(Payments(answer))
    request = post(middleware)
    await request.run()
    assert request.body == b"012"
    assert (await post(middleware).run()).body == b"012"


async def test_a_truncated_answer_leaves_unknown() -> None:
    async def answer(_: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})

    middleware = guarded(Payments(answer))
    await post(middleware).run()
    assert state_in(middleware) is State.UNKNOWN


async def test_work_after_the_answer_runs_once_and_delays_nothing() -> None:
    """B89: background tasks of the first one, none for a replay."""
    after: list[int] = []

    async def answer(receive: Any, send: Any) -> None:
        await app.paid(receive, send)
        after.append(1)

    app = Payments(answer)
    middleware = guarded(app)
    await post(middleware).run()
    await post(middleware).run()
    assert after == [1]
