"""What the middleware answers: admitted, queued, refused, expired; and what it does when its own code breaks."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from resilient_mw import Band, OverloadPolicy, RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import DeadlineExceeded, RequestCancelled
from resilient_mw.core.events import Cancelled, Event, GuardFailed, Refused
from resilient_mw.core.marks import Mark
from resilient_mw.core.rejection import REFUSAL_RULES, Reason, RetryAfter, problem_type
from resilient_mw.runtime import switch
from resilient_mw.runtime.context import NO_REQUEST
from tests.asgi.driver import (
    RAISE,
    App,
    Counting,
    Message,
    Request,
    answer,
    budget,
    figures,
    hello,
    http_scope,
    is_idle,
    nothing_left,
    outcomes,
    plain,
    queued,
    slots,
    until,
)
from tests.runtime.downed import Downed

pytestmark = pytest.mark.usefixtures("own_time")


ON_TIME = 0.25
"""Seconds after its deadline within which a 504 counts as on time on a busy machine."""

WAYS_TO_BE_REFUSED: dict[Reason, Callable[..., Any]] = {}


def way(reason: Reason) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        WAYS_TO_BE_REFUSED[reason] = function
        return function

    return register


class Crowd:
    """A middleware of one slot that is taken, with what is needed to be refused by it."""

    def __init__(self, app: App | None = None, **fields: Any) -> None:
        self.app = Counting()
        rules = [RouteRule("/low", priority="sheddable"), RouteRule("/high", priority="critical")]
        settings: dict[str, Any] = {"limit": 1, "queue": 2, "routes": rules} | fields
        self.middleware = ResilienceMiddleware(app or self.app, **settings)
        self.holder: Request | None = None

    async def full(self, **scope: Any) -> None:
        self.holder = Request(self.middleware, http_scope(**scope)).start()
        await until(lambda: self.app.running == 1)

    async def over(self) -> None:
        self.app.gate.set()
        if self.holder is not None:
            await self.holder.end()


Refused_ = tuple[Crowd, Request]


@way(Reason.QUEUE_FULL)
async def _queue_full(method: str, version: str) -> Refused_:
    crowd = Crowd(queue=0)
    await crowd.full()
    return crowd, await Request(crowd.middleware, http_scope(method=method, http_version=version)).run()


@way(Reason.PUSHED_OUT)
async def _pushed_out(method: str, version: str) -> Refused_:
    crowd = Crowd(queue=1)
    await crowd.full()
    loser = Request(crowd.middleware, http_scope("/low", method, http_version=version)).start()
    await until(lambda: queued(crowd.middleware) == 1)
    winner = Request(crowd.middleware, http_scope("/high")).start()
    await loser.end()
    winner.disconnect()
    await winner.end()
    return crowd, loser


@way(Reason.TENANT_SHARE)
async def _tenant_share(method: str, version: str) -> Refused_:
    crowd = Crowd(queue=2)
    await crowd.full()
    first = Request(crowd.middleware, http_scope()).start()
    await until(lambda: queued(crowd.middleware) == 1)
    loser = Request(crowd.middleware, http_scope(method=method, http_version=version)).start()
    await until(lambda: queued(crowd.middleware) == 2)
    guard = crowd.middleware.protection.guard
    now = guard.clock.now()
    winner = guard.arrive(guard.entries.get("/", Mark("normal")), now, now + 60, tenant="another").waiter
    await loser.end()
    assert winner is not None
    guard.leave(winner)
    first.disconnect()
    await first.end()
    return crowd, loser


@way(Reason.QUEUE_TIMEOUT)
async def _queue_timeout(method: str, version: str) -> Refused_:
    crowd = Crowd(max_wait=0.05)
    await crowd.full()
    request = await Request(crowd.middleware, http_scope(method=method, http_version=version)).run()
    assert 0.045 <= request.returned_at < 0.05 + ON_TIME
    return crowd, request


@way(Reason.PREDICTED_LATE)
async def _predicted_late(method: str, version: str) -> Refused_:
    async def takes_some_time() -> None:
        await asyncio.sleep(0.02 if crowd.app.begun == 0 else 0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hold":
            await crowd.app(scope, receive, send)
        else:
            await plain(takes_some_time)(scope, receive, send)

    crowd = Crowd(app, exempt_paths=(), routes=[RouteRule("/slow")])
    for _ in range(10):
        await Request(crowd.middleware, http_scope("/slow")).run()
    await crowd.full(path="/hold")
    scope = http_scope("/slow", method, http_version=version, headers=[budget(15)])
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.EXEMPT_LIMIT)
async def _exempt_limit(method: str, version: str) -> Refused_:
    crowd = Crowd(exempt_limit=1)
    await crowd.full(path="/health")
    scope = http_scope("/health", method, http_version=version)
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.DRAINING)
async def _draining(method: str, version: str) -> Refused_:
    crowd = Crowd()
    crowd.middleware._guard.drain()
    return crowd, await Request(crowd.middleware, http_scope(method=method, http_version=version)).run()


@way(Reason.OVERLOADED)
async def _overloaded(method: str, version: str) -> Refused_:
    crowd = Crowd(overload=OverloadPolicy(slots=Band(0.5, 1.0), rise=0.01))
    await crowd.full()
    await until(lambda: crowd.middleware.protection.guard.overload.state.value == "overloaded")
    scope = http_scope("/low", method, http_version=version)
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.EXPIRED_ON_ARRIVAL)
async def _expired_on_arrival(method: str, version: str) -> Refused_:
    crowd = Crowd()
    scope = http_scope(method=method, http_version=version, headers=[budget(0)])
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.INSUFFICIENT_BUDGET)
async def _insufficient_budget(method: str, version: str) -> Refused_:
    crowd = Crowd(smallest_budget=0.05)
    scope = http_scope(method=method, http_version=version, headers=[budget(49)])
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.EXPIRED_IN_QUEUE)
async def _expired_in_queue(method: str, version: str) -> Refused_:
    crowd = Crowd(wait_share=1.0)
    await crowd.full()
    scope = http_scope(method=method, http_version=version, headers=[budget(60)])
    request = await Request(crowd.middleware, scope).run()
    assert 0.055 <= request.returned_at < 0.06 + ON_TIME
    return crowd, request


@way(Reason.DEADLINE_EXCEEDED)
async def _deadline_exceeded(method: str, version: str) -> Refused_:
    crowd = Crowd()
    scope = http_scope(method=method, http_version=version, headers=[budget(60)])
    request = await Request(crowd.middleware, scope).run()
    assert 0.055 <= request.returned_at < 0.06 + ON_TIME
    return crowd, request


@way(Reason.BODY_TOO_LARGE)
async def _body_too_large(method: str, version: str) -> Refused_:
    crowd = Crowd(max_body=10)
    scope = http_scope(method=method, http_version=version, headers=[(b"content-length", b"11")])
    return crowd, await Request(crowd.middleware, scope).run()


@way(Reason.DEPENDENCY_UNAVAILABLE)
async def _dependency_unavailable(method: str, version: str) -> Refused_:
    downed = Downed("prices-of-a-refusal")
    downed.open()
    crowd = Crowd(routes=[RouteRule("/*", needs=downed.dependency.name)])
    return crowd, await Request(crowd.middleware, http_scope(method=method, http_version=version)).run()


def test_every_reason_has_a_way() -> None:
    of_dependencies = {"circuit_open", "bulkhead_full", "throttled"}  # of calls, which an application makes
    of_websockets = {"websocket_limit"}
    of_streams = {"stream_limit"}
    of_quotas = {"quota_exceeded", "quota_unknown"}  # tests/asgi/test_quotas.py
    of_keys = {each.value for each in Reason if each.value.startswith("idempotency_")}  # tests/idempotency
    assert {reason.value for reason in WAYS_TO_BE_REFUSED} == {
        each.value for each in Reason
    } - of_dependencies - of_websockets - of_streams - of_quotas - of_keys


@pytest.mark.parametrize("reason", list(WAYS_TO_BE_REFUSED), ids=str)
async def test_a_refusal_explains_itself(reason: Reason) -> None:
    """Status, reason, Retry-After, problem document: as the one table says."""
    rule = REFUSAL_RULES[reason]
    crowd, request = await WAYS_TO_BE_REFUSED[reason]("GET", "1.1")
    async with nothing_left(crowd.middleware):
        await crowd.over()
    assert request.raised is None
    assert request.status == rule.status
    assert request.header("content-type") == "application/problem+json"
    assert request.header("cache-control") == "no-store"
    assert request.header("content-length") == str(len(request.body))
    assert request.problem == {
        "type": problem_type(reason),
        "title": rule.title,
        "status": rule.status,
        "reason": reason.value,
    }
    # Only where the work was not begun: a client may then repeat whatever it was.
    assert request.header("x-refusal-reason") == (
        None if reason is Reason.DEADLINE_EXCEEDED else reason.value
    )
    retry_after = request.header("retry-after")
    if rule.retry_after is RetryAfter.NEVER:
        assert retry_after is None
    else:
        assert retry_after is not None
        assert 1 <= int(retry_after) <= 60
    assert request.header("connection") == ("close" if reason is Reason.DRAINING else None)
    assert [each["type"] for each in request.messages] == ["http.response.start", "http.response.body"]


@pytest.mark.parametrize("reason", list(WAYS_TO_BE_REFUSED), ids=str)
async def test_the_refusal_of_a_head_request_has_no_body(reason: Reason) -> None:
    crowd, request = await WAYS_TO_BE_REFUSED[reason]("HEAD", "1.1")
    async with nothing_left(crowd.middleware):
        await crowd.over()
    assert request.status == REFUSAL_RULES[reason].status
    assert request.body == b""
    assert int(request.header("content-length") or 0) > 50
    assert request.complete


@pytest.mark.parametrize("version", ["1.0", "1", "1.1", "2", "3"])
async def test_only_a_draining_server_closes_and_only_below_http_2(version: str) -> None:
    """`Connection` is forbidden in HTTP/2; granian says "1" for HTTP/1.0."""
    for reason in (Reason.DRAINING, Reason.QUEUE_FULL):
        crowd, request = await WAYS_TO_BE_REFUSED[reason]("GET", version)
        closes = reason is Reason.DRAINING and version.startswith("1")
        assert request.header("connection") == ("close" if closes else None)
        await crowd.over()


async def test_a_refusal_reads_nothing_of_the_body_and_never_reaches_the_application() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=0)
    async with nothing_left(middleware):
        holder = Request(middleware).start()
        await until(lambda: app.running == 1)
        request = await Request(middleware, http_scope(method="POST"), body=[b"x" * 1000, b"y"]).run()
        assert request.status == 503
        assert len(request._incoming) == 2
        assert app.begun == 1
        app.gate.set()
        await holder.end()
    assert holder.status == 200


async def test_an_outer_middleware_may_change_the_messages_of_a_refusal() -> None:
    """Prepared answers are shared by all requests: what one caller's middleware adds must not stay in them."""
    inner: Any = ResilienceMiddleware(hello)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        async def adding(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"].append((b"x-request-id", b"1"))
                message["status"] = 499
            await send(message)

        await inner(scope, receive, adding)

    for _ in range(3):
        request = await Request(outer, http_scope(headers=[budget(0)])).run()
        assert request.header("x-request-id") == "1"
    plain_request = await Request(inner, http_scope(headers=[budget(0)])).run()
    assert plain_request.header("x-request-id") is None
    assert plain_request.status == 504


async def test_a_caller_who_is_gone_before_his_refusal_makes_no_error() -> None:
    """Servers may raise OSError from send() once the connection is lost (ASGI 2.4): a refusal is no reason for a traceback."""
    middleware = ResilienceMiddleware(hello)
    async with nothing_left(middleware):
        request = Request(middleware, http_scope(headers=[budget(0)]), lost=RAISE)
        request.disconnect()
        await request.run()
    assert request.raised is None
    assert request.messages == []


async def test_a_waiting_request_is_served_when_a_slot_comes_free() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, queue=5)
    async with nothing_left(middleware):
        requests = [Request(middleware).start() for _ in range(4)]
        await until(lambda: queued(middleware) == 3)
        assert (app.running, slots(middleware)) == (1, 1)
        app.gate.set()
        for request in requests:
            await request.end()
            assert (request.status, request.body) == (200, b"done")
    assert (app.begun, app.most, app.finished) == (4, 1, 4)
    assert outcomes(middleware) == {"completed": 4}


