"""The middleware is invisible otherwise: messages, scope, context variables, and what an idle request costs."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import anyio.to_thread
import pytest
from asgiref.testing import ApplicationCommunicator

from resilient_mw import RouteRule, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.context import CURRENT, NO_REQUEST
from tests.asgi.driver import (
    App,
    Message,
    Request,
    answer,
    budget,
    figures,
    hello,
    http_scope,
    nothing_left,
    outcomes,
    plain,
    until,
)

pytestmark = pytest.mark.usefixtures("own_time")


BEHIND_THE_WATCHER = 0.15
"""Seconds after which a request is watched for a disconnect by a reader of ours."""

START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")],
}
CONVERSATIONS: dict[str, list[Message]] = {
    "one body": [START, {"type": "http.response.body", "body": b"x"}],
    "a body in many parts, empty ones among them": [
        START,
        *({"type": "http.response.body", "body": b"x" * (n % 3), "more_body": True} for n in range(20)),
        {"type": "http.response.body"},
    ],
    "early hints": [
        {"type": "http.response.early_hint", "links": [b"</a.css>; rel=preload"]},
        START,
        {"type": "http.response.early_hint", "links": []},
        {"type": "http.response.body", "body": b"x", "more_body": False},
    ],
    "a file by path": [START, {"type": "http.response.pathsend", "path": "/etc/hostname"}],
    "a file by descriptor": [
        START,
        {"type": "http.response.zerocopysend", "file": 3, "offset": 0, "count": 10, "more_body": True},
        {"type": "http.response.zerocopysend", "file": 3},
    ],
    "trailers": [
        START | {"trailers": True},
        {"type": "http.response.body", "body": b"x", "more_body": False},
        {"type": "http.response.trailers", "headers": [(b"a", b"1")], "more_trailers": True},
        {"type": "http.response.trailers", "headers": [(b"b", b"2")]},
    ],
    "a file by descriptor and trailers": [
        START | {"trailers": True},
        {"type": "http.response.zerocopysend", "file": 3},
        {"type": "http.response.trailers", "headers": [(b"a", b"1")]},
    ],
    "a file by path and trailers": [
        START | {"trailers": True},
        {"type": "http.response.pathsend", "path": "/etc/hostname"},
        {"type": "http.response.trailers", "headers": [(b"a", b"1")]},
    ],
    "push and debug": [
        {"type": "http.response.debug", "info": {"template": object()}},
        {"type": "http.response.push", "path": "/b", "headers": []},
        START,
        {"type": "http.response.body", "body": b"x"},
    ],
    "messages that nobody knows yet": [
        {"type": "http.response.quantum", "entangled": True},
        START,
        {"type": "vendor.thing"},
        {"type": "http.response.body", "body": b"x"},
        {"type": "vendor.thing", "after": "the end"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("pause", [0.0, BEHIND_THE_WATCHER], ids=["fast", "watched"])
@pytest.mark.parametrize("name", list(CONVERSATIONS))
async def test_every_message_passes_unchanged_and_in_order(name: str, pause: float) -> None:
    """B16: nothing is eaten, reordered, merged or held back; the very objects arrive."""
    conversation = copy.deepcopy(CONVERSATIONS[name]) if "debug" not in name else CONVERSATIONS[name]
    arrived: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(pause)
        for count, message in enumerate(conversation, 1):
            await send(message)
            arrived.append(len(request.messages) - count)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware)
        await request.run()
    assert request.raised is None
    assert all(ours is theirs for ours, theirs in zip(request.messages, conversation, strict=True))
    assert set(arrived) == {0}, "each message had reached the server when send() returned"
    assert outcomes(middleware) == {"completed": 1}


def _has_sent(request: Request, count: int) -> Callable[[], bool]:
    return lambda: len(request.messages) == count


def _sends_and_waits(messages: list[Message]) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)
        await asyncio.sleep(0.2)

    return app


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("a file by path", 2),
        ("a file by descriptor", 3),
        ("trailers", 4),
        ("a file by descriptor and trailers", 3),
        ("a file by path and trailers", 3),
        ("one body", 2),
        ("early hints", 4),
    ],
)
async def test_what_ends_a_response_is_known(name: str, ends: int) -> None:
    """A disconnect after it cancels nothing, one before it does; pathsend, zerocopysend and trailers end responses, too."""
    for at in range(1, ends + 1):
        middleware = ResilienceMiddleware(_sends_and_waits(CONVERSATIONS[name][:at]))
        async with nothing_left(middleware):
            request = Request(middleware, telling="one-shot").start()
            await until(_has_sent(request, at))
            await asyncio.sleep(0.01)
            request.disconnect()
            await request.end()
        assert outcomes(middleware) == {("completed" if at == ends else "client_disconnect"): 1}, at


_Communicator: Any = ApplicationCommunicator  # it has no types


async def test_asgiref_as_the_driver() -> None:
    """A second opinion beside our own driver."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        first, second = await receive(), await receive()
        await answer(send, first["body"] + second["body"])

    communicator: Any = _Communicator(ResilienceMiddleware(app), http_scope())
    await communicator.send_input({"type": "http.request", "body": b"a", "more_body": True})
    await communicator.send_input({"type": "http.request", "body": b"b"})
    assert (await communicator.receive_output())["status"] == 200
    assert (await communicator.receive_output())["body"] == b"ab"
    await communicator.wait()


