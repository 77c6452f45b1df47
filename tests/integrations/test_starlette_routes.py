"""What the Starlette and FastAPI route source finds: labels, marks and classes, as the framework routes."""

from __future__ import annotations

import functools
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Host, Match, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles

from resilient_mw import RouteRule, exempt, priority
from resilient_mw import deadline as deadline_mark
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.routes import may_overlap
from tests.integrations.serving import (
    asgi_routes,
    http_scope,
    pick,
    priority_of,
    run,
    template,
    websocket_scope,
)


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("")


def endpoint() -> Any:
    """Return an endpoint of its own, so that a mark on it is nobody else's."""

    async def endpoint(request: Request) -> PlainTextResponse:
        return PlainTextResponse("")

    return endpoint


async def foreign(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


# -- B11: mounted applications, nested routers -------------------------------------------------------------------------


def test_b11_routes_of_mounted_applications_carry_the_prefix_and_their_own_mark() -> None:
    app, a, b = FastAPI(), FastAPI(), FastAPI()
    a.get("/items/{id}")(endpoint())
    b.get("/items/{id}")(priority("sheddable")(endpoint()))
    app.mount("/a", a)
    app.mount("/b", b)
    app.mount("/legacy", foreign)
    outer, inner = APIRouter(prefix="/outer"), APIRouter(prefix="/inner")
    inner.get("/x/{id}")(endpoint())
    outer.include_router(inner, prefix="/v1")
    app.include_router(outer, prefix="/api")
    routes = asgi_routes(app)

    assert template(routes, "/a/items/1") == "/a/items/{id}"
    assert priority_of(routes, "/a/items/1") is None
    assert template(routes, "/b/items/1") == "/b/items/{id}"
    assert priority_of(routes, "/b/items/1") == "sheddable"
    assert template(routes, "/api/outer/v1/inner/x/1") == "/api/outer/v1/inner/x/{id}"
    assert template(routes, "/legacy/one") == template(routes, "/legacy/two/three") == "/legacy/*"
    for path in ("/a/none", "/b/items/1/2", "/legacy", "/legacyish", "/none"):
        assert template(routes, path) is None, path


def test_mounts_behind_middlewares_are_looked_into() -> None:
    inner = FastAPI()
    inner.get("/x")(endpoint())
    inner.add_middleware(GZipMiddleware)
    app = Starlette(
        routes=[
            Mount("/wrapped", CORSMiddleware(inner, allow_origins=["*"])),
            Mount("/listed", routes=[Route("/x", endpoint())], middleware=[Middleware(GZipMiddleware)]),
            Mount("/router", Router([Route("/x", endpoint())])),
            Mount("/{tenant}", routes=[Route("/x/{id:int}", endpoint())]),
            Mount("/files", StaticFiles(directory=str(Path(__file__).parent))),
        ]
    )
    routes = asgi_routes(app)
    assert template(routes, "/wrapped/x") == "/wrapped/x"
    assert template(routes, "/listed/x") == "/listed/x"
    assert template(routes, "/router/x") == "/router/x"
    assert template(routes, "/acme/x/7") == "/{tenant}/x/{id}"
    assert template(routes, "/acme/x/seven") is None


def test_an_application_mounted_in_itself_ends_somewhere() -> None:
    app = Starlette(routes=[Route("/x", endpoint())])
    app.mount("/again", app)
    routes = asgi_routes(app)
    assert template(routes, "/x") == "/x"
    assert template(routes, "/again/x") == "/again/*"


def test_what_is_mounted_decides_also_when_it_finds_nothing() -> None:
    # A later route would match, but the framework does not come back from a mount.
    app = Starlette(
        routes=[Mount("/a", routes=[Route("/x", endpoint())]), Route("/a/{rest:path}", endpoint())]
    )
    routes = asgi_routes(app)
    assert template(routes, "/a/y") is None
    assert run(app, http_scope("/a/y")).status == 404
    assert template(routes, "/a") is None  # a redirect


def test_hosts() -> None:
    first, second = endpoint(), endpoint()
    inner = FastAPI()
    inner.get("/x")(priority("critical")(first))
    app = Starlette(
        routes=[Host("api.example.org", inner), Host("{sub}.example.org", foreign), Route("/x", second)]
    )
    routes = asgi_routes(app)

    def of(host: str) -> Any:
        route = pick(routes, http_scope("/x", headers=[(b"host", host.encode())]))
        return route and (route.template, route.targets[0])

    assert of("api.example.org:8000") == ("/x", first)
    assert of("www.example.org") == ("/*", foreign)
    assert of("other.org") == ("/x", second)


def test_a_host_in_an_included_router() -> None:
    app, router = FastAPI(), APIRouter()
    inner = Router([Route("/x", endpoint())])
    router.host("api.example.org", inner)
    app.include_router(router, prefix="/v1")
    routes = asgi_routes(app)
    headers = [(b"host", b"api.example.org")]
    assert template(routes, "/v1/x", headers=headers) == "/v1/x"
    assert run(app, http_scope("/v1/x", headers=headers)).status == 200
    assert template(routes, "/v1/x") is None


# -- B83: exactly the endpoint that the framework would pick ------------------------------------------------------------


def two_of_the_same_name() -> tuple[Any, Any]:
    def make(module: str) -> Any:
        async def handler(request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

        handler.__module__ = module
        handler.__qualname__ = "handler"
        return handler

    return make("shop.orders"), make("shop.reports")


@pytest.mark.parametrize("framework", [Starlette, FastAPI])
def test_b83_each_request_gets_the_class_of_the_route_that_serves_it(framework: Any) -> None:
    orders, reports = two_of_the_same_name()
    read, write, special, one, rest = (endpoint() for _ in range(5))

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()

    app = framework()
    app.router.add_route("/orders", priority("critical")(orders))
    app.router.add_route("/reports", priority("sheddable")(reports))
    app.router.add_route("/both", priority("sheddable")(read), methods=["GET"])
    app.router.add_route("/both", priority("critical")(write), methods=["POST"])
    app.router.add_websocket_route("/orders", priority("normal")(socket))
    app.router.add_route("/items/{id}", priority("sheddable")(one))
    app.router.add_route("/items/special", priority("critical")(special))
    app.router.add_route("/{rest:path}", priority("normal")(rest))
    routes = asgi_routes(app)

    assert priority_of(routes, "/orders") == "critical"
    assert priority_of(routes, "/reports") == "sheddable"
    assert priority_of(routes, "/both") == "sheddable"
    assert priority_of(routes, "/both", "HEAD") == "sheddable"  # added by the framework
    assert priority_of(routes, "/both", "POST") == "critical"
    assert priority_of(routes, "/items/special") == "sheddable"  # the first that matches, as in the framework
    assert priority_of(routes, "/elsewhere/deep") == "normal"
    assert template(routes, "/elsewhere/deep") == "/{rest}"
    by_websocket = pick(routes, websocket_scope("/orders"))
    assert by_websocket is not None
    assert by_websocket.targets[0] is socket

    late = endpoint()
    app.router.routes.insert(0, Route("/late", priority("critical")(late)))
    assert priority_of(routes, "/late") == "critical"
    assert template(routes, "/late") == "/late"


def test_a_method_that_does_not_fit_is_counted_for_the_first_route_of_the_path() -> None:
    app = Starlette(
        routes=[
            Route("/x", endpoint(), methods=["GET"]),
            Route("/{name}", endpoint(), methods=["POST"]),
            Route("/y/{id}", endpoint(), methods=["PUT"]),
        ]
    )
    routes = asgi_routes(app)
    assert template(routes, "/x", "POST") == "/{name}"
    assert template(routes, "/x", "DELETE") == "/x"
    assert template(routes, "/x", "X" * 4096) == "/x"
    assert template(routes, "/y/1", "GET") == "/y/{id}"


def test_fastapi_adds_no_head() -> None:
    app = FastAPI()
    app.get("/x")(endpoint())
    assert template(asgi_routes(app), "/x", "HEAD") == "/x"
    assert run(app, http_scope("/x", "HEAD")).status == 405


def test_a_redirect_to_the_other_spelling_is_no_route() -> None:
    app = Starlette(routes=[Route("/x", exempt(endpoint())), Route("/y/", endpoint())])
    routes = asgi_routes(app)
    assert template(routes, "/x/") is None
    assert template(routes, "/y") is None


def test_convertors() -> None:
    app = Starlette(
        routes=[
            Route("/n/{id:int}", endpoint()),
            Route("/n/{id}", endpoint()),
            Route("/u/{id:uuid}", endpoint()),
            Route("/f/{name:path}/raw", endpoint()),
            Route("/f/{name:path}", endpoint()),
        ]
    )
    routes = asgi_routes(app)
    first, second = (pick(routes, http_scope(path)) for path in ("/n/7", "/n/seven"))
    assert first is not None
    assert second is not None
    assert first is not second
    assert first.template == second.template == "/n/{id}"
    assert template(routes, "/u/no") is None
    assert template(routes, "/f/a/b/raw") == "/f/{name}/raw"
    assert template(routes, "/f/a/b") == "/f/{name}"
    # Too many digits for int(): the framework fails after it has chosen, so no error may come from looking.
    assert template(routes, "/n/" + "9" * 5000) == "/n/{id}"


def test_a_convertor_of_the_application_may_span_segments() -> None:
    class Version(Convertor[str]):
        regex = "[0-9]+(/[0-9]+)?"

        def convert(self, value: str) -> str:
            raise RuntimeError("asks a database")

        def to_string(self, value: str) -> str:
            return value

    register_url_convertor("resilience_version", Version())
    app = Starlette(routes=[Route("/v/{version:resilience_version}/x", endpoint())])
    routes = asgi_routes(app)
    assert template(routes, "/v/1/2/x") == template(routes, "/v/1/x") == "/v/{version}/x"
    assert template(routes, "/v/one/x") is None


def test_text_of_paths_is_taken_literally() -> None:
    app, router = FastAPI(), APIRouter()
    for path in ("/v1.0", "/a+b", "/c*", "/d/"):
        app.get(path)(endpoint())
        router.get(path)(endpoint())
    router.get("/e+/{id}")(endpoint())
    app.include_router(router, prefix="/r.x")
    routes = asgi_routes(app)
    assert template(routes, "/r.x/e+/1") == "/r.x/e+/{id}"
    assert template(routes, "/r.x/ee/1") is None
    for path in ("/v1.0", "/a+b", "/c*", "/d/"):
        assert template(routes, path) == path
        assert template(routes, f"/r.x{path}") == f"/r.x{path}"
    for path in (
        "/v1x0",
        "/aab",
        "/ccc",
        "/V1.0",
        "//v1.0",
        "/x/../a+b",
        "/rax/v1.0",
        "/r.x/v1x0",
        "/r.x/aab",
    ):
        assert template(routes, path) is None, path


def test_a_line_feed_at_the_end_is_read_as_the_framework_reads_it() -> None:
    app = Starlette(routes=[Route("/x", exempt(endpoint())), Route("/y/{id}", endpoint())])
    routes = asgi_routes(app)
    for path in ("/x\n", "/y/1\n", "/y/\n", "/x\n\n"):
        found, status = template(routes, path), run(app, http_scope(path)).status
        assert (found is not None) == (status == 200), path
    assert template(routes, "/x\n") == "/x"


def test_an_expression_that_somebody_has_changed_decides() -> None:
    import re

    route = Route("/Items/{id}", endpoint())
    route.path_regex = re.compile(route.path_regex.pattern, re.IGNORECASE)
    other = Route("/other", endpoint())
    other.path_regex = re.compile("^/other/?$")
    app = Starlette(routes=[route, other])
    routes = asgi_routes(app)
    assert template(routes, "/ITEMS/1") == "/Items/{id}"
    assert template(routes, "/other/") == "/other"
    assert run(app, http_scope("/ITEMS/1")).status == 200


def test_a_route_class_that_decides_for_itself_is_asked() -> None:
    class ByHeader(APIRoute):
        def matches(self, scope: Any) -> Any:
            match, child = super().matches(scope)
            wanted = (b"x-version", self.path[-1:].encode()) in scope["headers"]
            return (match, child) if wanted else (Match.NONE, {})

    class Everything(BaseRoute):
        def matches(self, scope: Any) -> Any:
            return (Match.FULL, {}) if scope["path"].startswith("/any") else (Match.NONE, {})

        async def handle(self, scope: Any, receive: Any, send: Any) -> None:
            await foreign(scope, receive, send)

    app = FastAPI(openapi_url=None)
    app.router.route_class = ByHeader
    app.get("/{name}/1")(endpoint())
    app.router.routes.append(Everything())
    app.router.add_route("/x/1", answer)
    routes = asgi_routes(app)
    headers = [(b"x-version", b"1")]
    assert template(routes, "/x/1", headers=headers) == "/{name}/1"
    assert template(routes, "/x/1") == "/x/1"
    assert template(routes, "/any/thing") == "/*"


def test_a_route_of_a_foreign_class_in_an_included_router_is_not_served() -> None:
    class Everything(BaseRoute):
        def matches(self, scope: Any) -> Any:
            return Match.FULL, {}

        async def handle(self, scope: Any, receive: Any, send: Any) -> None:
            await foreign(scope, receive, send)

    app, router = FastAPI(), APIRouter()
    router.routes.append(Everything())
    app.include_router(router)
    assert run(app, http_scope("/any")).status == 404
    assert template(asgi_routes(app), "/any") is None


def test_a_default_application_of_a_router() -> None:
    app = Starlette(routes=[Route("/x/", endpoint()), Mount("/in", Router([], default=foreign))])

    async def everything_else(scope: Any, receive: Any, send: Any) -> None:
        await foreign(scope, receive, send)

    app.router.default = priority("sheddable")(everything_else)
    routes = asgi_routes(app)
    assert template(routes, "/none") == "/*"
    assert priority_of(routes, "/none") == "sheddable"
    assert template(routes, "/in/none") == "/in/*"
    assert template(routes, "/x") is None  # redirected first
    assert run(app, http_scope("/x")).status == 307


def test_frontends_of_fastapi_come_last(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>", encoding="utf-8")
    app, router = FastAPI(openapi_url=None), APIRouter(prefix="/admin")
    if not hasattr(app, "frontend"):
        pytest.skip("this FastAPI serves no frontends")
    router.frontend("/", directory=tmp_path)
    priority("sheddable")(router)
    app.frontend("/", directory=tmp_path)
    plain = APIRouter()
    plain.frontend("/", directory=tmp_path)
    app.include_router(plain, prefix="/v2")
    app.include_router(router, prefix="/v1")
    app.get("/api")(endpoint())
    app.get("/v1/admin/users/")(endpoint())
    routes = asgi_routes(app)
    assert template(routes, "/api") == "/api"
    assert template(routes, "/index.html") == template(routes, "/") == "/*"
    assert template(routes, "/v1/admin/index.html") == "/v1/admin/*"
    assert priority_of(routes, "/v1/admin/index.html") == "sheddable"
    assert priority_of(routes, "/v1/administrator") is None
    assert template(routes, "/v2") == template(routes, "/v2/index.html") == "/v2/*"
    assert template(routes, "/v1/admin/users") is None  # redirected first
    assert run(app, http_scope("/v1/admin/users")).status == 307
    assert run(app, http_scope("/v1/admin/index.html")).status == 200


# -- B10: exact paths, with a root path in both conventions ------------------------------------------------------------


@pytest.mark.parametrize("included", [True, False], ids=["root in the path", "root not in the path"])
@pytest.mark.parametrize("root", ["", "/api", "/product", "/a/b"])
def test_b10_only_the_exact_path_reaches_a_protected_route(root: str, included: bool) -> None:
    app = Starlette(routes=[Route(path, exempt(endpoint())) for path in ("/health", "/v1.0", "/a+b")])
    routes = asgi_routes(app)

    def of(path: str) -> str | None:
        return priority_of(routes, root + path if included else path, root_path=root)

    for path in ("/health", "/v1.0", "/a+b"):
        assert of(path) == "exempt"
    for path in (
        "/healthz-admin",
        "/health/../admin",
        "//health",
        "/HEALTH",
        "/health%2f",
        "/health/",
        "/v1x0",
        "/aab",
    ):
        assert of(path) is None, path


def test_b10_a_root_path_ends_at_a_segment() -> None:
    app = Starlette(routes=[Route("/s", exempt(endpoint())), Route("/products", endpoint())])
    routes = asgi_routes(app)
    assert template(routes, "/products", root_path="/product") == "/products"
    assert template(routes, "/product/s", root_path="/product") == "/s"
    assert template(routes, "/product", root_path="/product") is None
    assert run(app, http_scope("/product", root_path="/product")).status == 404


def test_the_bare_root_path_is_no_route_to_starlette() -> None:
    app = Starlette(routes=[Route("/", endpoint())])
    routes = asgi_routes(app)
    assert template(routes, "/api/", root_path="/api") == "/"
    assert template(routes, "/api", root_path="/api") is None
    assert run(app, http_scope("/api", root_path="/api")).status == 307


def test_mounts_below_a_root_path() -> None:
    app = Starlette(routes=[Mount("/in", routes=[Route("/x", endpoint())])])
    routes = asgi_routes(app)
    assert template(routes, "/api/in/x", root_path="/api") == "/in/x"
    # Without the root in the path, Starlette itself loses its way below a mount.
    assert (template(routes, "/in/x", root_path="/api") is None) == (
        run(app, http_scope("/in/x", root_path="/api")).status == 404
    )


def test_a_root_path_of_the_application_itself() -> None:
    app = FastAPI()
    app.root_path = "/api"
    app.get("/x")(endpoint())
    app.get("/api/y")(endpoint())
    routes = asgi_routes(app)
    for path, root in (("/api/x", ""), ("/x", ""), ("/api/y", ""), ("/api/api/y", ""), ("/x", "/other")):
        found, status = (
            template(routes, path, root_path=root),
            run(app, http_scope(path, root_path=root)).status,
        )
        assert (found is not None) == (status == 200), (path, root)


def test_a_root_path_of_a_mounted_application() -> None:
    app, sub = FastAPI(), FastAPI()
    sub.root_path = "/proxy"
    for path in ("/x", "/sub/y", "/proxy/sub/z"):
        sub.get(path)(endpoint())
    app.mount("/sub", sub)
    app.router.routes.append(Host("api.org", sub))
    routes = asgi_routes(app)
    labels = []
    for path in ("/sub/x", "/sub/sub/y", "/sub/y", "/x", "/proxy/x", "/proxy/sub/y"):
        for host in (b"example.org", b"api.org"):
            found = template(routes, path, headers=[(b"host", host)])
            status = run(app, http_scope(path, headers=[(b"host", host)])).status
            assert (found is not None) == (status == 200), (path, host, found, status)
            labels.append(found)
    assert {"/sub/sub/y", "/x", "/sub/y"} <= set(labels)


# -- marks on what surrounds an endpoint -------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False], ids=["marked before", "marked after"])
def test_marks_on_routers_mounts_and_applications(early: bool) -> None:
    app, sub, router, inner = FastAPI(), FastAPI(), APIRouter(), APIRouter()
    marked = [(router, "sheddable"), (sub, "critical")]

    def mark() -> None:
        for target, name in marked:
            priority(name)(target)

    if early:
        mark()
    router.get("/r")(endpoint())
    inner.get("/deep")(endpoint())
    inner.get("/own")(priority("normal")(endpoint()))
    router.include_router(inner, prefix="/inner")
    app.include_router(router, prefix="/v1")
    sub.get("/s")(endpoint())
    app.mount("/sub", sub)
    app.get("/plain")(endpoint())
    if not early:
        mark()
    routes = asgi_routes(app)
    assert priority_of(routes, "/v1/r") == "sheddable"
    assert priority_of(routes, "/v1/inner/deep") == "sheddable"
    assert priority_of(routes, "/v1/inner/own") == "normal"
    assert priority_of(routes, "/sub/s") == "critical"
    assert priority_of(routes, "/plain") is None


def test_a_router_included_twice_keeps_its_mark_in_both_places() -> None:
    app, router = FastAPI(), APIRouter()
    router.get("/x")(endpoint())
    app.include_router(router, prefix="/v1")
    app.include_router(router, prefix="/v2")
    priority("sheddable")(router)
    routes = asgi_routes(app)
    assert priority_of(routes, "/v1/x") == priority_of(routes, "/v2/x") == "sheddable"


def test_inner_marks_go_before_outer_ones_and_gaps_are_filled() -> None:
    handler = deadline_mark(maximum=2.0)(endpoint())
    route = priority("critical", cost=3)(Route("/x", handler))
    mount = priority("sheddable", cost=5)(Mount("/m", routes=[route, Route("/y", endpoint())]))
    app = priority("normal")(Starlette(routes=[mount, Route("/z", endpoint())]))
    routes = asgi_routes(app)
    found = pick(routes, http_scope("/m/x"))
    assert found is not None
    assert found.mark is not None
    assert (found.mark.priority, found.mark.cost) == ("critical", 3)
    assert found.mark.deadline == DeadlineRule(None, None, 2.0)
    assert priority_of(routes, "/m/y") == "sheddable"
    assert priority_of(routes, "/z") == "normal"


def test_a_mark_on_a_foreign_application_and_on_its_mount() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    app = Starlette(
        routes=[
            Mount("/a", CORSMiddleware(priority("sheddable")(application), allow_origins=[])),
            priority("critical")(Mount("/b", foreign)),
        ]
    )
    routes = asgi_routes(app)
    assert priority_of(routes, "/a/x") == "sheddable"
    assert priority_of(routes, "/b/x") == "critical"


def test_classes_and_their_methods() -> None:
    """B82: a mark is found below what the framework or its user put around it."""

    @priority("sheddable")
    class Base(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    class Orders(Base):
        @priority("critical")
        async def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    class Reports(HTTPEndpoint):
        @priority("sheddable")
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    reports = asgi_routes(Starlette(routes=[Route("/reports", Reports)]))
    assert priority_of(reports, "/reports") == priority_of(reports, "/reports", "HEAD") == "sheddable"
    assert priority_of(reports, "/reports", "POST") is None
    routes = asgi_routes(Starlette(routes=[Route("/orders/{id}", Orders), Route("/orders", Orders)]))
    for path in ("/orders", "/orders/1"):
        assert priority_of(routes, path) == "sheddable"  # inherited
        assert priority_of(routes, path, "HEAD") == "sheddable"
        assert priority_of(routes, path, "POST") == "critical"
        assert priority_of(routes, path, "DELETE") == "sheddable"


def test_callable_objects_and_partials() -> None:
    """B82: a mark is found below what the framework or its user put around it."""

    @priority("critical")
    class Handler:
        async def __call__(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    async def two(request: Request, extra: int = 0) -> PlainTextResponse:
        return PlainTextResponse("")

    app = FastAPI()
    app.get("/object")(Handler())
    app.router.add_route("/partial", functools.partial(priority("sheddable")(two), extra=1))
    routes = asgi_routes(app)
    assert priority_of(routes, "/object") == "critical"
    assert priority_of(routes, "/partial") == "sheddable"


# -- routes that come and go -------------------------------------------------------------------------------------------


def test_routes_added_while_the_application_runs_are_seen() -> None:
    app, router, sub = FastAPI(), APIRouter(), FastAPI()
    app.include_router(router, prefix="/v1")
    app.mount("/sub", sub)
    app.get("/x")(endpoint())
    routes = asgi_routes(app)
    before = pick(routes, http_scope("/x"))
    assert before is not None
    assert template(routes, "/v1/new") is None
    router.get("/new")(endpoint())
    sub.get("/new/{id}")(endpoint())
    app.get("/new")(endpoint())
    assert template(routes, "/v1/new") == "/v1/new"
    assert template(routes, "/sub/new/1") == "/sub/new/{id}"
    assert template(routes, "/new") == "/new"
    assert pick(routes, http_scope("/x")) is before  # one object, one entry, one set of labels
    priority("critical")(before.targets[0])
    app.get("/newer")(endpoint())
    assert priority_of(routes, "/x") == "critical"


def test_routes_taken_away_are_not_kept_alive() -> None:
    class Payload:
        async def __call__(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("")

    app = Starlette(routes=[Route("/x", endpoint())])
    sub = Starlette()
    app.mount("/sub", sub)
    routes = asgi_routes(app)
    payload = Payload()
    app.router.routes.append(Route("/gone", payload))
    assert template(routes, "/gone") == "/gone"
    left = weakref.ref(payload), weakref.ref(sub)
    del app.router.routes[1:]
    del payload, sub
    assert template(routes, "/gone") is None
    gc.collect()
    assert [each() for each in left] == [None, None]


def test_what_is_remembered_is_bounded() -> None:
    app = Starlette(routes=[Route("/x", endpoint()), Route("/y/{id}", endpoint())])
    routes = asgi_routes(app)
    for number in range(1000):
        assert template(routes, "/x", f"M{number}") == "/x"
        assert template(routes, f"/y/{number}") == "/y/{id}"
        assert template(routes, "/x") == "/x"
    table = routes._top._table  # type: ignore[attr-defined]
    assert {path: len(methods) for path, methods in table.answers.items()} == {"/x": 1}


def test_what_is_no_application_of_these_frameworks() -> None:
    from resilient_mw_integrations.starlette import route_source

    assert route_source.resolver(foreign) is None
    assert route_source.resolver(None) is None


# -- checks at start ---------------------------------------------------------------------------------------------------


def test_listed_routes_say_where_a_parameter_spans_segments() -> None:
    app = FastAPI(openapi_url=None)
    app.get("/files/{name:path}")(endpoint())
    app.get("/items/{id:int}")(endpoint())
    app.mount("/legacy", foreign)
    listed = {route.template for route in asgi_routes(app).routes()}
    assert listed == {"/files/{name:path}", "/items/{id:int}", "/legacy/{path:path}"}
    for path in ("/files/a/b", "/files/*", "/legacy/x/y", "/items/7", "/items/*"):
        assert any(may_overlap(RouteRule(path, cost=2), each) for each in listed), path
    assert not any(may_overlap(RouteRule("/itmes/*", cost=2), each) for each in listed)


def test_listed_routes_say_which_methods_they_serve() -> None:
    class Orders(HTTPEndpoint):
        async def get(self, request: Any) -> None: ...

        @priority("critical")
        async def post(self, request: Any) -> None: ...

    app = Starlette(
        routes=[
            Route("/x/{id:int}", endpoint(), methods=["PUT"]),
            Route("/any", endpoint(), methods=None),
            Route("/orders", Orders),
            WebSocketRoute("/ws", endpoint()),
            Mount("/legacy", foreign),
        ]
    )
    listed = [(route.template, route.methods) for route in asgi_routes(app).routes()]
    assert sorted(listed, key=lambda each: (each[0], sorted(each[1] or ()))) == [
        ("/any", frozenset({"GET", "HEAD"})),
        ("/legacy/{path:path}", None),
        ("/orders", frozenset({"GET", "HEAD"})),
        ("/orders", frozenset({"POST"})),
        ("/ws", frozenset({"websocket"})),
        ("/x/{id:int}", frozenset({"PUT"})),
    ]