async def test_waiting_time_is_charged_to_the_deadline() -> None:
    """B31: a request that waited gets what is left, not a fresh budget."""
    seen: list[float] = []

    async def handler() -> None:
        seen.append(current().remaining())
        await asyncio.sleep(0.25)

    middleware = ResilienceMiddleware(plain(handler), limit=1, queue=5, wait_share=1.0)
    async with nothing_left(middleware):
        first = Request(middleware).start()
        await until(lambda: len(seen) == 1)
        second = await Request(middleware, http_scope(headers=[budget(400)])).run()
        await first.end()
    assert first.status == 200
    assert second.status == 504
    assert 0.39 <= second.times[0] < 0.4 + ON_TIME
    assert 0.05 < seen[1] <= 0.16


# -- deadlines ---------------------------------------------------------------------------------------------------------


def a_little_less(remaining: float, budget: float) -> bool:
    """Return whether what is left can be what is left of a budget, on a busy machine."""
    return max(0.0, budget - 0.15) < remaining <= budget


def remembering(seen: list[float]) -> App:
    async def handler() -> None:
        seen.append(current().remaining())

    return plain(handler)


@pytest.mark.parametrize(
    ("wish", "client", "expected"),
    [
        (None, "203.0.113.9", 2.0),  # the default
        (500, "203.0.113.9", 0.5),  # everybody may shorten
        (5000, "203.0.113.9", 2.0),  # strangers never lengthen
        (50, "203.0.113.9", 0.2),  # strangers are raised to the minimum
        (5000, "10.1.2.3", 5.0),  # a trusted hop may lengthen
        (900_000, "10.1.2.3", 8.0),  # up to the maximum
        (50, "10.1.2.3", 0.05),  # a trusted hop is never raised
        ("9999999999", "203.0.113.9", 2.0),
        ("5s", "203.0.113.9", 2.0),  # outside the grammar: as if absent
        ("-1", "10.1.2.3", 2.0),
        ("\xb2", "10.1.2.3", 2.0),
        (500, None, 0.5),  # a server that does not tell the peer
        (5000, None, 2.0),
        (5000, "/run/app.sock", 2.0),
    ],
)
async def test_the_budget_of_a_request(wish: object, client: str | None, expected: float) -> None:
    seen: list[float] = []
    middleware = ResilienceMiddleware(
        remembering(seen), deadline_default=2.0, deadline_minimum=0.2, deadline_maximum=8.0,
        trusted_peers=["10.0.0.0/8"],
    )  # fmt: skip
    headers = [] if wish is None else [budget(wish)]
    await Request(middleware, http_scope(headers=headers, client=client and (client, 1))).run()
    assert a_little_less(seen[0], expected)