@pytest.mark.parametrize("pause", [0.0, BEHIND_THE_WATCHER], ids=["fast", "watched"])
async def test_the_request_body_arrives_in_its_parts_and_in_order(pause: float) -> None:
    parts = [bytes([n]) * n for n in range(40)]
    received: list[Message] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(pause)
        while True:
            received.append(await receive())
            if not received[-1]["more_body"]:
                break
            await asyncio.sleep(0)
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope(method="POST"), body=parts).run()
    assert request.status == 200
    assert [each["body"] for each in received] == parts
    assert [each["more_body"] for each in received] == [True] * 39 + [False]


async def test_a_body_part_is_not_delayed_until_the_next_one() -> None:
    received: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message: Message = {"more_body": True}
        while message["more_body"]:
            message = await receive()
            received.append(message["body"])
        await answer(send)

    middleware = ResilienceMiddleware(app)
    async with nothing_left(middleware):
        request = Request(middleware, http_scope(method="POST"), body=()).start()
        for number in range(6):
            await asyncio.sleep(0.03)
            request.feed(b"%d" % number, more_body=number < 5)
            await until(lambda: len(received) == number + 1, 0.5)  # noqa: B023
        await request.end()
    assert received == [b"%d" % number for number in range(6)]


async def test_the_scope_is_neither_copied_nor_changed() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await answer(send)

    scope = http_scope(headers=[budget(900), (b"cookie", b"a=1")], state={"key": [1]}, extensions={"tls": {}})
    before = copy.deepcopy(scope)
    await Request(ResilienceMiddleware(app), scope).run()
    assert seen[0] is scope
    assert scope == before


