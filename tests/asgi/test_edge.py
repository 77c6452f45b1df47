"""The edge under ASGI: time spent before, trust behind proxies, bodies that are too large, the head that tells."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import Request as FastAPIRequest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import BodyTooLarge, RequestCancelled
from resilient_mw.core.events import Cancelled, Event, Refused
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime import protection
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, use_clock
from tests.asgi.driver import (
    Counting,
    Request,
    answer,
    budget,
    figures,
    hello,
    http_scope,
    nothing_left,
    outcomes,
    slots,
    supervisor_of,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


NOW = 1_795_953_599_000_000_000
"""The wall clock of these tests, in nanoseconds."""
PROXY, CLIENT, FRIEND = "10.0.0.7", "203.0.113.9", "10.9.9.9"


@pytest.fixture(autouse=True)
def wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "wall_clock_ns", lambda: NOW)


def began(seconds_ago: float) -> tuple[bytes, bytes]:
    return b"x-request-start", f"t={(NOW - round(seconds_ago * 1e9)) // 1_000_000}".encode()


def via(*addresses: str) -> tuple[bytes, bytes]:
    return b"x-forwarded-for", ", ".join(addresses).encode()


class Asked:
    """What became of one request: its budget if it ran, the status, the reason, what was counted as ignored."""

    def __init__(
        self, *headers: tuple[bytes, bytes], peer: str | None = PROXY, path: str = "/", **fields: Any
    ) -> None:
        self.headers = list(headers)
        self.scope = http_scope(path, headers=self.headers, client=(peer, 1) if peer else None)
        self.policy = ServerPolicy(**{"trusted_peers": ["10.0.0.0/8"], **fields})
        use_clock(self.policy, ManualClock())
        self.budget: float | None = None

    async def run(self, lag: float = 0.0) -> tuple[float | None, dict[str, int]]:
        middleware = ResilienceMiddleware(self.app, self.policy)
        supervisor_of(middleware).lag = lag
        request = await Request(middleware, self.scope).run()
        self.status = request.status
        self.reason = request.header("x-refusal-reason")
        snapshot = guard_of(self.policy).snapshot()
        assert snapshot.guard_errors == 0
        left = None if self.budget is None else round(self.budget, 6)
        return left, dict(snapshot.ignored_headers)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.budget = current().remaining()
        await hello(scope, receive, send)


# -- time spent before -------------------------------------------------------------------------------------------------


async def test_time_since_the_proxy_took_the_request_in_is_charged() -> None:
    assert await Asked(began(3.0)).run() == (7.0, {})
    assert await Asked(began(3.0), budget(4000)).run() == (1.0, {})
    assert await Asked(began(3.0), budget(30_000)).run() == (27.0, {}), "a trusted peer may lengthen"
    assert await Asked(began(0.0)).run() == (10.0, {})


async def test_the_time_may_be_used_up_by_then() -> None:
    asked = Asked(began(3.0), budget(2999))
    assert await asked.run() == (None, {})
    assert (asked.status, asked.reason) == (504, "expired_on_arrival")
    asked = Asked(began(3.0), budget(3003))
    await asked.run()
    assert (asked.status, asked.reason) == (504, "insufficient_budget")


async def test_the_minimum_is_a_budget_that_runs_from_when_the_proxy_took_it_in() -> None:
    asked = Asked(began(3.0), budget(1000), via(CLIENT), deadline_minimum=5.0, trusted_hops=1)
    assert await asked.run() == (2.0, {})


async def test_nobody_else_is_believed() -> None:
    for peer in (CLIENT, None):
        assert await Asked(began(3.0), peer=peer).run() == (10.0, {})
    assert await Asked(began(3.0), trusted_peers=()).run() == (10.0, {})


@pytest.mark.parametrize(
    "value", [b"", b"t=", b"soon", b"-5", b"1e9", b"99999999999999999999", b"0", "é".encode("latin-1")]
)
async def test_a_value_outside_the_grammar_is_as_if_absent_and_counted(value: bytes) -> None:
    assert await Asked((b"x-request-start", value)).run() == (10.0, {"x-request-start": 1})


async def test_clocks_that_do_not_agree_take_no_time_away() -> None:
    """A second ahead is skew, more is no clock to go by; what is older than any request may get is none of it."""
    assert await Asked(began(-0.9)).run() == (10.0, {})
    assert await Asked(began(-1.5)).run() == (10.0, {"x-request-start": 1})
    long: dict[str, Any] = {"deadline_default": 300.0, "deadline_maximum": 300.0}
    assert await Asked(began(60.0), deadline_default=60.0).run() == (None, {})
    assert await Asked(began(60.1)).run() == (10.0, {"x-request-start": 1})
    assert await Asked(began(299.0), **long).run() == (1.0, {})
    assert await Asked(began(300.1), **long).run() == (300.0, {"x-request-start": 1})


async def test_the_field_twice_is_as_if_absent() -> None:
    assert await Asked(began(3.0), began(3.0)).run() == (10.0, {"x-request-start": 1})


async def test_lag_of_the_loop_is_charged_also_to_those_who_say_nothing() -> None:
    assert await Asked().run(lag=2.0) == (8.0, {})
    assert await Asked(budget(1000)).run(lag=0.25) == (0.75, {})
    assert await Asked(began(3.0)).run(lag=2.0) == (7.0, {}), "the proxy's stamp is from before the lag"
    assert await Asked(began(1.0)).run(lag=2.0) == (8.0, {})
    asked = Asked(budget(100), trusted_peers=())
    await asked.run(lag=0.25)
    assert asked.reason == "expired_on_arrival"


async def test_exempt_requests_are_not_refused_for_what_the_load_took() -> None:
    assert await Asked(began(20.0), path="/healthz").run(lag=20.0) == (10.0, {})


async def test_a_busy_loop_is_measured_and_charged() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            for _ in range(8):
                time.sleep(0.15)  # noqa: ASYNC251  the point of it
                await asyncio.sleep(0)
        budgets.append(current().remaining())
        await answer(send)

    budgets: list[float] = []
    middleware = ResilienceMiddleware(app)
    slow = Request(middleware, http_scope("/slow")).start()
    await until(lambda: supervisor_of(middleware).lag > 0.0)
    await Request(middleware, http_scope()).run()
    await slow.end()
    assert 9.6 < budgets[0] < 9.99


# -- trust behind proxies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "hops", "left"),
    [
        ([via(CLIENT)], 1, 10.0),
        ([via(FRIEND)], 1, 30.0),
        ([via(FRIEND, CLIENT)], 1, 10.0),  # he wrote the first one himself
        ([via(CLIENT, FRIEND)], 1, 30.0),
        ([via(FRIEND, PROXY)], 2, 30.0),
        ([via(CLIENT, PROXY)], 2, 10.0),
        ([via(FRIEND, CLIENT), via(PROXY)], 2, 10.0),
        ([via(CLIENT), via(FRIEND)], 0, 30.0),  # the proxy itself
    ],
)
async def test_behind_proxies_the_address_that_the_outermost_one_added_decides(
    headers: list[tuple[bytes, bytes]], hops: int, left: float
) -> None:
    assert await Asked(budget(30_000), *headers, trusted_hops=hops).run() == (left, {})


async def test_who_does_not_come_through_a_proxy_of_ours_is_not_asked_where_he_comes_from() -> None:
    for peer in (CLIENT, None):
        asked = Asked(budget(30_000), via(FRIEND), peer=peer, trusted_hops=1)
        assert await asked.run() == (10.0, {})


@pytest.mark.parametrize("headers", [[via("unknown")], [via("")], [via(FRIEND, "10.0.0")]])
async def test_what_is_no_address_is_as_if_absent_and_counted(headers: list[tuple[bytes, bytes]]) -> None:
    asked = Asked(budget(30_000), *headers, trusted_hops=1)
    assert await asked.run() == (10.0, {"x-forwarded-for": 1})


async def test_without_the_field_and_with_too_few_addresses_nobody_can_lengthen() -> None:
    assert await Asked(budget(30_000), trusted_hops=1).run() == (10.0, {})
    assert await Asked(budget(30_000), via(FRIEND), trusted_hops=2).run() == (10.0, {"x-forwarded-for": 1})


async def test_everybody_may_shorten_and_the_proxys_own_stamp_is_believed() -> None:
    assert await Asked(budget(500), via(CLIENT), trusted_hops=1).run() == (0.5, {})
    assert await Asked(began(1.0), budget(30_000), via(CLIENT), trusted_hops=1).run() == (9.0, {})


async def test_a_function_is_asked_for_the_proxy_and_then_for_the_one_behind_it() -> None:
    asked_for: list[str] = []

    def trusts(peer: str) -> bool:
        asked_for.append(peer)
        return peer in {PROXY, FRIEND}

    assert await Asked(budget(30_000), via(FRIEND), trusted_hops=1, trusted_peers=trusts).run() == (30.0, {})
    assert asked_for == [PROXY, FRIEND]


# -- bodies ------------------------------------------------------------------------------------------------------------


class Reading:
    """An application that reads its whole body, or starts to answer before it does."""

    def __init__(self, *, first: bool = False, swallow: bool = False) -> None:
        self.first = first
        self.swallow = swallow
        self.read = 0
        self.errors: list[BaseException] = []
        self.reason: CancelReason | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.first:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        try:
            more = True
            while more:
                message = await receive()
                more = message.get("more_body", False)
                self.read += len(message.get("body", b""))
        except BaseException as error:
            self.errors.append(error)
            self.reason = current().cancel_reason
            if not self.swallow:
                raise
        if self.first:
            await send({"type": "http.response.body", "body": b"ended"})
        else:
            await answer(send)


def sized(size: object) -> dict[str, Any]:
    return {"method": "POST", "headers": [(b"content-length", str(size).encode())]}


CHUNKED: dict[str, Any] = {"method": "POST", "headers": [(b"transfer-encoding", b"chunked")]}


async def test_a_larger_content_length_is_refused_before_a_slot_and_before_anything_is_read() -> None:
    events: list[Event] = []
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=0, max_body=10, listeners=[events.append])
    async with nothing_left(middleware):
        holder = Request(middleware, http_scope()).start()
        await until(lambda: app.running == 1)
        request = Request(middleware, http_scope("/", **sized(11)), body=[b"x" * 11])
        await request.run()
        assert (request.status, request.header("x-refusal-reason")) == (413, "body_too_large")
        assert request.header("retry-after") is None
        assert (app.begun, slots(middleware)) == (1, 1)
        app.gate.set()
        await holder.end()
    assert [each for each in events if isinstance(each, Refused)] == [
        Refused("unmatched", "normal", Reason.BODY_TOO_LARGE, 0.0)
    ]
    (route,) = [each for each in figures(middleware).routes if each.arrived]
    assert (route.arrived, route.admitted, route.refused) == (2, 1, {"body_too_large": 1})


@pytest.mark.parametrize("size", [0, 9, 10, "5, 5", "-1", "ten", "", "²"])
async def test_what_fits_and_what_is_no_size_reaches_the_application(size: object) -> None:
    headers = [(b"content-length", str(size).encode("latin-1"))]
    middleware = ResilienceMiddleware(Reading(), max_body=10)
    request = await Request(middleware, http_scope("/", "POST", headers=headers), body=[b"x" * 9]).run()
    assert request.status == 200


async def test_bodies_are_counted_while_they_are_read_whatever_they_said() -> None:
    for scope in (CHUNKED, sized(5), sized("x")):
        app = Reading()
        middleware = ResilienceMiddleware(app, max_body=10)
        async with nothing_left(middleware):
            request = await Request(
                middleware, http_scope("/", **scope), body=[b"x" * 6, b"x" * 5, b"x"]
            ).run()
        assert (request.status, request.header("x-refusal-reason")) == (413, None), "the work had begun"
        assert request.problem["reason"] == "body_too_large"
        assert request.complete
        assert app.read == 6
        assert request.raised is None
        assert app.reason is CancelReason.BODY_TOO_LARGE
        assert outcomes(middleware) == {"body_too_large": 1}


async def test_a_body_of_exactly_the_limit_passes() -> None:
    app = Reading()
    middleware = ResilienceMiddleware(app, max_body=10)
    request = await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 6, b"x" * 4]).run()
    assert (request.status, app.read) == (200, 10)
    assert outcomes(middleware) == {"completed": 1}


async def test_an_application_that_goes_on_answers_nothing_any_more() -> None:
    app = Reading(swallow=True)
    middleware = ResilienceMiddleware(app, max_body=10)
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 11]).run()
    assert request.status == 413
    assert len(app.errors) == 1


async def test_when_the_response_has_begun_it_is_left_unfinished() -> None:
    for swallow in (False, True):
        app = Reading(first=True, swallow=swallow)
        middleware = ResilienceMiddleware(app, max_body=10)
        async with nothing_left(middleware):
            request = await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 11]).run()
        assert (request.status, request.body, request.complete) == (200, b"begun", False)
        assert outcomes(middleware) == {"body_too_large": 1}


async def test_a_body_that_was_read_in_a_task_of_its_own_ends_the_whole_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            group.create_task(asyncio.sleep(30))
        await answer(send)

    middleware = ResilienceMiddleware(app, max_body=10)
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 11]).run()
    assert request.status == 413
    assert request.returned_at < 5.0


@pytest.mark.parametrize("around", [False, True], ids=["plain", "function middleware"])
@pytest.mark.parametrize("path", ["/model", "/stream", "/thread"])
@pytest.mark.in_real_time
async def test_frameworks_do_not_make_another_answer_of_it(path: str, around: bool) -> None:
    app = FastAPI()

    @app.post("/model")
    async def model(items: dict[str, str]) -> str:
        return "read"

    @app.post("/stream")
    async def stream(request: FastAPIRequest) -> int:
        return sum([len(part) async for part in request.stream()])

    @app.post("/thread")
    def thread(items: dict[str, str]) -> str:
        return "read"

    if around:

        @app.middleware("http")
        async def passes(request: FastAPIRequest, call_next: Any) -> Any:
            return await call_next(request)

    middleware = ResilienceMiddleware(app, max_body=30)
    headers = [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")]
    for body, status in ((b'{"a": "b"}', 200), (b'{"a": "%s"}' % (b"x" * 30), 413)):
        async with nothing_left(middleware):
            request = Request(
                middleware, http_scope(path, "POST", headers=headers), body=[body[:5], body[5:]]
            )
            await request.run()
        assert (request.status, request.complete) == (status, True), request.body
    assert outcomes(middleware) == {"completed": 1, "body_too_large": 1}


async def test_a_request_that_waited_for_its_slot_is_counted_too() -> None:
    app = Counting()

    async def routed(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["path"] == "/hold" else reading)(scope, receive, send)

    reading = Reading()
    middleware = ResilienceMiddleware(routed, limit=1, max_body=10)
    async with nothing_left(middleware):
        holder = Request(middleware, http_scope("/hold")).start()
        await until(lambda: app.running == 1)
        request = Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 6, b"x" * 6]).start()
        await asyncio.sleep(0.05)
        app.gate.set()
        await holder.end()
        await request.end()
    assert (request.status, reading.read) == (413, 6)


async def test_after_a_complete_response_reading_on_fails_and_ends_nothing() -> None:
    errors: list[BaseException] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send)
        try:
            await receive()
        except BodyTooLarge as error:
            errors.append(error)
        current().check()

    middleware = ResilienceMiddleware(app, max_body=10)
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 11]).run()
    assert (request.status, outcomes(middleware)) == (200, {"completed": 1})
    assert isinstance(errors[0], OSError)
    assert str(errors[0]) == "the request body is larger than max_body, 10 bytes"


async def test_callbacks_and_listeners_are_told_why() -> None:
    events: list[Event] = []
    reasons: list[object] = []
    errors: list[RequestCancelled] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(reasons.append)
        try:
            await receive()
        finally:
            try:
                current().check()
            except RequestCancelled as error:
                errors.append(error)

    middleware = ResilienceMiddleware(app, max_body=10, listeners=[events.append])
    async with nothing_left(middleware):
        await Request(middleware, http_scope("/", **CHUNKED), body=[b"x" * 11]).run()
    assert reasons == [CancelReason.BODY_TOO_LARGE]
    assert [error.reason for error in errors] == reasons
    (cancelled,) = [each for each in events if isinstance(each, Cancelled)]
    assert cancelled.reason is CancelReason.BODY_TOO_LARGE


async def test_a_rule_lifts_the_limit_for_its_route() -> None:
    middleware = ResilienceMiddleware(Reading(), max_body=10, routes=[RouteRule("/upload", max_body=100)])
    for path, status in (("/upload", 200), ("/", 413)):
        for scope, body in ((sized(50), [b"x" * 50]), (CHUNKED, [b"x" * 50])):
            request = await Request(middleware, http_scope(path, **scope), body=body).run()
            assert request.status == status


async def test_without_a_limit_the_application_gets_the_exchanges_own_functions() -> None:
    functions: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        functions.append((receive.__self__, send.__self__, current()))
        await answer(send)

    await Request(ResilienceMiddleware(app), http_scope("/", **CHUNKED), body=[b"x" * 100]).run()
    (used,) = functions
    assert used[0] is used[1] is used[2]


# -- what was left -----------------------------------------------------------------------------------------------------


async def told(app: Any, *headers: tuple[bytes, bytes], **fields: Any) -> Request:
    middleware = ResilienceMiddleware(app, **fields)
    return await Request(middleware, http_scope(headers=list(headers))).run()


async def test_the_head_tells_what_was_left_when_it_left() -> None:
    clock = ManualClock()
    policy = ServerPolicy(deadline_response_header="X-Budget-Left-Ms")
    use_clock(policy, clock)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        clock.advance(1.25)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"set-cookie", b"a"), (b"set-cookie", b"b")],
            }
        )
        clock.advance(1.25)
        await send({"type": "http.response.body", "body": b"done"})

    request = await Request(ResilienceMiddleware(app, policy), http_scope(headers=[budget(4000)])).run()
    assert request.starts[0]["headers"] == [
        (b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"x-budget-left-ms", b"2750"),
    ]  # fmt: skip
    assert request.body == b"done"


async def test_of_two_layers_the_outer_one_tells() -> None:
    others = [(b"X-Left", b"77777"), (b"x-left", b"77777"), (b"a", b"b")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": others})
        await send({"type": "http.response.body", "body": b""})

    request = await told(app, deadline_response_header="x-left")
    assert [name.lower() for name, _ in request.starts[0]["headers"]] == [b"a", b"x-left"]
    assert 9_000 < int(request.header("x-left") or 0) <= 10_000


async def test_it_is_off_by_default_and_a_refusal_says_why_instead() -> None:
    assert len((await told(hello)).starts[0]["headers"]) == 1
    refused = await told(hello, budget(0), deadline_response_header="x-left")
    assert (refused.status, refused.header("x-left")) == (504, None)