async def test_the_smallest_of_several_formats_wins_and_a_doubled_one_counts_as_absent() -> None:
    seen: list[float] = []
    middleware = ResilienceMiddleware(remembering(seen))
    await Request(middleware, http_scope(headers=[budget(900), budget("700m", "grpc-timeout")])).run()
    await Request(middleware, http_scope(headers=[budget(500), budget(100)])).run()
    assert a_little_less(seen[0], 0.7)
    assert a_little_less(seen[1], 10.0)
    assert figures(middleware).ignored_headers == {"x-request-timeout-ms": 1}


async def test_a_route_has_its_own_deadline() -> None:
    middleware = ResilienceMiddleware(
        plain(lambda: asyncio.sleep(5)), routes=[RouteRule("/quick", deadline_default=0.08)]
    )
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope("/quick")).run()
    assert request.status == 504
    assert 0.075 <= request.times[0] < 0.08 + ON_TIME


async def test_at_the_deadline_the_handler_is_cancelled_and_told_why() -> None:
    told: list[object] = []
    events: list[Event] = []

    async def handler() -> None:
        current().on_cancel(told.append)
        try:
            await asyncio.sleep(5)
        finally:
            told.append(current().cancel_reason)

    middleware = ResilienceMiddleware(plain(handler), deadline_default=0.08, listeners=[events.append])
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert (request.status, request.raised, request.cancelling) == (504, None, 0)
    assert told == [CancelReason.DEADLINE] * 2
    assert outcomes(middleware) == {"deadline": 1}
    assert [type(each) for each in events] == [Cancelled]