async def test_a_fast_request_makes_no_task() -> None:
    loop = asyncio.get_running_loop()
    made = 0
    create_task = loop.create_task

    def counting(*arguments: Any, **more: Any) -> Any:
        nonlocal made
        made += 1
        return create_task(*arguments, **more)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await answer(send)

    middleware = ResilienceMiddleware(app)
    loop.create_task = counting  # type: ignore[method-assign]
    try:
        for _ in range(20):
            await Request(middleware).run()
    finally:
        loop.create_task = create_task  # type: ignore[method-assign]
    assert made == 20, "one each, by the server"


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("how", ["fast", "listening", "watched", "failing"])
async def test_a_request_is_freed_without_the_garbage_collector(how: str) -> None:
    references: list[weakref.ref[Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        references.append(weakref.ref(current()))
        await receive()
        if how == "listening":
            listener = asyncio.create_task(receive())
            await asyncio.sleep(0.01)
            listener.cancel()
            await asyncio.wait({listener})
        if how == "watched":
            await asyncio.sleep(BEHIND_THE_WATCHER)
        if how == "failing":
            raise LookupError
        await answer(send)

    middleware = ResilienceMiddleware(app, deadline_default=10.0)
    request = await Request(middleware).run()
    request.raised = None
    await until(lambda: references[0]() is None, 1.0)


# -- context variables -------------------------------------------------------------------------------------------------

BELOW: ContextVar[str] = ContextVar("below", default="unset")
ABOVE: ContextVar[str] = ContextVar("above", default="unset")


async def test_b13_variables_set_below_are_visible_above() -> None:
    """B13: the application runs in the server's own task and context."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        BELOW.set("by the application")
        await answer(send)

    middleware: Any = ResilienceMiddleware(app)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        await middleware(scope, receive, send)
        seen.append(BELOW.get())

    await Request(outer).run()
    assert seen == ["by the application"]


async def test_b13_middlewares_around_find_their_variables_whoever_calls_them() -> None:
    """B13: the 504 and the watcher for the disconnect run in tasks of ours, which call what middlewares around us wrapped."""
    seen: list[tuple[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(5)

    middleware: Any = ResilienceMiddleware(app, deadline_default=BEHIND_THE_WATCHER)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        ABOVE.set("by a middleware")

        async def wrapped_receive() -> Message:
            seen.append(("receive", ABOVE.get()))
            message: Message = await receive()
            return message

        async def wrapped_send(message: Message) -> None:
            seen.append(("send", ABOVE.get()))
            await send(message)

        await middleware(scope, wrapped_receive, wrapped_send)

    async with nothing_left(middleware):
        request = await Request(outer).run()
    assert request.status == 504
    assert set(seen) == {("receive", "by a middleware"), ("send", "by a middleware")}


async def test_b13_a_queued_requests_receive_is_called_in_its_context() -> None:
    """B13: while a request waits, too."""
    seen: list[str] = []
    middleware: Any = ResilienceMiddleware(plain(lambda: asyncio.sleep(0.1)), limit=1, queue=1)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        ABOVE.set("by a middleware")

        async def wrapped_receive() -> Message:
            seen.append(ABOVE.get())
            message: Message = await receive()
            return message

        await middleware(scope, wrapped_receive, send)

    async with nothing_left(middleware):
        first = Request(middleware).start()
        second = await Request(outer).run()
        await first.end()
    assert second.status == 200
    assert set(seen) == {"by a middleware"}


@pytest.mark.in_real_time
async def test_b13_one_deadline_for_all_that_runs_for_a_request() -> None:
    """B13: child tasks, threads and background work read the same instant; outside there is none."""
    found: dict[str, float] = {}

    def note(who: str) -> None:
        context = current()
        assert isinstance(context, HttpExchange)
        found[who] = context.deadline_at

    async def child() -> None:
        note("child task")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        note("handler")
        await asyncio.create_task(child())
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
        await asyncio.to_thread(note, "thread")
        await anyio.to_thread.run_sync(note, "anyio thread")
        await answer(send)
        note("background")

    middleware: Any = ResilienceMiddleware(app)

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        assert CURRENT.get() is NO_REQUEST
        await middleware(scope, receive, send)
        assert CURRENT.get() is NO_REQUEST

    async with nothing_left(middleware):
        request = await Request(outer).run()
    assert request.raised is None
    assert len(found) == 5
    assert len(set(found.values())) == 1


@pytest.mark.in_real_time
async def test_b13_concurrent_requests_never_see_each_others_budget() -> None:
    """B13: 50 at once, each with a budget of its own."""
    wrong: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        own = current()
        wish = int(scope["path"][1:]) / 1000
        for _ in range(5):
            await asyncio.sleep(0.002)
            await asyncio.to_thread(threading.get_ident)
            if current() is not own or not wish - 2.0 < current().remaining() <= wish:
                wrong.append((wish, current().remaining()))
        await answer(send)

    middleware = ResilienceMiddleware(app, limit=50, deadline_default=60.0)
    async with nothing_left(middleware):
        requests = [
            Request(middleware, http_scope(f"/{3000 + 1000 * n}", headers=[budget(3000 + 1000 * n)])).start()
            for n in range(50)
        ]
        for request in requests:
            await request.end()
    assert wrong == []
    assert {request.status for request in requests} == {200}


async def test_the_context_is_gone_after_an_error_and_after_a_cancellation() -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(5)

    for app, deadline in ((fails, 10.0), (waits, 0.05)):
        left: list[Any] = []
        middleware: Any = ResilienceMiddleware(app, deadline_default=deadline)

        async def outer(
            scope: Any, receive: Any, send: Any, *, inner: Any = middleware, into: Any = left
        ) -> None:
            try:
                await inner(scope, receive, send)
            except LookupError:
                pass
            into.append(CURRENT.get())

        async with nothing_left(middleware):
            await Request(outer).run()
        assert left == [NO_REQUEST]


# -- paths and labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "root_path", "exempt"),
    [
        ("/health", "", True),
        ("/healthz", "", True),
        ("/healthz-admin", "", False),
        ("/health/../admin", "", False),
        ("//health", "", False),
        ("/HEALTH", "", False),
        ("/health%2f", "", False),
        ("/health/", "", False),
        ("/health;x=1", "", False),
        ("/api/health", "/api", True),  # the server includes the root path
        ("/health", "/api", True),  # and one that does not
        ("/apihealth", "/api", False),
        ("/apis/health", "/api", False),
        ("/api/api/health", "/api", False),
        ("/api", "/api", False),
    ],
)
async def test_b10_health_is_exempt_by_exact_path_only(path: str, root_path: str, exempt: bool) -> None:
    """B10: no text tricks reach the protected class, with the root path in the path or not."""
    middleware = ResilienceMiddleware(hello)
    async with nothing_left(middleware):
        for method in ("GET", "HEAD", "POST"):
            await Request(middleware, http_scope(path, method, root_path=root_path)).run()
    arrived = {route.priority: route.arrived for route in figures(middleware).routes if route.arrived}
    assert arrived == ({"exempt": 2, "normal": 1} if exempt else {"normal": 3})


async def test_b10_a_rule_is_text_and_not_a_pattern() -> None:
    """B10: dots and pluses in a rule stand for themselves."""
    middleware = ResilienceMiddleware(
        hello, routes=[RouteRule("/v1.0", priority="critical"), RouteRule("/a+b", priority="critical")]
    )
    async with nothing_left(middleware):
        for path in ("/v1.0", "/a+b", "/v1x0", "/aab", "/a b"):
            await Request(middleware, http_scope(path)).run()
    arrived = {
        (route.route, route.priority): route.arrived for route in figures(middleware).routes if route.arrived
    }
    assert arrived == {("/v1.0", "critical"): 1, ("/a+b", "critical"): 1, ("unmatched", "normal"): 3}


async def test_b91_labels_do_not_grow_with_what_scanners_try() -> None:
    """B91: paths, methods and hosts that nobody serves share one entry, refused or not."""
    middleware = ResilienceMiddleware(hello, routes=[RouteRule("/items/{id}", priority="critical")])
    await Request(middleware).run()
    before = {(route.route, route.priority) for route in figures(middleware).routes}
    async with nothing_left(middleware):
        for number in range(2000):
            scope = http_scope(
                f"/{number}/../{'x' * (number % 50)}\u0000\U0001f600",
                ["GET", "get", "FOO", "M" * 4096][number % 4],
                headers=[(b"host", b"%d" % number), (b"priority", b"u=%d" % number), budget(number % 7)],
            )
            await Request(middleware, scope).run()
            await Request(middleware, http_scope(f"/items/{number}")).run()
    labels = {(route.route, route.priority) for route in figures(middleware).routes}
    assert labels == before | {("/items/{id}", "critical")}
    assert len(middleware._protection.table._found) <= 2


@pytest.mark.parametrize(
    ("value", "effect"),
    [
        ("0", "expired"), ("00", "expired"), ("  0 ", "expired"), ("-1", "ignored"), ("-0", "ignored"),
        ("0.0004", "ignored"), ("+5", "ignored"), ("5 ", "used"), ("05", "used"), ("", "ignored"), ("5s", "ignored"),
        ("5000ms", "ignored"), ("1e3", "ignored"), ("1_000", "ignored"), ("NaN", "ignored"), ("inf", "ignored"),
        ("0x10", "ignored"), ("5, 1", "ignored"), ("1" + "0" * 30, "ignored"), ("9" * 10, "used"), ("\xb2", "ignored"),
        ("\xa05", "ignored"), ("1" * 1_048_576, "ignored"), ("5\x00", "ignored"), ("5\r\n", "ignored"),
    ],
    ids=lambda value: repr(value)[:12],
)  # fmt: skip
async def test_b95_b97_every_value_of_the_deadline_header_has_one_effect(value: str, effect: str) -> None:
    """B95, B97: used, expired or ignored and counted; never an exception, never an endless deadline."""
    budgets: list[float] = []

    async def handler() -> None:
        budgets.append(current().remaining())

    # The minimum raises what a stranger asks for, but not "now".
    middleware = ResilienceMiddleware(plain(handler), smallest_budget=0.0, deadline_minimum=0.5)
    async with nothing_left(middleware):
        request = await Request(middleware, http_scope(headers=[budget(value)])).run()
    assert request.raised is None
    assert figures(middleware).guard_errors == 0
    assert figures(middleware).ignored_headers == ({"x-request-timeout-ms": 1} if effect == "ignored" else {})
    if effect == "expired":
        assert (request.status, request.header("x-refusal-reason")) == (504, "expired_on_arrival")
        assert budgets == []
    else:
        assert request.status == 200
        # An untrusted caller may shorten the default and does not lengthen it.
        most = 0.5 if effect == "used" and int(value) == 5 else 10.0
        assert most - 0.4 < budgets[0] <= most


async def test_b97_a_huge_budget_of_a_trusted_caller_is_clamped_and_overflows_nothing() -> None:
    """B97: 115 days by header, down to what the server allows."""
    budgets: list[float] = []

    async def handler() -> None:
        budgets.append(current().remaining())
        await asyncio.sleep(BEHIND_THE_WATCHER)

    middleware = ResilienceMiddleware(
        plain(handler), trusted_peers=["203.0.113.0/24"], deadline_maximum=86_400.0
    )
    async with nothing_left(middleware):
        for value, name in (("9999999999", "connect-timeout-ms"), ("99999999H", "grpc-timeout")):
            request = await Request(middleware, http_scope(headers=[budget(value, name)])).run()
            assert request.status == 200
    assert all(86_399 < each <= 86_400 for each in budgets)


def test_cancel_reasons_are_a_closed_set() -> None:
    assert {each.value for each in CancelReason} == {
        "deadline",
        "client_disconnect",
        "upstream",
        "shutdown",
        "caller",
        "body_too_large",
    }
