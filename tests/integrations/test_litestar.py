"""A Litestar application behind uvicorn: plugin, marks, templates, cancellation, streams, websockets, pages."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from litestar import (
    Controller,
    Litestar,
    MediaType,
    Request,
    Response,
    Router,
    WebSocket,
    asgi,
    get,
    post,
    websocket,
)
from litestar.config.cors import CORSConfig
from litestar.exceptions import MethodNotAllowedException
from litestar.response import ServerSentEvent, Stream
from litestar.testing import TestClient
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from resilient_mw import (
    ResilienceWarning,
    RouteRule,
    ServerPolicy,
    UnsupportedEventLoop,
    current,
    exempt,
    priority,
)
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.cli.locate import find
from resilient_mw.core.marks import Mark
from resilient_mw.core.routes import Route
from resilient_mw_integrations.litestar import (
    LitestarRoutes,
    RequestRefused,
    ResiliencePlugin,
    by_exception_handlers,
    marked,
)
from tests.asgi import driver
from tests.contract.client import ask, leave
from tests.contract.stacks import behind_uvicorn
from tests.integrations.conftest import write_entry_points
from tests.integrations.serving import http_scope, websocket_scope

LOG: list[str] = []
AnyRequest = Request[Any, Any, Any]


@get("/below/{number:int}")
@priority("critical")
async def below(request: AnyRequest) -> dict[str, float]:
    return {"number": request.path_params["number"], "left": current().remaining()}


@priority("sheddable")
@get(["/above", "/files/{name:path}"], sync_to_thread=True)
def above(request: AnyRequest) -> str:
    current().check()
    return str(request.path_params)


@priority("sheddable")
class Shop(Controller):
    path = "/shop"

    @get("/{item:str}")
    async def one(self, request: AnyRequest) -> str:
        return str(request.path_params["item"])

    @priority("critical")
    @post()
    async def buy(self) -> str:
        return "bought"

    @exempt
    @get("/state")
    async def state(self) -> str:
        return "fine"


@get("/inside")
async def inside() -> str:
    return "inside"


@get("/own", opt=marked(priority="critical"))
async def own() -> str:
    return "own"


@asgi("/mounted", is_mount=True, copy_scope=True)
@priority("sheddable")
async def mounted(scope: Any, receive: Any, send: Any) -> None:
    await driver.answer(send, scope["path"].encode())


@get("/slow")
async def slow(request: AnyRequest) -> None:
    name = request.query_params.get("name")
    LOG.append(f"begun {name}")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        LOG.append(f"cancelled {name} {current().cancel_reason}")
        raise


@get("/stream")
async def stream() -> Stream:
    async def parts() -> AsyncIterator[str]:
        try:
            for number in range(1000):
                yield f"{number}\n"
                await asyncio.sleep(0.01 if number < 3 else 0.05)
        finally:
            LOG.append("stream closed")

    return Stream(parts())


@get("/events")
async def events() -> ServerSentEvent:
    async def parts() -> AsyncIterator[str]:
        for number in range(3):
            yield str(number)

    return ServerSentEvent(parts())


@websocket("/echo")
async def echo(socket: WebSocket[Any, Any, Any]) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


def make_app(*plugins: ResiliencePlugin, **more: Any) -> Litestar:
    router = Router(
        "/router", route_handlers=[inside], opt=marked(priority="sheddable", deadline_default=3.0)
    )
    handlers: list[Any] = [below, above, Shop, router, own, mounted, slow, stream, events, echo]
    return Litestar(handlers, plugins=[*plugins], openapi_config=None, **{"logging_config": None, **more})


POLICY = ServerPolicy(limit=20, websocket_limit=1, name="litestar")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(write_entry_points(tmp_path_factory.mktemp("points")))
        with behind_uvicorn(make_app(ResiliencePlugin(POLICY))) as port:
            yield port


async def logged(line: str) -> None:
    await driver.until(lambda: line in LOG, 10)


# -- what the router knows -------------------------------------------------------------------------------------------


def found(routes: LitestarRoutes, path: str, method: str = "GET", **more: Any) -> Route | None:
    return routes.resolve(path, http_scope(path, method, **more))


@pytest.mark.parametrize(
    ("path", "method", "template", "priority"),
    [
        ("/below/3", "GET", "/below/{number}", "critical"),
        ("/below/3/", "GET", "/below/{number}", "critical"),
        ("/below/x", "GET", None, None),
        ("/above", "GET", "/above", "sheddable"),
        ("/files/a/b/c", "GET", "/files/{name}", "sheddable"),
        ("/shop/apple", "GET", "/shop/{item}", "sheddable"),
        ("/shop", "POST", "/shop", "critical"),
        ("/shop/state", "GET", "/shop/state", "exempt"),
        ("/router/inside", "GET", "/router/inside", "sheddable"),
        ("/router/inside", "DELETE", "/router/inside", "sheddable"),
        ("/own", "GET", "/own", "critical"),
        ("/mounted", "GET", "/mounted/*", "sheddable"),
        ("/mounted/a/b", "PUT", "/mounted/*", "sheddable"),
        ("/nowhere", "GET", None, None),
        ("/slow", "GET", "/slow", None),
    ],
)
def test_the_route_is_the_one_that_litestar_picks(
    path: str, method: str, template: str | None, priority: str | None
) -> None:
    route = found(LitestarRoutes(make_app()), path, method)
    assert (None if route is None else route.template) == template
    assert (None if route is None or route.mark is None else route.mark.priority) == priority


def test_a_router_that_does_not_say_which_methods_fit_is_asked_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = make_app()
    routes, pick = LitestarRoutes(app), app.asgi_router.handle_routing

    def of_2_15(path: str, method: Any) -> Any:
        try:
            return pick(path=path, method=method)
        except MethodNotAllowedException:
            raise MethodNotAllowedException from None

    monkeypatch.setattr(app.asgi_router, "handle_routing", of_2_15)
    for path, name in (("/router/inside", "sheddable"), ("/shop", "critical")):
        route = found(routes, path, "DELETE")
        assert route is not None
        assert route.mark is not None
        assert (route.template, route.mark.priority) == (path, name)


def test_the_root_path_is_taken_off_and_a_websocket_is_found() -> None:
    routes = LitestarRoutes(make_app())
    route = found(routes, "/root/own", root_path="/root")
    assert route is not None
    assert route.template == "/own"
    socket = routes.resolve("/echo", websocket_scope("/echo"))
    assert socket is not None
    assert socket.methods == frozenset({"websocket"})


def test_handlers_that_are_registered_later_are_seen_and_the_others_keep_their_routes() -> None:
    app = make_app()
    routes = LitestarRoutes(app)
    before = found(routes, "/own")

    @get("/later")
    @priority("critical")
    async def later() -> None: ...

    assert found(routes, "/later") is None
    app.register(later)
    route = found(routes, "/later")
    assert route is not None
    assert route.mark == Mark(priority="critical")
    assert found(routes, "/own") is before
    assert "/files/{name:path}" in {each.template for each in routes.routes()}


def test_every_mark_leads_to_a_route_and_one_that_does_not_is_named(entry_points: Path) -> None:
    @priority("critical")
    @get("/above-it")
    async def above_it() -> None: ...

    @priority("sheddable")
    class Inside(Controller):
        path = "/inside-it"

        @priority("critical")
        @get()
        async def one(self) -> None: ...

        @get("/below-it")
        @priority("critical")
        async def two(self) -> None: ...

    app = Litestar([above_it, Inside], plugins=[ResiliencePlugin()], openapi_config=None, logging_config=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with TestClient(app):
            pass

    @priority("critical")
    @get("/nobody")
    async def nobody() -> None: ...

    with (
        pytest.warns(ResilienceWarning, match="nobody has no effect"),
        TestClient(make_app(ResiliencePlugin())),
    ):
        pass


def test_the_layers_of_one_handler_are_judged_one_by_one() -> None:
    """Two handlers with one decorator object: the one that leads nowhere is named although the other one does."""
    from resilient_mw.core.marks import unreached_marks

    both = priority("critical")

    @both
    def reached() -> None: ...

    @both
    def hidden() -> None: ...

    names = unreached_marks([reached])
    assert any(name.endswith("hidden") for name in names)
    assert not any(name.endswith("reached") for name in names)


# -- behind a server -----------------------------------------------------------------------------------------------------


async def test_templates_are_labels(port: int, entry_points: Path) -> None:
    for path in ("/below/1", "/below/2", "/shop/apple", "/mounted/x/y", "/nowhere"):
        await ask(port, path)
    routes = {each.route: each for each in POLICY.snapshot().routes if each.arrived}
    assert (routes["/below/{number}"].arrived, routes["/below/{number}"].priority) == (2, "critical")
    assert routes["/shop/{item}"].priority == "sheddable"
    assert routes["/mounted/*"].priority == "sheddable"
    assert routes["unmatched"].arrived == 1


async def test_the_budget_is_known_and_opt_of_a_router_counts(port: int) -> None:
    assert 0 < (await ask(port, "/below/1", budget_ms=4000)).json["left"] <= 4
    assert (await ask(port, "/router/inside")).body == b"inside"
    entry = next(each for each in POLICY.owner[0].entries.all() if each.template == "/router/inside")  # type: ignore[attr-defined]
    assert entry.budget == 3.0


async def test_the_deadline_answers_504_and_cancels_the_handler(port: int) -> None:
    answer = await ask(port, "/slow?name=late", budget_ms=100)
    assert (answer.status, answer.json["reason"]) == (504, "deadline_exceeded")
    await logged("cancelled late deadline")


async def test_a_caller_who_leaves_cancels_the_handler(port: int) -> None:
    there = asyncio.Event()
    caller = asyncio.create_task(leave(port, "/slow?name=left", after=there))
    await logged("begun left")
    there.set()
    await caller
    await logged("cancelled left client_disconnect")
    await driver.until(lambda: sum(each.slots for each in POLICY.snapshot().classes) == 0, 10)


async def test_a_stream_that_is_left_is_closed_and_gives_its_slot_back(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /stream HTTP/1.1\r\nHost: test\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"2\n"), 10)
    assert "stream closed" not in LOG
    writer.transport.abort()
    await logged("stream closed")
    await driver.until(lambda: sum(each.slots for each in POLICY.snapshot().classes) == 0, 10)


async def test_events_pass(port: int) -> None:
    answer = await ask(port, "/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.body.count(b"data: ") == 3


def test_websockets_pass_within_their_limit(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/echo", proxy=None) as first:
        with pytest.raises(InvalidStatus) as refused, connect(f"ws://127.0.0.1:{port}/echo", proxy=None):
            pass
        assert refused.value.response.headers["X-Refusal-Reason"] == "websocket_limit"
        first.send("hello")
        assert first.recv(timeout=10) == "hello"


# -- the lifespan --------------------------------------------------------------------------------------------------------


async def test_requests_finish_before_the_application_closes_what_they_work_with() -> None:
    order: list[str] = []
    release = asyncio.Event()

    @get("/work")
    async def work() -> str:
        await release.wait()
        order.append("work")
        return "done"

    plugin = ResiliencePlugin(drain_timeout=10)
    app = Litestar(
        [work],
        plugins=[plugin],
        on_shutdown=[lambda: order.append("closed")],
        openapi_config=None,
        logging_config=None,
    )
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}}
    inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    outbox: list[str] = []

    async def send(message: Any) -> None:
        outbox.append(message["type"])

    span = asyncio.create_task(app(scope, inbox.get, send))  # type: ignore[arg-type]
    inbox.put_nowait({"type": "lifespan.startup"})
    await driver.until(lambda: outbox == ["lifespan.startup.complete"], 10)
    assert plugin.policy.readiness().ready
    request = driver.Request(app, driver.http_scope("/work")).start()
    await driver.until(lambda: sum(each.slots for each in plugin.policy.snapshot().classes) == 1, 10)
    inbox.put_nowait({"type": "lifespan.shutdown"})
    await driver.until(lambda: not plugin.policy.readiness().ready, 10)
    late = await driver.Request(app, driver.http_scope("/work")).run()
    assert (late.status, late.problem["reason"]) == (503, "draining")
    release.set()
    assert (await request.end()).status == 200
    await asyncio.wait_for(span, 10)
    assert order == ["work", "closed"]


def test_an_application_can_be_started_again() -> None:
    plugin = ResiliencePlugin()
    app = make_app(plugin)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/own").status_code == 200
            assert isinstance(app.asgi_handler, ResilienceMiddleware)
            assert not isinstance(app.asgi_handler.app, ResilienceMiddleware)
    assert sum(each.arrived for each in plugin.policy.snapshot().routes) == 2


def test_a_mark_that_does_not_fit_the_policy_stops_the_start(entry_points: Path) -> None:
    @get("/gold", opt=marked(priority="gold"))
    async def gold() -> None: ...

    app = Litestar([gold], plugins=[ResiliencePlugin()], openapi_config=None, logging_config=None)

    async def start() -> None:
        async with app.lifespan():
            pass

    wrong = pytest.RaisesExc(ValueError, match="'gold', which does not exist")
    with pytest.RaisesGroup(wrong, flatten_subgroups=True):  # of Litestar's events
        asyncio.run(start())


def test_on_trio_it_says_so_and_stops() -> None:
    app = make_app(ResiliencePlugin())

    async def start() -> None:
        async with app.lifespan():
            pass

    with pytest.RaisesGroup(UnsupportedEventLoop, flatten_subgroups=True):
        anyio.run(start, backend="trio")


def test_refusals_that_pages_cannot_read_are_warned_of(entry_points: Path) -> None:
    app = make_app(ResiliencePlugin(), cors_config=CORSConfig(allow_origins=["https://shop.example"]))
    with pytest.warns(ResilienceWarning, match="cannot read refusals"), TestClient(app):
        pass


@pytest.mark.parametrize("arguments", [{"policy": "no"}, {"limit": 0}])
def test_a_wrong_policy_fails_when_the_plugin_is_made(arguments: Any) -> None:
    with pytest.raises(ValueError, match="is not allowed"):
        ResiliencePlugin(**arguments)


def test_the_middleware_around_the_application_does_as_well(entry_points: Path) -> None:
    policy = ServerPolicy(routes=[RouteRule("/own", priority="sheddable")])
    with TestClient(ResilienceMiddleware(make_app(), policy)) as client:
        assert client.get("/below/1").status_code == client.get("/own").status_code == 200
    classes = {each.route: each.priority for each in policy.snapshot().routes if each.arrived}
    assert classes == {"/below/{number}": "critical", "/own": "sheddable"}


def test_the_command_that_explains_finds_the_plugin(entry_points: Path) -> None:
    app = make_app(ResiliencePlugin(limit=7))
    (found,) = find(app, "main:app")
    assert found.protection.policy.limit == 7
    assert found.apps[0] is app
    with TestClient(app) as client:
        assert client.get("/own").status_code == 200
    assert found.protection is app.asgi_handler.protection  # type: ignore[attr-defined]


# -- pages ---------------------------------------------------------------------------------------------------------------


def by_class(request: AnyRequest, error: RequestRefused) -> Response[str]:
    text = f"<p>{error.refused.reason} {error.refused.begun} {request.url.path}"
    return Response(text, status_code=418, media_type=MediaType.HTML, headers={"x-page": "1"})


def by_status(request: AnyRequest, error: Any) -> Response[dict[str, str]]:
    return Response({"error": error.detail}, status_code=504)


async def test_an_exception_handler_draws_the_page() -> None:
    plugin = ResiliencePlugin(refusal_page=by_exception_handlers)
    app = make_app(plugin, exception_handlers={RequestRefused: by_class})
    with behind_uvicorn(app) as port:
        refused = await ask(port, "/slow", budget_ms=0)
        late = await ask(port, "/slow?name=page", budget_ms=50)
    assert (refused.status, refused.reason) == (504, "expired_on_arrival")
    assert refused.body == b"<p>expired_on_arrival False /slow"
    assert refused.headers["content-type"] == "text/html; charset=utf-8"
    assert refused.headers["x-page"] == "1"
    assert late.body == b"<p>deadline_exceeded True /slow"
    assert (late.status, late.reason) == (504, None)


async def test_a_handler_of_the_status_goes_first_and_without_any_it_is_the_document() -> None:
    plugin = ResiliencePlugin(refusal_page=by_exception_handlers)
    app = make_app(plugin, exception_handlers={RequestRefused: by_class, 504: by_status})
    with behind_uvicorn(app) as port:
        answer = await ask(port, "/slow", budget_ms=0)
    assert answer.json == {"error": "The deadline had passed on arrival"}
    with behind_uvicorn(make_app(ResiliencePlugin(refusal_page=by_exception_handlers))) as port:
        answer = await ask(port, "/slow", budget_ms=0)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_plugin_without_a_policy_loads_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "7")
    assert (ResiliencePlugin(queue=3).policy.limit, ResiliencePlugin(queue=3).policy.queue) == (7, 3)