async def test_a_begun_response_is_cut_off_and_no_second_one_is_started() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.01)

    middleware = ResilienceMiddleware(app, deadline_default=0.1)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert request.status == 200
    assert not request.complete
    assert 0.095 <= request.returned_at < 0.1 + ON_TIME


async def test_a_response_that_starts_too_late_is_replaced_by_504() -> None:
    """The loop was blocked past the deadline, so the answer reaches us before our own timer does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        time.sleep(0.15)  # noqa: ASYNC251
        await answer(send)

    middleware = ResilienceMiddleware(app, deadline_default=0.1)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert request.status == 504
    assert request.problem["reason"] == "deadline_exceeded"
    assert outcomes(middleware) == {"deadline": 1}


async def test_check_after_the_deadline_ends_in_504_and_not_in_an_error() -> None:
    """As above, but the handler notices by itself; `DeadlineExceeded` is no fault of the application."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        time.sleep(0.15)  # noqa: ASYNC251
        current().check()

    middleware = ResilienceMiddleware(app, deadline_default=0.1)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert (request.status, request.raised) == (504, None)
    assert outcomes(middleware) == {"deadline": 1}


async def test_a_smaller_budget_inside_the_handler_that_runs_out_is_the_applications_own_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with current().within(0.02):
            await asyncio.sleep(5)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert isinstance(request.raised, DeadlineExceeded)
    assert outcomes(middleware) == {"error": 1}


