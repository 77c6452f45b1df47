"""Websockets: a place for as long as one is open, refusals that the server can send, and peers who leave unseen."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_mw import CancelReason, PriorityClass, RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.connection import MOST_MESSAGES, WATCH_AFTER, Connection, PeerGone
from resilient_mw.core.events import Refused
from resilient_mw.core.snapshot import WebsocketSnapshot
from resilient_mw.runtime.context import CURRENT, NO_REQUEST
from resilient_mw.testing import disabled
from tests.asgi.driver import Message, Request, figures, http_scope, nothing_left, slots, until
from tests.asgi.sockets import RAISES, SAYS_NOTHING, Socket, socket_scope

pytestmark = pytest.mark.usefixtures("own_time")


CLASSES = [PriorityClass("gold", reserved=10), PriorityClass("normal"), PriorityClass("bronze")]


def sockets(middleware: ResilienceMiddleware) -> WebsocketSnapshot:
    found = figures(middleware).websockets
    assert found is not None
    return found


def opened(middleware: ResilienceMiddleware) -> int:
    return sum(sockets(middleware).opened.values())


def ended(middleware: ResilienceMiddleware) -> dict[str, int]:
    return {name: count for route in sockets(middleware).routes for name, count in route.outcomes.items()}


def refused(middleware: ResilienceMiddleware) -> dict[str, int]:
    return {name: count for route in sockets(middleware).routes for name, count in route.refused.items()}


@asynccontextmanager
async def all_given_back(*middlewares: ResilienceMiddleware, collect: bool = True) -> AsyncIterator[None]:
    """Assert that afterwards no place, task or complaint is left, and that every arrival is accounted for."""
    async with nothing_left(*middlewares, collect=collect):
        yield
    for middleware in middlewares:
        assert opened(middleware) == 0
        for route in sockets(middleware).routes:
            assert route.arrived == route.admitted + sum(route.refused.values()), route
            assert route.admitted == sum(route.outcomes.values()), route
            assert not any(route.run.counts), route


async def echo(scope: Any, receive: Any, send: Any) -> None:
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def open_to(middleware: Any, path: str = "/ws", **more: Any) -> Socket:
    socket = Socket(middleware, socket_scope(path, **more)).start()
    await until(lambda: bool(socket.sent))
    return socket


# -- the limit ---------------------------------------------------------------------------------------------------------


async def test_over_the_limit_the_handshake_gets_the_refusal_of_a_request() -> None:
    """B07: as a denial response, and never as an HTTP response message."""
    middleware = ResilienceMiddleware(echo, websocket_limit=1, limit=1)
    async with all_given_back(middleware):
        first = await open_to(middleware)
        assert (opened(middleware), slots(middleware)) == (1, 0)
        second = await Socket(middleware).run()
        status, headers, problem = second.denial
        assert status == problem["status"] == 503
        assert headers["x-refusal-reason"] == problem["reason"] == "websocket_limit"
        assert headers["content-type"] == "application/problem+json"
        assert 1 <= int(headers["retry-after"]) <= 60
        assert "connection" not in headers
        assert second.raised is None
        first.say("still there")
        await until(lambda: first.texts == ["still there"])
        first.leave()
        await first.end()
        assert (await open_to(middleware)).types == ["accept"]  # the place is free again
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
    assert refused(middleware) == {"websocket_limit": 1}


async def test_a_server_without_denial_responses_gets_a_close_before_the_accept() -> None:
    middleware = ResilienceMiddleware(echo, websocket_limit=1)
    extensions: list[Any] = [{}, None, {"other": {}}]
    for without in extensions:
        async with all_given_back(middleware):
            first = await open_to(middleware)
            scope = socket_scope(extensions=without)
            refusal = await Socket(middleware, scope).run()
            assert refusal.sent == [{"type": "websocket.close", "code": 1013, "reason": "websocket_limit"}]
            del scope["extensions"]
            assert (await Socket(middleware, scope).run()).types == ["close"]
            first.leave()
            await first.end()


@pytest.mark.parametrize("denial", [True, False])
async def test_a_refusal_comes_after_the_connect_and_nobody_answers_who_has_gone(denial: bool) -> None:
    middleware = ResilienceMiddleware(echo, websocket_limit=1)
    async with all_given_back(middleware):
        first = await open_to(middleware)
        second = await Socket(middleware, socket_scope(denial=denial)).run()
        assert second.taken == 1
        gone = Socket(middleware, socket_scope(denial=denial))
        gone._incoming.clear()
        gone.leave()
        assert (await gone.run()).raised is None
        lost = Socket(middleware, socket_scope(denial=denial), lost=RAISES)
        lost.gone = True
        assert (await lost.run()).raised is None
        first.leave()
        await first.end()


async def test_the_form_of_the_denial_is_what_the_handshake_asks_for() -> None:
    policy = ServerPolicy(websocket_limit=1, cors_origins=["https://shop.example"], debug=True)
    middleware = ResilienceMiddleware(echo, policy)
    async with all_given_back(middleware):
        first = await open_to(middleware)
        scope = socket_scope(headers=[(b"x-request-id", b"r1"), (b"origin", b"https://shop.example")])
        _, headers, problem = (await Socket(middleware, scope).run()).denial
        assert headers["access-control-allow-origin"] == "https://shop.example"
        assert problem["instance"] == "r1"
        figures = {name: problem[name] for name in ("class", "limit", "in_flight", "queue_length")}
        assert figures == {"class": "normal", "limit": 1, "in_flight": 1, "queue_length": 0}
        assert "remaining_budget_ms" not in problem
        first.leave()
        await first.end()


async def test_listeners_hear_of_a_refused_websocket() -> None:
    events: list[Any] = []
    middleware = ResilienceMiddleware(
        echo,
        websocket_limit=1,
        listeners=[events.append],
        routes=[RouteRule("/feed/{id}", priority="sheddable")],
    )
    async with all_given_back(middleware):
        first = await open_to(middleware)
        await Socket(middleware, socket_scope("/feed/1")).run()
        first.leave()
        await first.end()
    (event,) = events
    assert isinstance(event, Refused)
    assert (event.route, event.priority, event.reason) == ("/feed/{id}", "sheddable", "websocket_limit")


# -- classes, exempt ones, draining, overload --------------------------------------------------------------------------


async def test_a_class_keeps_its_share_of_the_places() -> None:
    """10 of 40 slots are reserved, so a quarter of the places is: one of five, rounded down."""
    rules = [RouteRule("/gold", priority="gold"), RouteRule("/normal", methods=["GET"], priority="gold")]
    middleware = ResilienceMiddleware(echo, websocket_limit=5, limit=40, classes=CLASSES, routes=rules)
    async with all_given_back(middleware):
        held = [await open_to(middleware, "/normal") for _ in range(4)]
        assert (await Socket(middleware, socket_scope("/normal")).run()).denial[0] == 503
        held.append(await open_to(middleware, "/gold"))
        assert sockets(middleware).opened == {"gold": 1, "normal": 4, "bronze": 0, "exempt": 0}
        assert (await Socket(middleware, socket_scope("/gold")).run()).denial[0] == 503
        for each in held:
            each.leave()
            await each.end()


async def test_a_rule_may_be_for_websockets_only_and_a_cost_is_none_of_places() -> None:
    rules = [RouteRule("/ws", methods=["websocket"], priority="sheddable", cost=30)]
    middleware = ResilienceMiddleware(echo, websocket_limit=2, routes=rules)
    async with all_given_back(middleware):
        held = [await open_to(middleware) for _ in range(2)]
        assert sockets(middleware).opened["sheddable"] == 2
        for each in held:
            each.leave()
            await each.end()


async def test_exempt_websockets_take_no_place_and_have_their_own_bound() -> None:
    rules = [RouteRule("/monitor", priority="exempt")]
    middleware = ResilienceMiddleware(echo, websocket_limit=1, exempt_limit=2, routes=rules)
    async with all_given_back(middleware):
        held = [await open_to(middleware), await open_to(middleware, "/monitor")]
        middleware.protection.guard.drain()
        held.append(await open_to(middleware, "/healthz"))
        assert sockets(middleware).opened == {"critical": 0, "normal": 1, "sheddable": 0, "exempt": 2}
        _, headers, _ = (await Socket(middleware, socket_scope("/healthz")).run()).denial
        assert headers["x-refusal-reason"] == "exempt_limit"
        # Those who watch by HTTP are not kept out by those who watch by websocket.
        assert sum(each.slots for each in figures(middleware).classes) == 0
        for each in held:
            each.leave()
            await each.end()


async def test_a_server_that_drains_opens_none_and_leaves_the_open_ones_alone() -> None:
    middleware = ResilienceMiddleware(echo)
    async with all_given_back(middleware):
        first = await open_to(middleware)
        middleware.protection.guard.drain()
        status, headers, _ = (await Socket(middleware).run()).denial
        assert (status, headers["x-refusal-reason"], headers["connection"]) == (503, "draining", "close")
        first.say("a")
        await until(lambda: first.texts == ["a"])
        first.leave()
        await first.end()


async def test_they_are_opened_until_the_delay_of_a_drain_is_over() -> None:
    middleware = ResilienceMiddleware(echo)
    async with all_given_back(middleware):
        middleware.protection.guard.drain(delay=60.0)
        first = await open_to(middleware)
        assert first.sent[0]["type"] == "websocket.accept"
        middleware.protection.guard.drain(delay=0.0, timeout=0.0)
        assert (await Socket(middleware).run()).denial[0] == 503
        first.leave()
        await first.end()


async def test_while_overloaded_the_lowest_class_opens_none() -> None:
    rules = [RouteRule("/low", priority="sheddable")]
    middleware = ResilienceMiddleware(echo, routes=rules)
    alone = ResilienceMiddleware(echo, classes=[PriorityClass("only")], default_class="only")
    async with all_given_back(middleware, alone):
        for each in (middleware, alone):
            each.protection.guard.controller.overloaded = True
        _, headers, _ = (await Socket(middleware, socket_scope("/low")).run()).denial
        assert headers["x-refusal-reason"] == "overloaded"
        held = [await open_to(middleware), await open_to(alone)]
        for socket in held:
            socket.leave()
            await socket.end()


async def test_a_service_of_websockets_alone_looks_at_its_overload() -> None:
    middleware = ResilienceMiddleware(echo)
    overload = middleware.protection.guard.overload
    before = overload.look_at
    async with all_given_back(middleware):
        first = await open_to(middleware)
        assert overload.look_at > before
        first.leave()
        await first.end()


# -- the context -------------------------------------------------------------------------------------------------------


async def test_a_handler_has_a_context_without_a_deadline() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        context = current()
        seen.extend((context.remaining(), context.cancelled, context.cancel_reason, context.overload_state))
        context.check()
        with context.within(5):
            seen.append(current().remaining() <= 5)
        await echo(scope, receive, send)
        seen.extend((context.cancelled, context.cancel_reason))

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave()
        await socket.end()
    assert seen == [math.inf, False, None, "normal", True, True, CancelReason.CLIENT_DISCONNECT]
    assert CURRENT.get() is NO_REQUEST


@pytest.mark.parametrize("listens", [True, False])
async def test_on_cancel_runs_when_the_peer_leaves_and_nobody_is_cancelled(listens: bool) -> None:
    """The handler of the second case works and does not listen."""
    told: list[tuple[CancelReason, bool]] = []
    finished = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        context = current()
        context.on_cancel(lambda reason: told.append((reason, current() is context)))
        if listens:
            await echo(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        await finished.wait()
        assert (await receive())["code"] == 4000

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave(4000)
        await until(lambda: bool(told), 1.0)
        await asyncio.sleep(0.02)
        assert opened(middleware) == (0 if listens else 1)
        finished.set()
        assert (await socket.end()).raised is None
    assert told == [(CancelReason.CLIENT_DISCONNECT, True)]
    assert ended(middleware) == {"client_disconnect": 1}


async def test_what_a_callback_returns_holds_the_place_until_it_is_done() -> None:
    go_on = asyncio.Event()

    async def clean_up() -> None:
        await go_on.wait()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(lambda _: clean_up())
        await echo(scope, receive, send)

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave()
        await socket.end()
        assert opened(middleware) == 1
        go_on.set()


async def test_a_held_future_keeps_the_place() -> None:
    future = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().hold(future)
        await echo(scope, receive, send)

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave()
        await socket.end()
        assert opened(middleware) == 1
        future.set_result(None)
        await asyncio.sleep(0.01)
        assert opened(middleware) == 0


@pytest.mark.in_real_time
async def test_a_thread_of_the_handler_may_ask_whether_the_peer_is_there() -> None:
    asked: list[CancelReason | None] = []
    gate = threading.Event()

    def work() -> None:
        context = current()
        for _ in range(500):
            if context.cancelled:
                break
            gate.wait(0.01)
        asked.append(context.cancel_reason)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await asyncio.to_thread(work)

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave()
        await socket.end()
    assert asked == [CancelReason.CLIENT_DISCONNECT]


async def test_who_closes_himself_is_not_cancelled() -> None:
    told: list[CancelReason] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(told.append)
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        socket.leave(1000)  # the server's answer to it
        assert (await receive())["type"] == "websocket.disconnect"

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = Socket(middleware).start()
        assert (await socket.end()).raised is None
    assert told == []
    assert ended(middleware) == {"completed": 1}


async def test_a_server_that_stops_is_told_from_a_peer_who_leaves() -> None:
    middleware = ResilienceMiddleware(echo)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        socket.leave(1012)
        await socket.end()
    assert ended(middleware) == {"shutdown": 1}


# -- who only sends ----------------------------------------------------------------------------------------------------


async def ticker(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        await send({"type": "websocket.send", "text": "tick"})
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("lost", [SAYS_NOTHING, RAISES])
async def test_who_only_sends_ends_when_the_peer_has_gone(lost: str) -> None:
    """Servers that say nothing to a send after the end would let him go on for ever, and keep the place."""
    middleware = ResilienceMiddleware(ticker)
    async with all_given_back(middleware):
        socket = Socket(middleware, lost=lost).start()
        await until(lambda: len(socket.texts) > 2)
        socket.leave()
        await socket.end(WATCH_AFTER + 1.0)
        if lost == SAYS_NOTHING:
            assert socket.raised is None  # the error was ours, and no server wants to log it
        else:
            assert type(socket.raised) is ConnectionResetError  # the server's own comes back to it
    assert ended(middleware) == {"client_disconnect": 1}


async def test_who_sends_only_catches_an_ordinary_error() -> None:
    caught: list[Exception] = []
    passed: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await ticker(scope, receive, send)
        except OSError as error:
            caught.append(error)
        assert (await receive())["code"] == 1001
        await send({"type": "websocket.send", "text": "into the void"})  # he knows: as the server wants it
        passed.append(True)

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = Socket(middleware).start()
        await until(lambda: len(socket.texts) > 2)
        socket.leave(1001)
        assert (await socket.end()).raised is None
    assert isinstance(caught[0], ConnectionResetError)
    assert passed == [True]


async def test_the_error_of_somebody_elses_connection_is_the_applications() -> None:
    """A handler that sends to all connections, and does not catch, fails as it would without us."""
    sends: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        sends.append(send)
        current().on_cancel(lambda _: None)
        if scope["path"] == "/other":
            await asyncio.sleep(0.1)
            return
        await asyncio.sleep(0.05)
        await sends[0]({"type": "websocket.send", "text": "to the other one"})

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware, collect=False):
        other = await open_to(middleware, "/other")
        mine = await open_to(middleware)
        other.leave()
        await mine.end()
        await other.end()
        assert isinstance(mine.raised, PeerGone)
    assert sum(route.outcomes["error"] for route in sockets(middleware).routes) == 1


async def test_what_is_read_ahead_keeps_its_order_and_has_a_bound() -> None:
    got: list[Message] = []
    go_on = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        current().on_cancel(lambda _: None)
        await receive()
        await send({"type": "websocket.accept"})
        await go_on.wait()
        while True:
            got.append(await receive())
            if got[-1]["type"] != "websocket.receive":
                return

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        for number in range(3 * MOST_MESSAGES):
            socket.say(str(number))
        await asyncio.sleep(0.02)
        assert socket.taken == 1 + MOST_MESSAGES
        socket.leave(4001)
        go_on.set()
        await socket.end()
    assert [each.get("text") for each in got[:-1]] == [str(number) for number in range(3 * MOST_MESSAGES)]
    assert got[-1] == {"type": "websocket.disconnect", "code": 4001}


async def test_an_error_of_the_server_while_we_listen_goes_to_the_application() -> None:
    class Broken(Socket):
        async def receive(self) -> Message:
            if self.taken == 1:
                self.taken += 1
                raise RuntimeError("a bug of the server")
            return await super().receive()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        current().on_cancel(lambda _: None)
        await asyncio.sleep(0.02)
        with pytest.raises(RuntimeError, match="a bug of the server"):
            await receive()

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        assert (await Broken(middleware).run()).raised is None


async def test_the_server_is_called_in_the_context_of_those_around_us() -> None:
    around: ContextVar[str] = ContextVar("around", default="nothing")
    seen: list[str] = []

    class Looking(Socket):
        async def receive(self) -> Message:
            seen.append(around.get())
            return await super().receive()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        around.set("inside")
        current().on_cancel(lambda _: None)
        await asyncio.sleep(0.02)

    middleware: Any = ResilienceMiddleware(app)

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        around.set("outside")
        await middleware(scope, receive, send)

    await Looking(outside).run()
    assert seen == ["outside", "outside"]  # the connect was read ahead; then it waits


# -- nothing is poisoned -----------------------------------------------------------------------------------------------


async def test_an_open_websocket_is_in_no_figure_of_requests() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (echo if scope["type"] == "websocket" else answers)(scope, receive, send)

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    middleware = ResilienceMiddleware(app, routes=[RouteRule("/ws")])
    guard = middleware.protection.guard
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        assert (await Request(middleware, http_scope("/ws")).run()).status == 200
        await asyncio.sleep(0.2)
        socket.leave()
        await socket.end()
    (route,) = [each for each in figures(middleware).routes if each.route == "/ws"]
    assert (route.arrived, sum(route.run.counts)) == (1, 1)
    assert route.run.total < 0.1
    assert guard.controller.forecast._run < 0.1
    (of_sockets,) = sockets(middleware).routes
    assert (of_sockets.route, of_sockets.arrived, of_sockets.outcomes) == ("/ws", 1, {"client_disconnect": 1})
    assert sockets(middleware).limit == 512


# -- the place comes back ----------------------------------------------------------------------------------------------


async def test_an_error_of_the_handler_passes_and_gives_the_place_back() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("of the application")

    middleware = ResilienceMiddleware(app)
    async with all_given_back(middleware):
        assert isinstance((await Socket(middleware).run()).raised, LookupError)
    assert ended(middleware) == {"error": 1}


async def test_a_forgotten_connection_gives_its_place_back_without_the_lock() -> None:
    """The garbage collector may end it while this thread holds the guard's lock."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    middleware: Any = ResilienceMiddleware(app, websocket_limit=1)
    coroutine = middleware(socket_scope(), None, None)
    coroutine.send(None)
    with middleware._guard._lock:
        coroutine.close()
    assert opened(middleware) == 0
    assert ended(middleware) == {"error": 1}


