"""Refusals by uvicorn's protocol: the same answer and the same figures as the middleware's, and nothing else in its way."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse

from resilient_mw import PriorityClass, RouteRule, ServerPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.events import Event, Refused
from resilient_mw.core.marks import Mark
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.testing import disabled
from resilient_mw_integrations.uvicorn import RefusingProtocol
from tests.servers.processes import listening
from tests.servers.wire import Answer, Wire, connected

ONE_CLASS = [PriorityClass("normal", weight=1)]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    size = str(len(body)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", size)]})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Service:
    """A server in this process whose slots a test can take.

    Attributes:
        seen: the paths that reached the middleware.
        taken: what gives back the slots that are taken: the server does not end while any are.
    """

    guard: Guard
    port: int = 0
    server: uvicorn.Server | None = None
    seen: list[str] = field(default_factory=list)
    taken: list[Callable[[], None]] = field(default_factory=list)

    def fill(self) -> Callable[[], None]:
        """Take every slot; return what gives them back. The queue has no places."""
        entry = self.guard.entries.get("/taken", Mark(cost=self.guard.policy.slots))
        now = self.guard.clock.now()
        assert self.guard.arrive(entry, now, now + 3600).admitted
        self.taken.append(
            functools.partial(self.guard.end, entry, entry.cost, CancelReason.CALLER.value, 0.1)
        )
        return self.give_back

    def give_back(self) -> None:
        """Give back what `fill` has taken."""
        while self.taken:
            self.taken.pop()()

    def refused(self) -> dict[str, int]:
        """Return the refusals by reason, all routes together."""
        counts: dict[str, int] = {}
        for route in self.guard.snapshot().routes:
            for reason, number in route.refused.items():
                counts[reason] = counts.get(reason, 0) + number
        return counts


def policy(**more: Any) -> ServerPolicy:
    return ServerPolicy(**{"limit": 2, "queue": 0, "classes": ONE_CLASS, "name": "uvicorn", **more})


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that reach a middleware."""
    paths: list[str] = []
    call = ResilienceMiddleware.__call__

    @functools.wraps(call)
    async def noting(self: ResilienceMiddleware, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            paths.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(ResilienceMiddleware, "__call__", noting)
    return paths


@asynccontextmanager
async def served(app: Any, guard: Guard, seen: list[str], **config: Any) -> AsyncIterator[Service]:
    settings = uvicorn.Config(
        app,
        **{
            "http": RefusingProtocol,
            "port": 0,
            "log_config": None,
            "access_log": False,
            "timeout_graceful_shutdown": 2,
            **config,
        },
    )
    server = uvicorn.Server(settings)
    running = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
        assert not running.done(), running
    port = server.servers[0].sockets[0].getsockname()[1]
    service = Service(guard, port, server, seen)
    try:
        yield service
    finally:
        service.give_back()
        server.should_exit = True
        await asyncio.wait_for(running, 30)


@asynccontextmanager
async def protected(seen: list[str], policy: ServerPolicy, **config: Any) -> AsyncIterator[Service]:
    async with served(ResilienceMiddleware(echo, policy), guard_of(policy), seen, **config) as service:
        yield service


async def raw(wire: Wire, text: str) -> None:
    wire.writer.write(text.replace("\n", "\r\n").encode("latin-1"))
    await wire.writer.drain()


async def ask(service: Service, text: str) -> Answer:
    async with connected(service.port) as wire:
        await raw(wire, text)
        return await wire.read()


async def head_of(wire: Wire) -> tuple[int, dict[str, str]]:
    return await asyncio.wait_for(wire._head(), 10)


GET = "GET /work HTTP/1.1\nhost: a\n\n"


async def test_a_refusal_never_reaches_the_middleware_and_is_the_same(seen: list[str]) -> None:
    """Same status, headers but for the jitter and the clock, body, and count."""
    async with protected(seen, policy()) as service:
        service.fill()
        early = await ask(service, GET)
        assert seen == []
        # What is not certain to keep its connection is the middleware's.
        usual = await ask(service, "GET /work HTTP/1.1\nhost: a\nconnection: close\n\n")
        assert seen == ["/work"]
        assert service.refused() == {"queue_full": 2}
    for each in (early, usual):
        assert 1 <= int(each.headers.pop("retry-after")) <= 2
        each.headers.pop("date")
    assert usual.headers.pop("connection") == "close"
    assert (early.status, early.headers, early.body) == (usual.status, usual.headers, usual.body)
    assert early.status == 503
    assert early.headers["x-refusal-reason"] == "queue_full"
    assert early.headers["server"] == "uvicorn"
    assert early.headers["cache-control"] == "no-store"
    assert early.json["reason"] == "queue_full"


async def test_the_connection_goes_on_with_ordinary_requests(seen: list[str]) -> None:
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        assert (await wire.ask("/before", body=b"abc", method="POST")).body == b"abc"
        give_back = service.fill()
        for _ in range(3):
            assert (await wire.ask("/during")).status == 503
        give_back()
        assert (await wire.ask("/after", body=b"def", method="POST")).body == b"def"
        assert seen == ["/before", "/after"]
        assert service.server is not None
        assert service.server.server_state.total_requests == 5


async def test_health_checks_and_preflights_pass_a_full_server(seen: list[str]) -> None:
    preflight = "OPTIONS /work HTTP/1.1\nhost: a\norigin: https://b\naccess-control-request-method: PUT\n\n"
    async with protected(seen, policy()) as service:
        service.fill()
        assert (await ask(service, "GET /healthz HTTP/1.1\nhost: a\n\n")).status == 200
        assert (await ask(service, preflight)).status == 200
        assert (await ask(service, "GET /%68ealthz HTTP/1.1\nhost: a\n\n")).status == 200
        assert (await ask(service, "GET /healthz/../x HTTP/1.1\nhost: a\n\n")).status == 503
        assert len(seen) == 3


async def test_the_body_of_a_refused_request_is_read_and_dropped(seen: list[str]) -> None:
    """What follows it on the connection is a request of its own, also where the body comes late and in pieces."""
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        give_back = service.fill()
        await raw(wire, "POST /work HTTP/1.1\nhost: a\ncontent-length: 200000\n\nGET /smuggled HTTP/1.1\n\n")
        assert (await wire.read()).status == 503
        left = 200_000 - len("GET /smuggled HTTP/1.1\r\n\r\n")
        for piece in (left // 2, left - left // 2):
            wire.writer.write(b"x" * piece)
            await wire.writer.drain()
            await asyncio.sleep(0.02)
        await raw(wire, "POST /work HTTP/1.1\nhost: a\ntransfer-encoding: chunked\n\n3\nabc\n0\n\n")
        assert (await wire.read()).status == 503
        give_back()
        assert (await wire.ask("/after")).status == 200
        assert seen == ["/after"]


async def test_who_expects_a_100_is_left_to_the_middleware(seen: list[str]) -> None:
    async with protected(seen, policy()) as service:
        service.fill()
        answer = await ask(
            service, "POST /work HTTP/1.1\nhost: a\ncontent-length: 5\nexpect: 100-continue\n\n"
        )
        assert answer.status == 503
        assert seen == ["/work"]


async def test_a_head_request_gets_no_body(seen: list[str]) -> None:
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        service.fill()
        await raw(wire, "HEAD /work HTTP/1.1\nhost: a\n\n")
        status, headers = await head_of(wire)
        assert status == 503
        assert int(headers["content-length"]) > 50
        assert (await wire.ask("/work")).json["status"] == 503  # nothing stood between the two
        assert seen == []


async def test_answers_keep_the_order_of_pipelined_requests(seen: list[str]) -> None:
    """The one that runs is answered first; what is refused at once waits for it."""
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            begun.set()
            await release.wait()
        await echo(scope, receive, send)

    settings = policy(limit=1)
    async with (
        served(ResilienceMiddleware(slow, settings), guard_of(settings), seen) as service,
        connected(service.port) as wire,
    ):
        await raw(wire, "POST /first HTTP/1.1\nhost: a\ncontent-length: 3\n\nabc")
        await asyncio.wait_for(begun.wait(), 10)
        await raw(wire, GET + GET)
        other = await ask(service, GET)
        assert other.status == 503
        release.set()
        assert (await wire.read()).body == b"abc"
        # They are decided when the first one has given its slot back.
        assert {(await wire.read()).status for _ in range(2)} == {200}
        assert seen == ["/first", "/work", "/work"]


async def test_pipelined_refusals_are_all_answered(seen: list[str]) -> None:
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        service.fill()
        await raw(wire, GET * 50)
        assert [(await wire.read()).status for _ in range(50)] == [503] * 50
        assert service.refused() == {"queue_full": 50}
        assert seen == []


@pytest.mark.parametrize(
    "text",
    [
        "GET /work HTTP/1.0\nhost: a\n\n",
        "GET /work HTTP/1.0\nhost: a\nconnection: keep-alive\n\n",
        "GET /work HTTP/1.1\nhost: a\nconnection: close\n\n",
    ],
    ids=["1.0", "1.0 kept", "1.1 closed"],
)
async def test_a_connection_that_ends_is_left_to_the_middleware(seen: list[str], text: str) -> None:
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        service.fill()
        await raw(wire, text)
        answer = await wire.read()
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert await wire.reader.read() == b""
        assert seen == ["/work"]


async def test_draining_closes_the_connection(seen: list[str]) -> None:
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        assert (await wire.ask("/before")).status == 200
        service.guard.drain()
        await raw(wire, GET + GET)
        answer = await wire.read()
        assert (answer.status, answer.json["reason"]) == (503, "draining")
        assert answer.headers["connection"] == "close"
        assert await wire.reader.read() == b""
        assert service.refused() == {"draining": 1}
        assert seen == ["/before"]


async def test_a_reload_changes_what_refusals_say(seen: list[str]) -> None:
    settings = policy()
    page = "GET /work HTTP/1.1\nhost: a\norigin: https://b\n\n"
    async with protected(seen, settings) as service:
        assert (await ask(service, GET)).status == 200
        service.fill()
        assert "access-control-allow-origin" not in (await ask(service, page)).headers
        settings.reload(cors_origins=["https://b"], debug=True)
        refused = await ask(service, page)
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (503, "https://b")
        assert refused.json["limit"] == 2
        settings.reload(limit=3)
        assert (await ask(service, page)).status == 200
        assert seen == ["/work"] * 2


async def test_during_the_delay_of_a_drain_requests_are_served(seen: list[str]) -> None:
    async with protected(seen, policy(drain_delay=60.0)) as service:
        assert (await ask(service, GET)).status == 200
        service.guard.drain()
        assert (await ask(service, GET)).status == 200
        service.guard.drain(delay=0.0)
        assert (await ask(service, GET)).status == 503
        assert seen == ["/work"] * 2


async def test_an_idle_connection_is_closed_after_a_refusal(seen: list[str]) -> None:
    """The server's own keep-alive bound holds, with and without a body that came after the answer."""
    async with protected(seen, policy(), timeout_keep_alive=1) as service:
        service.fill()
        for text, rest in (
            (GET, ""),
            ("POST /work HTTP/1.1\nhost: a\ncontent-length: 4\n\n", "abcd"),
            ("POST /work HTTP/1.1\nhost: a\ncontent-length: 4\n\n", ""),
        ):
            async with connected(service.port) as wire:
                await raw(wire, text)
                assert (await wire.read()).status == 503
                await raw(wire, rest)
                assert await asyncio.wait_for(wire.reader.read(), 20) == b""
        assert seen == []


async def test_a_request_after_a_refusal_has_its_time(seen: list[str]) -> None:
    """The bound of an idle connection does not end one whose next request is at work."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(2.5)
        await echo(scope, receive, send)

    settings = policy()
    app = ResilienceMiddleware(slow, settings)
    async with (
        served(app, guard_of(settings), seen, timeout_keep_alive=1) as service,
        connected(service.port) as wire,
    ):
        give_back = service.fill()
        assert (await ask(service, "GET /healthz HTTP/1.1\nhost: a\n\n")).status == 200  # has started
        assert (await wire.ask("/work")).status == 503
        give_back()
        assert (await wire.ask("/work", method="POST", body=b"abc")).body == b"abc"


async def test_who_does_not_read_fills_no_memory(seen: list[str]) -> None:
    """Once the transport's buffer is full, requests wait in the middleware's way, which stops reading."""
    async with protected(seen, policy()) as service, connected(service.port) as wire:
        service.fill()
        assert service.server is not None
        sent = 0
        try:
            for _ in range(400):
                wire.writer.write(GET.replace("\n", "\r\n").encode() * 1000)
                await asyncio.wait_for(wire.writer.drain(), 0.5)
                sent += 1
        except TimeoutError:
            pass
        assert sent < 400
        transport: Any = next(iter(service.server.server_state.connections)).transport
        waiting = transport.get_write_buffer_size()
        wire.writer.transport.abort()  # otherwise both sides would wait for each other
        assert waiting < 2_000_000


async def test_the_answer_takes_the_form_that_is_asked_for(seen: list[str]) -> None:
    async with protected(seen, policy(cors_origins=["https://shop.example"])) as service:
        service.fill()
        text = await ask(service, "GET /work HTTP/1.1\nhost: a\naccept: text/plain\n\n")
        assert text.body == b"503 The wait queue is full (queue_full)\n"
        page = await ask(
            service, "GET /work HTTP/1.1\nhost: a\norigin: https://shop.example\nx-request-id: r1\n\n"
        )
        assert page.headers["access-control-allow-origin"] == "https://shop.example"
        assert page.json["instance"] == "r1"
        assert seen == []


async def test_debug_mode_says_how_it_stands(seen: list[str]) -> None:
    async with protected(seen, policy(debug=True)) as service:
        service.fill()
        answer = await ask(service, "GET /work HTTP/1.1\nhost: a\nx-request-timeout-ms: 700\n\n")
        assert (answer.json["limit"], answer.json["in_flight"], answer.json["queue_length"]) == (2, 2, 0)
        assert 0 < answer.json["remaining_budget_ms"] <= 700
        assert seen == []


async def test_too_late_and_too_large_are_told_by_the_middleware(seen: list[str]) -> None:
    async with protected(seen, policy(max_body=10)) as service:
        service.fill()
        for budget in ("0", "1"):
            late = await ask(service, f"GET /late HTTP/1.1\nhost: a\nx-request-timeout-ms: {budget}\n\n")
            assert late.status == 504
        large = await ask(service, "POST /large HTTP/1.1\nhost: a\ncontent-length: 11\n\n01234567890")
        assert large.status == 413
        assert seen == ["/late", "/late", "/large"]
        small = await ask(service, "POST /small HTTP/1.1\nhost: a\ncontent-length: 3\n\n012")
        assert small.status == 503
        assert len(seen) == 3


async def test_fields_that_were_ignored_are_counted_once(seen: list[str]) -> None:
    async with protected(seen, policy()) as service:
        wrong = "GET /work HTTP/1.1\nhost: a\nx-request-timeout-ms: soon\n\n"
        assert (await ask(service, wrong)).status == 200
        service.fill()
        assert (await ask(service, wrong)).status == 503
        assert service.guard.snapshot().ignored_headers == {"x-request-timeout-ms": 2}
        assert seen == ["/work"]


async def test_the_class_is_that_of_the_route(seen: list[str]) -> None:
    """A higher class that could still push somebody out, or has slots of its own, goes to the middleware."""
    settings = ServerPolicy(
        limit=2,
        queue=0,
        classes=[PriorityClass("vip", reserved=1), PriorityClass("normal")],
        routes=[RouteRule("/vip", priority="vip")],
    )
    guard = guard_of(settings)
    async with served(ResilienceMiddleware(echo, settings), guard, seen) as service:
        now, entry = guard.clock.now(), guard.entries.get("/taken", Mark())
        assert guard.arrive(entry, now, now + 60).admitted
        service.taken.append(functools.partial(guard.release, entry, 1))
        assert (await ask(service, GET)).status == 503
        assert seen == []
        assert (await ask(service, "GET /vip HTTP/1.1\nhost: a\n\n")).status == 200


def fastapi_app(settings: ServerPolicy, *outside: Any, **more: Any) -> FastAPI:
    app = FastAPI(**more)
    app.add_middleware(ResilienceMiddleware, policy=settings)
    for layer, options in outside:
        app.add_middleware(layer, **options)

    @app.get("/work")
    async def work() -> str:
        return "done"

    @app.get("/health")
    async def health() -> str:
        return "well"

    return app


async def test_a_framework_in_front_of_the_middleware(seen: list[str]) -> None:
    settings = policy()
    async with served(fastapi_app(settings), guard_of(settings), seen, proxy_headers=True) as service:
        assert (await ask(service, GET)).status == 200
        service.fill()
        assert (await ask(service, GET)).status == 503
        assert seen == ["/work"]
        labels = {route.route for route in service.guard.snapshot().routes if route.refused}
        assert labels == {"/work"}  # the same label as an ordinary refusal of the route


async def test_a_root_path_of_the_server_and_of_the_application(seen: list[str]) -> None:
    for app_root, server_root in (("/api", ""), ("", "/api")):
        settings = policy()
        app = fastapi_app(settings)
        app.root_path = app_root
        async with served(app, guard_of(settings), seen, root_path=server_root) as service:
            below = "" if server_root else "/api"
            assert (await ask(service, GET)).status in {200, 404}
            service.fill()
            assert (await ask(service, f"GET {below}/health HTTP/1.1\nhost: a\n\n")).status == 200
            assert (await ask(service, f"GET {below}/work HTTP/1.1\nhost: a\n\n")).status == 503
            assert len(seen) == 2
            seen.clear()


async def test_pages_get_their_headers_from_a_cors_layer_outside(seen: list[str]) -> None:
    settings = policy()
    app = fastapi_app(settings, (GZipMiddleware, {}), (CORSMiddleware, {"allow_origins": ["https://b"]}))
    async with served(app, guard_of(settings), seen) as service:
        assert (await ask(service, GET)).status == 200
        service.fill()
        assert (await ask(service, GET)).status == 503
        assert seen == ["/work"]
        page = await ask(service, "GET /work HTTP/1.1\nhost: a\norigin: https://b\n\n")
        assert page.headers["access-control-allow-origin"] == "https://b"
        assert seen == ["/work", "/work"]


class Elsewhere:
    """A layer that serves some requests itself."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/elsewhere":
            await PlainTextResponse("not under the policy")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def test_nothing_is_refused_in_front_of_an_unknown_layer(
    seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = policy()
    app = fastapi_app(settings, (Elsewhere, {}))
    with caplog.at_level(logging.WARNING, "resilient_mw"):
        async with served(app, guard_of(settings), seen) as service:
            service.fill()
            for _ in range(2):
                elsewhere = await ask(service, "GET /elsewhere HTTP/1.1\nhost: a\n\n")
                assert elsewhere.body == b"not under the policy"
            assert (await ask(service, GET)).status == 503
            assert seen == ["/work"]
    said = [record.getMessage() for record in caplog.records if record.name == "resilient_mw"]
    assert len(said) == 1
    assert "Elsewhere" in said[0]


async def test_a_subclass_that_decides_for_itself_is_unknown(seen: list[str]) -> None:
    class Own(ResilienceMiddleware):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await echo(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)

    settings = policy()
    async with served(Own(echo, settings), guard_of(settings), seen) as service:
        service.fill()
        assert (await ask(service, GET)).status == 200


async def test_listeners_hear_of_it_and_the_switch_turns_it_off(seen: list[str]) -> None:
    heard: list[Event] = []
    async with protected(seen, policy(listeners=[heard.append])) as service:
        service.fill()
        assert (await ask(service, GET)).status == 503
        assert [type(event) for event in heard] == [Refused]
        with disabled():
            assert (await ask(service, GET)).status == 200
        assert seen == ["/work"]


async def test_our_own_failure_leaves_it_to_the_middleware(
    seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise LookupError("broken")

    async with protected(seen, policy()) as service:
        service.fill()
        monkeypatch.setattr(service.guard, "refuse_surely", broken)
        assert (await ask(service, GET)).status == 503
        assert service.guard.snapshot().guard_errors == 1
        assert seen == ["/work"]


async def test_a_forgotten_request_gives_its_slot_back(seen: list[str]) -> None:
    """Slots that the garbage collector left for the next one are given back before anybody is refused."""
    async with protected(seen, policy()) as service:
        service.guard.later(service.fill())
        assert (await ask(service, GET)).status == 200


async def test_a_refusal_stands_in_the_access_log(seen: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "uvicorn.access"):
        async with protected(seen, policy(), access_log=True) as service:
            service.fill()
            await ask(service, "GET /work?a=b HTTP/1.1\nhost: a\n\n")
    lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
    assert len(lines) == 1
    assert lines[0].endswith('"GET /work?a=b HTTP/1.1" 503')


async def test_what_is_no_request_gets_400(seen: list[str]) -> None:
    async with protected(seen, policy()) as service:
        service.fill()
        for wrong in ("GET /ä HTTP/1.1\nhost: a\n\n", "NONSENSE\n\n"):
            assert (await ask(service, wrong)).status == 400
        assert service.guard.snapshot().guard_errors == 0


@pytest.mark.slow
async def test_on_uvloop_by_the_command_line(tmp_path: Path) -> None:
    with listening("uvicorn-refusing", tmp_path) as server:
        async with connected(server.port) as holding, connected(server.port) as waiting:
            await holding.send("/hold")
            await until(server.port, "slots")
            await waiting.send("/hello")
            await until(server.port, "queued")
            async with connected(server.port) as refused:
                statuses = [(await refused.ask("/hello")).status for _ in range(5)]
            assert statuses[0] == 503
            async with connected(server.port) as other:
                await other.ask("/go")
            assert (await holding.read()).body == b"held"
        assert "Traceback" not in server.logged()


async def until(port: int, figure: str) -> None:
    """Wait until the probe tells a figure other than 0."""
    async with connected(port) as wire:
        for _ in range(1000):
            if (await wire.ask("/state")).json[figure]:
                return
    raise AssertionError(f"{figure} stayed 0")