async def test_a_cancellation_that_the_application_made_up_is_its_own_error() -> None:
    """Nobody answers for it but the server."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RequestCancelled(CancelReason.SHUTDOWN)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert isinstance(request.raised, RequestCancelled)
    assert outcomes(middleware) == {"error": 1}


async def test_a_foreign_timeout_error_is_not_ours() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        time.sleep(0.03)  # noqa: ASYNC251
        raise TimeoutError("of the database")

    middleware = ResilienceMiddleware(app, deadline_default=0.02)
    async with nothing_left(middleware):
        request = await Request(middleware).run()
    assert isinstance(request.raised, TimeoutError)
    assert request.messages == []


async def test_a_stream_that_never_lets_the_loop_run_is_cut_off_as_well() -> None:
    """A server whose caller has gone returns from send() at once, so a fast stream would keep the loop for itself."""
    sent = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        end = time.monotonic() + 2
        while time.monotonic() < end:
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        nonlocal sent
        sent += 1

    middleware: Any = ResilienceMiddleware(app, deadline_default=0.1)
    began = time.monotonic()
    await asyncio.create_task(middleware(http_scope(), receive, send))
    assert time.monotonic() - began < 0.1 + ON_TIME
    assert sent > 100
    assert is_idle(middleware)


async def test_an_application_that_swallows_its_end_and_streams_on_does_not_keep_the_loop() -> None:
    """Messages after the end are dropped, and each gives way to the others."""
    turns = 0
    during: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            before = turns
            for _ in range(200):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            during.append(turns - before)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    middleware = ResilienceMiddleware(app, deadline_default=0.05)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await asyncio.sleep(0.045)
        counter = asyncio.create_task(count_turns())
        await request.end()
        counter.cancel()
        await asyncio.wait({counter})
    assert request.status == 504
    assert len(request.messages) == 2
    assert during[0] >= 199


# -- two of ours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between", ["nothing", "a middleware that runs the application in a task of its own"]
)
@pytest.mark.parametrize(("outside", "inside"), [(0.3, 30.0), (30.0, 0.3)])
async def test_a_deadline_never_grows_from_layer_to_layer(
    between: str, outside: float, inside: float
) -> None:
    seen: list[float] = []

    async def handler() -> None:
        context = current()
        seen.extend((context.remaining(), context.deadline_at - context.clock.now()))

    inner: Any = ResilienceMiddleware(plain(handler), deadline_default=inside)

    async def in_a_task(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(inner(scope, receive, send))

    middle = inner if between == "nothing" else in_a_task
    outer = ResilienceMiddleware(middle, deadline_default=outside)
    async with nothing_left(outer, inner):
        await Request(outer).run()
    assert a_little_less(seen[0], 0.3)
    assert a_little_less(seen[1], 0.3)  # of its own, whoever is around it


async def test_a_request_that_passes_two_middlewares_of_one_policy_is_guarded_once() -> None:
    """Else the inner one would wait for the slot that the outer one holds."""
    seen: list[object] = []

    async def handler() -> None:
        seen.append(slots(outer))

    policy = ServerPolicy(limit=1, queue=5)
    inner: Any = ResilienceMiddleware(plain(handler), policy)

    async def in_a_task(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.create_task(inner(scope, receive, send))

    outer = ResilienceMiddleware(in_a_task, policy)
    async with nothing_left(outer):
        request = await Request(outer).run(within=0.5)
    assert request.status == 200
    assert seen == [1]


async def test_two_deadlines_at_one_instant_make_one_answer() -> None:
    inner = ResilienceMiddleware(plain(lambda: asyncio.sleep(5)), deadline_default=0.05)
    outer = ResilienceMiddleware(inner, deadline_default=0.05)
    async with nothing_left(outer, inner):
        request = await Request(outer).run()
    assert (request.status, len(request.starts), request.raised, request.cancelling) == (504, 1, None, 0)
    assert request.complete


async def test_a_context_that_leaked_from_another_request_shortens_nothing() -> None:
    """Servers create the next request's task out of the last one's (pipelining), with its context variables."""
    seen: list[float] = []
    follow_up: list[Request] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current().remaining())
        if scope["path"] == "/first":
            follow_up.append(Request(middleware).start())
        await answer(send)

    middleware = ResilienceMiddleware(app, deadline_default=7.0)
    async with nothing_left(middleware):
        await Request(middleware, http_scope("/first", headers=[budget(200)])).run()
        await follow_up[0].end()
    assert a_little_less(seen[0], 0.2)
    assert a_little_less(seen[1], 7.0)


# -- failing open ------------------------------------------------------------------------------------------------------


class BrokenTable:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("broken on purpose")


async def test_requests_pass_when_our_own_code_breaks(caplog: pytest.LogCaptureFixture) -> None:
    events: list[Event] = []
    middleware = ResilienceMiddleware(hello, listeners=[events.append])
    middleware._guard.controller = BrokenTable()  # type: ignore[assignment]
    for _ in range(3):
        request = await Request(middleware).run()
        assert (request.status, request.body, request.raised) == (200, b"hello", None)
    assert middleware._guard.listeners.errors == 3
    assert [type(each) for each in events] == [GuardFailed] * 3
    assert len(caplog.records) == 1, "logged once a minute, not once a request"


async def test_a_broken_route_look_up_makes_the_request_an_unmatched_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Resolver:
        def resolve(self, path: str, scope: Any) -> None:
            raise RuntimeError("broken on purpose")

    middleware = ResilienceMiddleware(hello)
    await Request(middleware).run()
    middleware._protection.table._resolver = Resolver()  # type: ignore[assignment]
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope("/x")).run()
    assert request.status == 200
    assert figures(middleware).guard_errors == 1
    assert {route.route: route.arrived for route in figures(middleware).routes if route.arrived} == {
        "unmatched": 2
    }
    assert len(caplog.records) == 1


async def test_a_broken_trust_function_means_no_trust(caplog: pytest.LogCaptureFixture) -> None:
    def broken(peer: str) -> bool:
        raise RuntimeError("broken on purpose")

    seen: list[float] = []
    middleware = ResilienceMiddleware(remembering(seen), trusted_peers=broken, deadline_default=2.0)
    await Request(middleware, http_scope(headers=[budget(5000)])).run()
    assert a_little_less(seen[0], 2.0)
    assert figures(middleware).guard_errors == 1
    assert len(caplog.records) == 1


async def test_a_broken_listener_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("broken on purpose")

    middleware = ResilienceMiddleware(
        plain(lambda: asyncio.sleep(5)), deadline_default=0.05, listeners=[broken]
    )
    async with nothing_left(middleware):
        for headers in ([], [budget(0)]):
            request = await Request(middleware, http_scope(headers=headers)).run()
            assert request.status == 504
    assert figures(middleware).guard_errors == 2
    assert len(caplog.records) == 1


async def test_outside_any_task_requests_pass_unguarded_and_leave_nothing() -> None:
    """Nobody could cancel such a request."""
    finished = asyncio.get_running_loop().create_future()
    middleware: Any = ResilienceMiddleware(hello)
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    def step() -> None:
        try:
            middleware(http_scope(), None, send).send(None)
        except StopIteration:
            finished.set_result(None)

    asyncio.get_running_loop().call_soon(step)
    await finished
    assert messages[0]["status"] == 200
    assert slots(middleware) == 0


# -- configuration -----------------------------------------------------------------------------------------------------


async def test_overrides_differ_from_the_policy_and_leave_it_alone() -> None:
    policy = ServerPolicy(limit=7, name="shop")
    assert figures(ResilienceMiddleware(hello, policy, limit=3)).limit == 3
    assert figures(ResilienceMiddleware(hello, policy)).limit == 7
    assert figures(ResilienceMiddleware(hello, policy, limit=3)).app == "shop"


async def test_one_policy_is_one_limit_and_an_equal_one_is_another() -> None:
    app = Counting()
    policy = ServerPolicy(limit=1, queue=0)
    first, second = ResilienceMiddleware(app, policy), ResilienceMiddleware(app, policy)
    third = ResilienceMiddleware(app, ServerPolicy(limit=1, queue=0))
    async with nothing_left(first, third):
        holder = Request(first).start()
        await until(lambda: app.running == 1)
        assert (await Request(second).run()).status == 503
        other = Request(third).start()
        await until(lambda: app.running == 2)
        app.gate.set()
        await holder.end()
        await other.end()


def test_an_unknown_field_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="limits"):
        ResilienceMiddleware(hello, limits=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"limit": 0}, "limit=0"),
        ({"limit": True}, "limit=True"),
        ({"limit": "many"}, "limit='many'"),
        ({"queue": -1}, "queue=-1"),
        ({"max_wait": float("nan")}, "max_wait=nan"),
        ({"wait_share": 1.5}, "wait_share=1.5"),
        ({"deadline_default": 0}, "deadline_default=0"),
        ({"deadline_default": 90.0}, "deadline_default=90.0"),
        ({"deadline_maximum": 1e12}, "deadline_maximum=1000000000000.0"),
        ({"trusted_peers": ["10.0.0.0/99"]}, "trusted_peers='10.0.0.0/99'"),
        ({"exempt_paths": ["health"]}, "exempt_paths='health'"),
        ({"default_class": "vip"}, "default_class='vip'"),
        ({"routes": [RouteRule("/x", priority="vip")]}, "vip"),
        ({"policy": 5}, "policy=5"),
    ],
)
def test_wrong_configuration_says_field_value_and_range(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        ResilienceMiddleware(hello, **fields)
    assert "must" in str(caught.value)


# -- the off switch ----------------------------------------------------------------------------------------------------


async def test_switched_off_requests_go_straight_to_the_application() -> None:
    seen: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((current(), receive, send))
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=1)
    switch.turn_off()
    try:
        request = await Request(middleware, http_scope(headers=[budget(0)])).run()
    finally:
        switch.turn_on()
    assert request.status == 200
    assert seen == [(NO_REQUEST, request.receive, request.send)]
    assert not [route for route in figures(middleware).routes if route.arrived]
    assert (await Request(middleware, http_scope(headers=[budget(0)])).run()).status == 504


async def test_a_request_that_runs_when_the_switch_goes_off_stays_guarded() -> None:
    app = Counting()
    middleware = ResilienceMiddleware(app, limit=1, deadline_default=0.15)
    async with nothing_left(middleware):
        request = Request(middleware).start()
        await until(lambda: app.running == 1)
        switch.turn_off()
        try:
            await request.end()
        finally:
            switch.turn_on()
    assert request.status == 504


async def test_refusals_are_told_to_listeners_once() -> None:
    events: list[Event] = []
    middleware = ResilienceMiddleware(hello, listeners=[events.append])
    await Request(middleware, http_scope("/x", headers=[budget(0)])).run()
    assert events == [Refused("unmatched", "normal", Reason.EXPIRED_ON_ARRIVAL, 0.0)]


async def test_retry_after_says_what_the_drain_rate_says() -> None:
    """A backlog of 20 that drains at 2 a second says 8 to 14, one that drains at 200 a second 1 to 2."""
    for rate, low, high in ((2, 8, 14), (200, 1, 2)):
        app = Counting()
        middleware = ResilienceMiddleware(app, limit=1, queue=20, max_wait=3600.0, wait_share=1.0)
        middleware._guard.controller.forecast._random = random.Random(1)
        for _ in range(40):
            middleware._guard.controller.forecast.ran([1 / rate])
        async with nothing_left(middleware):
            requests = [Request(middleware).start() for _ in range(21)]
            await until(lambda: queued(middleware) == 20)  # noqa: B023
            said = {int((await Request(middleware).run()).header("retry-after") or 0) for _ in range(20)}
            app.gate.set()
            for request in requests:
                await request.end()
        assert low <= min(said)
        assert max(said) <= high
        assert len(said) > 1, "jittered, so that callers do not come back together"