async def test_a_forgotten_connection_makes_room_for_the_next() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    middleware: Any = ResilienceMiddleware(app, websocket_limit=1)
    coroutine = middleware(socket_scope(), None, None)
    coroutine.send(None)
    coroutine.close()
    second = middleware(socket_scope(), None, None)
    second.send(None)  # runs, instead of being refused
    second.close()


async def handler(how: str, scope: Any, receive: Any, send: Any) -> None:
    """One of several applications, all of which end when the peer leaves."""
    if how == "watches":
        current().on_cancel(lambda _: asyncio.sleep(0))
    if how == "raises":
        await receive()
        raise LookupError
    if how == "denies":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
        return
    if how == "closes":
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.send", "text": "bye"})
        await send({"type": "websocket.close"})
        return
    if how == "cleans up":
        try:
            await echo(scope, receive, send)
        finally:
            await asyncio.sleep(0.001)
        return
    await echo(scope, receive, send)


HOWS = ["echoes", "watches", "raises", "denies", "closes", "cleans up"]


@settings(max_examples=150, deadline=None)
@given(
    how=st.sampled_from(HOWS),
    cancel_at=st.none() | st.integers(0, 8),
    says=st.integers(0, 3),
    turns=st.integers(0, 6),
    leaves=st.sampled_from(["before", "after", "twice"]),
    lost=st.sampled_from([SAYS_NOTHING, RAISES]),
    denial=st.booleans(),
    others=st.integers(0, 2),
)
def test_every_place_comes_back_once_wherever_it_is_cancelled(  # noqa: PLR0917  drawn by hypothesis
    how: str,
    cancel_at: int | None,
    says: int,
    turns: int,
    leaves: str,
    lost: str,
    denial: bool,
    others: int,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await handler(how if scope["path"] == "/ws" else "echoes", scope, receive, send)

    async def play() -> None:
        middleware = ResilienceMiddleware(app, websocket_limit=2)
        async with all_given_back(middleware, collect=False):
            held = [await open_to(middleware, "/other") for _ in range(others)]
            before = opened(middleware)
            socket = Socket(middleware, socket_scope(denial=denial), lost=lost, cancel_at=cancel_at)
            if leaves == "before":
                socket.leave()
            socket.start()
            for number in range(says):
                socket.say(str(number))
            for _ in range(turns):
                await asyncio.sleep(0)
                assert opened(middleware) in {before, before + 1}
            socket.leave()
            if leaves == "twice":
                socket.leave()
            await socket.end()
            if socket.raised is not None and others < 2:
                cancelled = isinstance(socket.raised, asyncio.CancelledError) and cancel_at is not None
                assert cancelled or isinstance(
                    socket.raised, (LookupError, ConnectionResetError, AssertionError)
                )
            for each in held:
                each.leave()
                await each.end()

    with asyncio.Runner() as runner:
        runner.run(play())


# -- several of ours, and none of ours ---------------------------------------------------------------------------------


async def test_a_websocket_that_passes_two_middlewares_of_one_policy_has_one_place() -> None:
    policy = ServerPolicy(websocket_limit=1)
    middleware = ResilienceMiddleware(ResilienceMiddleware(echo, policy), policy)
    other = ResilienceMiddleware(ResilienceMiddleware(middleware, websocket_limit=1), policy)
    for each in (middleware, other):
        async with all_given_back(each):
            socket = await open_to(each)
            assert (socket.types, opened(each)) == (["accept"], 1)
            socket.leave()
            await socket.end()


async def test_two_policies_are_two_limits() -> None:
    inner = ResilienceMiddleware(echo, websocket_limit=1)
    outer = ResilienceMiddleware(inner, websocket_limit=5)
    async with all_given_back(inner, outer):
        socket = await open_to(outer)
        assert (opened(inner), opened(outer)) == (1, 1)
        assert (await Socket(outer).run()).denial[0] == 503
        assert opened(outer) == 1
        socket.leave()
        await socket.end()
    assert ended(outer) == {"client_disconnect": 1, "completed": 1}


async def test_a_context_that_leaked_from_another_websocket_is_none_of_its() -> None:
    """A server, or the application, may make the task of one connection out of another's."""
    policy = ServerPolicy(websocket_limit=1)
    inside: list[Socket] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not inside:
            inside.append(Socket(middleware).start())
            await inside[0].end()
        await echo(scope, receive, send)

    middleware = ResilienceMiddleware(app, policy)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        assert inside[0].denial[0] == 503
        socket.leave()
        await socket.end()


@pytest.mark.parametrize("off", ["limit", "switch", "broken"])
async def test_where_nothing_is_guarded_websockets_pass_untouched(
    off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend((scope, receive, send, CURRENT.get()))

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    scope = socket_scope()

    async def play(middleware: Any) -> None:
        # A task that a server made out of a request's.
        CURRENT.set(Connection(asyncio.current_task(), None, middleware._guard.clock, None, None, None, None))  # type: ignore[arg-type]
        await middleware(scope, receive, send)

    if off == "limit":
        middleware: Any = ResilienceMiddleware(app, websocket_limit=None)
        await asyncio.create_task(play(middleware))
        assert figures(middleware).websockets is None
    elif off == "switch":
        middleware = ResilienceMiddleware(app)
        with disabled():
            await asyncio.create_task(play(middleware))
        assert sockets(middleware).routes == ()
    else:
        middleware = ResilienceMiddleware(app)
        del scope["path"]
        await asyncio.create_task(play(middleware))
        assert figures(middleware).guard_errors == 1
    assert seen[:3] == [scope, receive, send]
    assert seen[0] is scope
    assert seen[3] is NO_REQUEST


async def test_a_broken_route_source_leaves_an_ordinary_place(monkeypatch: pytest.MonkeyPatch) -> None:
    middleware = ResilienceMiddleware(echo, routes=[RouteRule("/echo")])

    def fails(*_: Any) -> Any:
        raise LookupError

    monkeypatch.setattr(type(middleware.protection._sockets), "_rule", fails)
    async with all_given_back(middleware):
        socket = await open_to(middleware)
        assert sockets(middleware).opened["normal"] == 1
        socket.leave()
        await socket.end()
    assert figures(middleware).guard_errors == 1


def test_no_connection_is_kept_alive_by_its_end() -> None:
    async def play() -> int:
        middleware = ResilienceMiddleware(ticker)
        socket = Socket(middleware).start()
        await until(lambda: len(socket.texts) > 2)
        socket.leave()
        await socket.end()
        await asyncio.sleep(0)
        gc.collect()
        return sum(type(each) is Connection for each in gc.get_objects())

    with asyncio.Runner() as runner:
        assert runner.run(play()) == 0
