"""Start and stop: what passes, what fails the start with a text, and what other event loops are told."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.errors import ResilienceWarning, UnsupportedEventLoop
from resilient_mw.core.marks import Mark
from resilient_mw.core.routes import Route
from resilient_mw.runtime import protection
from resilient_mw.runtime.context import CURRENT, NO_REQUEST
from tests.asgi.driver import Message, Request, figures, hello, http_scope, slots

LIFESPAN: dict[str, Any] = {
    "type": "lifespan",
    "asgi": {"version": "3.0", "spec_version": "2.0"},
    "state": {},
}


class Lifespan:
    """A server's side of the lifespan protocol."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.sent: list[Message] = []
        self.incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def run(self) -> list[str]:
        await self.app(LIFESPAN, self.receive, self.send)
        return [each["type"] for each in self.sent]

    async def receive(self) -> Message:
        return next(self.incoming)

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def lives(scope: Any, receive: Any, send: Any) -> None:
    assert scope is LIFESPAN
    scope["state"]["made at start"] = True
    for phase in ("startup", "shutdown"):
        assert await receive() == {"type": f"lifespan.{phase}"}
        await send({"type": f"lifespan.{phase}.complete"})


class Resolver:
    """Routes that a framework might have."""

    def __init__(self, *marks: Mark) -> None:
        self._routes = [Route(f"/{number}", mark) for number, mark in enumerate(marks)]

    def routes(self) -> list[Route]:
        return self._routes

    def resolve(self, path: str, scope: Any) -> Route | None:
        return next((each for each in self._routes if each.template == path), None)


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that gives the next application routes with these marks."""

    def give(*marks: Mark) -> None:
        monkeypatch.setattr(protection, "find_resolver", lambda apps: Resolver(*marks))

    return give


async def test_b07_the_lifespan_passes() -> None:
    """B07: messages, state and scope as if we were not there."""
    lifespan = Lifespan(ResilienceMiddleware(lives))
    assert await lifespan.run() == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert lifespan.sent[0] == {"type": "lifespan.startup.complete"}
    assert LIFESPAN["state"] == {"made at start": True}


async def test_b07_a_failing_start_is_still_reported() -> None:
    """B07: what the application says of its own failure reaches the server unchanged."""

    async def fails(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    lifespan = Lifespan(ResilienceMiddleware(fails))
    await lifespan.run()
    assert lifespan.sent == [{"type": "lifespan.startup.failed", "message": "no database"}]


async def test_b07_an_application_without_lifespan_raises_to_the_server() -> None:
    """B07: that is how a server learns to go on without it."""

    async def without(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http", "lifespan is not supported"

    with pytest.raises(AssertionError, match="lifespan is not supported"):
        await Lifespan(ResilienceMiddleware(without)).run()


async def test_a_mark_that_names_no_class_fails_the_start_and_says_so(routes: Any) -> None:
    routes(Mark(priority="vip"))
    lifespan = Lifespan(ResilienceMiddleware(lives))
    assert (await lifespan.run())[0] == "lifespan.startup.failed"
    assert "'vip'" in lifespan.sent[0]["message"]
    assert "must be one of" in lifespan.sent[0]["message"]


async def test_a_mark_that_can_never_fit_fails_the_start(routes: Any) -> None:
    routes(Mark(cost=6))
    lifespan = Lifespan(ResilienceMiddleware(lives, limit=5))
    assert (await lifespan.run())[0] == "lifespan.startup.failed"
    assert "cost=6" in lifespan.sent[0]["message"]


async def test_routes_that_the_applications_own_start_adds_are_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Mark] = []
    monkeypatch.setattr(protection, "find_resolver", lambda apps: Resolver(*added))

    async def adds(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        added.append(Mark(priority="critical"))
        await send({"type": "lifespan.startup.complete"})

    middleware = ResilienceMiddleware(adds)
    await Lifespan(middleware).run()
    assert middleware._protection.entry("/0", "", "GET", {}).priority == "critical"


async def test_a_broken_route_source_does_not_fail_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it, paths decide."""

    def broken(apps: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(protection, "find_resolver", broken)
    middleware = ResilienceMiddleware(hello)
    lifespan = Lifespan(ResilienceMiddleware(lives))
    assert (await lifespan.run())[0] == "lifespan.startup.complete"
    assert lifespan.app._guard.listeners.errors == 1
    assert len(caplog.records) == 1
    # Without a lifespan, at the first request.
    for _ in range(2):
        assert (await Request(middleware).run()).status == 200
    assert figures(middleware).guard_errors == 1


async def test_a_warning_that_the_user_made_an_error_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(apps: Any) -> None:
        raise ResilienceWarning("a rule matches nothing")

    monkeypatch.setattr(protection, "find_resolver", warns)
    lifespan = Lifespan(ResilienceMiddleware(lives))
    await lifespan.run()
    assert lifespan.sent[0] == {"type": "lifespan.startup.failed", "message": "a rule matches nothing"}


async def test_a_wrong_mark_without_a_lifespan_is_not_silent(
    routes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The request passes all the same: a service in production is no place to learn of it the hard way."""
    routes(Mark(priority="vip"))
    middleware = ResilienceMiddleware(hello)
    assert (await Request(middleware).run()).status == 200
    assert figures(middleware).guard_errors == 1
    assert "'vip'" in caplog.text


# -- other scopes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["websocket", "foo"])
async def test_b07_other_scopes_pass_untouched_and_hold_no_slot(kind: str) -> None:
    """B07: no key of HTTP is read, the same objects arrive below, and none of them takes a slot of the HTTP pool."""
    seen: list[Any] = []

    async def app(*arguments: Any) -> None:
        seen.extend(arguments)
        seen.append(slots(middleware))

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    middleware: Any = ResilienceMiddleware(app, limit=1, websocket_limit=None)
    scope = {"type": kind}
    await middleware(scope, receive, send)
    await middleware(http_scope() | scope, receive, send)
    assert seen[0] is scope
    assert seen[1] is receive
    assert seen[2] is send
    assert seen[3] == seen[7] == 0
    assert scope == {"type": kind}
    assert not [route for route in figures(middleware).routes if route.arrived]
    assert figures(middleware).guard_errors == 0


async def test_b07_http_without_the_optional_keys_is_served() -> None:
    """B07: no client, state, extensions, root_path, raw_path; no headers."""
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/",
        "headers": [],
    }
    middleware = ResilienceMiddleware(hello)
    assert (await Request(middleware, scope).run()).status == 200
    scope["headers"] = [(b"x-request-timeout-ms", b"0")]
    assert (await Request(middleware, scope).run()).status == 504
    assert figures(middleware).guard_errors == 0


@pytest.mark.parametrize("kind", ["websocket", "foo"])
async def test_a_websocket_finds_no_context_of_an_earlier_request(kind: str) -> None:
    """A server (uvicorn) may create its task out of a request's that used the same connection."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            task = asyncio.create_task(middleware({"type": kind}, None, None))
            await hello(scope, receive, send)
            await task
        else:
            seen.append(CURRENT.get())

    middleware: Any = ResilienceMiddleware(app, websocket_limit=None)
    await Request(middleware).run()
    assert seen == [NO_REQUEST]


# -- event loops -------------------------------------------------------------------------------------------------------


def test_on_trio_the_start_fails_with_a_text() -> None:
    lifespan = Lifespan(ResilienceMiddleware(lives))
    trio.run(lifespan.run)
    assert [each["type"] for each in lifespan.sent] == ["lifespan.startup.failed"]
    assert "asyncio" in lifespan.sent[0]["message"]
    assert "Trio" in lifespan.sent[0]["message"]
    assert next(lifespan.incoming) == {"type": "lifespan.shutdown"}


@pytest.mark.parametrize("scope", [http_scope(), http_scope(method="POST", asgi={"spec_version": "2.1"})])
def test_on_trio_a_request_says_what_to_change(scope: Any) -> None:
    middleware: Any = ResilienceMiddleware(hello)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        raise AssertionError

    async def main() -> None:
        await middleware(scope, receive, send)

    with pytest.raises(UnsupportedEventLoop, match="asyncio event loop instead of Trio"):
        trio.run(main)


def test_event_loops_that_are_closed_are_not_kept() -> None:
    """Test clients make a loop for each request."""
    middleware = ResilienceMiddleware(hello)
    for _ in range(10):
        asyncio.run(_one(middleware))
    assert len(middleware._services) == 1


async def _one(middleware: ResilienceMiddleware) -> None:
    assert (await Request(middleware).run()).status == 200


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty_threads")
def test_threads_with_a_loop_each_get_a_supervisor_each() -> None:
    """The supervisor of another thread's loop would set timers that nobody wakes for."""
    mixed: list[Any] = []
    finished: list[int] = []

    async def looks(scope: Any, receive: Any, send: Any) -> None:
        context = CURRENT.get()
        if not isinstance(context, HttpExchange):
            mixed.append(context)
        elif context.service.supervisor._loop is not asyncio.get_running_loop():
            mixed.append(context.service)
        await hello(scope, receive, send)

    middleware = ResilienceMiddleware(looks, limit=4)

    async def many() -> None:
        finished.extend([(await Request(middleware).run()).status or 0 for _ in range(200)])

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mixed == []
    assert finished == [200] * 800
    assert slots(middleware) == 0


def test_b32_the_slot_of_a_request_that_a_closed_loop_forgot_comes_back() -> None:
    """B32: the garbage collector ends the coroutine, in a context that is not the request's, on a loop that is closed."""
    ended_with: list[type[BaseException]] = []

    async def sleeps(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.get_running_loop().create_future()

    async def around(scope: Any, receive: Any, send: Any) -> None:
        try:
            await middleware(scope, receive, send)
        except BaseException as error:
            ended_with.append(type(error))
            raise

    middleware = ResilienceMiddleware(sleeps, limit=1)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(
        lambda loop, context: None
    )  # "destroyed but it is pending" is true, and wanted here

    async def begin() -> None:
        Request(around).start()
        await asyncio.sleep(0.15)

    loop.run_until_complete(begin())
    assert slots(middleware) == 1
    loop.close()
    del loop
    asyncio.run(_other_request(middleware))
    gc.collect()
    assert slots(middleware) == 0
    assert ended_with == [GeneratorExit]


def test_b32_the_collector_may_come_while_this_thread_holds_the_lock() -> None:
    """B32: it comes at any allocation, so what it ends must not wait for the lock of the guard."""

    async def sleeps(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.get_running_loop().create_future()

    middleware = ResilienceMiddleware(sleeps, limit=1)
    loop = asyncio.new_event_loop()

    async def begin() -> Any:
        task = Request(middleware).start().task
        await asyncio.sleep(0.01)
        return task

    task = loop.run_until_complete(begin())
    assert slots(middleware) == 1

    def collect_under_the_lock() -> None:
        with middleware._guard._lock:
            task.get_coro().close()

    thread = threading.Thread(target=collect_under_the_lock, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert slots(middleware) == 0
    loop.set_exception_handler(lambda loop, context: None)
    loop.close()


async def _other_request(middleware: ResilienceMiddleware) -> None:
    request = Request(middleware, http_scope(headers=[(b"x-request-timeout-ms", b"0")]))
    assert (await request.run()).status == 504
