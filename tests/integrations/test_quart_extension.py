"""Quart: which rule a request or a websocket has, whose marks count, and what the extension does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quart import Blueprint, Quart, request, websocket
from quart.views import MethodView, View
from werkzeug.exceptions import HTTPException
from werkzeug.routing import BaseConverter

from resilient_mw import ServerPolicy, current, deadline, exempt, priority
from resilient_mw.core.routes import Route, below_root
from resilient_mw.runtime.configuration import sources_of
from resilient_mw_integrations.flask import route_source as flask_source
from resilient_mw_integrations.quart import Resilience, route_source
from tests.integrations.serving import http_scope, run, websocket_scope

pytestmark = pytest.mark.usefixtures("entry_points")


def view() -> Any:
    """Return a view of its own, so that a mark on it is nobody else's."""

    async def view(**values: Any) -> str:
        return request.url_rule.rule if request.url_rule else ""

    return view


def add(app: Any, rule: str, function: Any, **more: Any) -> None:
    app.add_url_rule(rule, f"e{id(function)}", function, **more)


def pick(app: Quart, scope: dict[str, Any]) -> Route | None:
    resolver = route_source.resolver(app)
    assert resolver is not None
    return resolver.resolve(below_root(scope["path"], scope["root_path"]), scope)


def label(app: Quart, path: str, method: str = "GET", **more: Any) -> str | None:
    route = pick(app, http_scope(path, method, **more))
    return None if route is None else route.template


def marked(app: Quart, path: str, method: str = "GET", **more: Any) -> str | None:
    route = pick(app, http_scope(path, method, **more))
    return None if route is None or route.mark is None else route.mark.priority


def rows(policy: ServerPolicy) -> dict[tuple[str, str], int]:
    return {(each.route, each.priority): each.arrived for each in policy.snapshot().routes if each.arrived}


# -- rules and marks ---------------------------------------------------------------------------------------------------


def test_each_request_gets_the_rule_of_the_view_that_serves_it() -> None:
    app = Quart("shop", static_folder=None)
    add(app, "/both", priority("sheddable")(view()), methods=["GET"])
    add(app, "/both", priority("critical")(view()), methods=["POST"])
    add(app, "/items/<int:number>", view())
    add(app, "/dir/", view())
    resolver = route_source.resolver(app.asgi_app)
    assert resolver is not None
    for _ in range(2):  # the second time from memory
        assert marked(app, "/both") == marked(app, "/both", "HEAD") == "sheddable"
        assert marked(app, "/both", "POST") == "critical"
        assert resolver.resolve("/both", http_scope("/both", "POST")) is resolver.resolve(
            "/both", http_scope("/both", "POST")
        )
    assert label(app, "/items/7") == "/items/<int:number>"
    assert label(app, "/items/7", "DELETE") == "/items/<int:number>"  # answers 405
    assert label(app, "/items/x") is None
    assert label(app, "/dir") is None  # a redirect
    add(app, "/late", priority("critical")(view()))
    assert marked(app, "/late") == "critical"
    assert flask_source.resolver(app) is None
    assert route_source.resolver(object()) is None


def test_marks_count_on_classes_methods_blueprints_and_the_application() -> None:
    app = priority("sheddable")(Quart("shop", static_folder=None))
    outer, inner = priority("critical")(Blueprint("outer", "x")), Blueprint("inner", "x")

    class Each(MethodView):
        async def get(self) -> str:
            return ""

        @priority("normal")
        async def post(self) -> str:
            return ""

    @exempt
    class Whole(View):
        async def dispatch_request(self, **values: Any) -> str:
            return ""

    inner.add_url_rule("/each", view_func=Each.as_view("each"))
    inner.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    outer.register_blueprint(inner, url_prefix="/in")
    app.register_blueprint(outer, url_prefix="/out")
    add(app, "/plain", view())
    assert marked(app, "/out/in/each") == "critical"
    assert marked(app, "/out/in/each", "POST") == "normal"
    assert marked(app, "/out/in/whole") == "exempt"
    assert marked(app, "/plain") == "sheddable"
    listed = {route.template for route in route_source.resolver(app).routes()}  # type: ignore[union-attr]
    assert listed == {"/out/in/each", "/out/in/whole", "/plain"}


def test_the_root_path_and_the_host_decide_as_in_quart() -> None:
    app = Quart("shop", static_folder=None, subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.test"
    add(app, "/x", priority("critical")(view()), subdomain="api")
    add(app, "/x", priority("sheddable")(view()))

    def at(host: bytes, **more: Any) -> dict[str, Any]:
        return {"headers": [(b"host", host)], **more}

    assert marked(app, "/x", **at(b"api.shop.test")) == "critical"
    assert marked(app, "/x", **at(b"shop.test")) == "sheddable"
    plain = Quart("plain", static_folder=None)
    add(plain, "/x", view())
    for path, root in (
        ("/base/x", "/base"),
        ("/x", ""),
        ("/based/x", "/base"),
        ("/x", "/base"),
        ("/base", "/base"),
    ):
        scope = http_scope(path, root_path=root)
        assert (pick(plain, scope) is not None) == (run(plain, scope).status == 200), (path, root)


def test_converters_of_the_application_are_not_run() -> None:
    class Asking(BaseConverter):
        def to_python(self, value: str) -> str:
            raise LookupError("asks a database")

    app = Quart("shop", static_folder=None)
    app.url_map.converters["asking"] = Asking
    add(app, "/a/<asking:name>", priority("critical")(view()))
    assert marked(app, "/a/7") == "critical"


def test_websockets_have_rules_of_their_own() -> None:
    app = Quart("shop", static_folder=None)

    @app.websocket("/live/<name>")
    @priority("critical")
    async def live(name: str) -> None:
        await websocket.accept()

    add(app, "/live/<name>", priority("sheddable")(view()))
    route = pick(app, websocket_scope("/live/7"))
    assert route is not None
    assert route.mark is not None
    assert (route.template, route.mark.priority) == ("/live/<name>", "critical")
    assert marked(app, "/live/7") == "sheddable"
    assert pick(app, websocket_scope("/nothing")) is None


RULES = ["/", "/a", "/a/", "/a/<b>", "/<a>/b", "/a/<int:n>", "/<path:p>/x", "/a/b"]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.sampled_from(RULES), st.sampled_from([["GET"], ["POST"]])), max_size=6, unique_by=str),
    st.lists(st.sampled_from(["a", "b", "7", "x", ""]), max_size=4),
    st.sampled_from(["GET", "POST", "PUT"]),
)  # fmt: skip
def test_the_rule_is_the_one_that_quart_picks(
    rules: list[tuple[str, list[str]]], segments: list[str], method: str
) -> None:
    app = Quart("random", static_folder=None)
    for rule, methods in rules:
        add(app, rule, view(), methods=methods)
    scope = http_scope("/" + "/".join(segments), method)
    status = run(app, scope).status
    route = pick(app, scope)
    # A path whose slashes Werkzeug would merge has no rule of its own, also where the method is wrong.
    assert status in ({404, 308, 405} if route is None else {200, 405})
    if status == 200 and route is not None:
        served: list[str] = []

        def note(response: Any) -> Any:
            served.append(str(request.url_rule))
            return response

        app.after_request_funcs[None] = [note]
        run(app, scope)
        assert served == [route.template]


# -- the extension -----------------------------------------------------------------------------------------------------


def make_app(**config: Any) -> Quart:
    app = Quart("shop", static_folder=None)
    app.config.update(config)

    @app.get("/")
    @priority("critical")
    async def index() -> dict[str, float]:
        return {"left": current().remaining()}

    return app


async def test_three_lines_protect_an_application_and_marks_count() -> None:
    app = make_app()
    resilience = Resilience(app)
    answer = await (await app.test_client().get("/")).get_json()
    assert 5.0 < answer["left"] <= 10.0
    assert rows(resilience.policy_of(app)) == {("/", "critical"): 1}


async def test_the_order_of_decorators_does_not_matter() -> None:
    app = make_app()

    @priority("sheddable")
    @app.get("/above")
    @deadline(default=2)
    async def above() -> dict[str, float]:
        return {"left": current().remaining()}

    resilience = Resilience(app)
    assert (await (await app.test_client().get("/above")).get_json())["left"] <= 2
    assert rows(resilience.policy_of(app)) == {("/above", "sheddable"): 1}


def test_configuration_environment_and_keywords_in_their_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RESILIENT_MW_QUEUE", "5")
    app = make_app(RESILIENCE_LIMIT="3", RESILIENCE_QUEUE=7, RESILIENCE_MAX_WAIT=3)
    resilience = Resilience(max_wait=0.5)
    resilience.init_app(app)
    policy = resilience.policy_of(app)
    assert (policy.limit, policy.queue, policy.max_wait) == (3, 5, 0.5)
    assert sources_of(policy)["limit"] == "app.config['RESILIENCE_LIMIT']"
    with pytest.raises(RuntimeError, match="'shop' is protected already"):
        resilience.init_app(app)
    with pytest.raises(ValueError, match=r"'limti' is no setting: did you mean 'limit'\?"):
        resilience.init_app(make_app(RESILIENCE_LIMTI=3))


def test_one_object_protects_several_applications_under_one_limit() -> None:
    resilience = Resilience(policy=ServerPolicy(limit=2))
    first, second = make_app(), make_app()
    resilience.init_app(first)
    resilience.init_app(second)
    assert resilience.policy_of(first) is resilience.policy_of(second)


async def test_sync_views_and_hooks_see_the_context() -> None:
    app = make_app()
    seen: list[float] = []

    @app.before_request
    async def before() -> None:
        seen.append(current().remaining())

    @app.teardown_request
    async def teardown(error: BaseException | None) -> None:
        seen.append(current().remaining())

    @app.get("/sync")
    def sync() -> str:
        seen.append(current().remaining())
        return "ok"

    Resilience(app, deadline_default=7.0)
    assert await (await app.test_client().get("/sync")).get_data(as_text=True) == "ok"
    assert len(seen) == 3
    assert all(2.0 < left <= 7.0 for left in seen)


async def test_the_error_handlers_of_the_application_draw_its_refusals() -> None:
    app = make_app()

    @app.errorhandler(504)
    async def late(error: HTTPException) -> Any:
        refused: Any = error
        body = await request.get_data()
        return f"<h1>{error.description}</h1>{request.path} {body!r}", 504, {"X-Page": refused.refused.reason}

    @app.errorhandler(503)
    async def broken(error: HTTPException) -> Any:
        raise LookupError("mine")

    @app.get("/hold")
    async def hold() -> str:
        entered.set()
        await free.wait()
        return ""

    entered, free = asyncio.Event(), asyncio.Event()
    resilience = Resilience(app, error_pages=True, limit=1, queue=0)
    client = app.test_client()
    page = await client.get("/", headers={"X-Request-Timeout-Ms": "0"})
    assert (page.status_code, page.headers["X-Page"]) == (504, "expired_on_arrival")
    assert await page.get_data(as_text=True) == "<h1>The deadline had passed on arrival</h1>/ b''"
    holder = asyncio.create_task(client.get("/hold"))
    try:
        await asyncio.wait_for(entered.wait(), 10)
        refused = await client.get("/")
        assert (refused.status_code, (await refused.get_json())["reason"]) == (503, "queue_full")
    finally:
        free.set()
        await holder
    assert resilience.policy_of(app).snapshot().guard_errors == 1


async def test_work_that_came_to_nothing_gets_the_page_of_the_application_too() -> None:
    app = make_app()
    ended: list[bool] = []

    @app.get("/slow/<name>")
    async def slow(name: str) -> str:
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(current().cancelled)
        return ""

    @app.errorhandler(504)
    async def late(error: HTTPException) -> Any:
        return f"{error.description} {request.view_args}", 504

    Resilience(app, error_pages=True, deadline_default=0.1)
    page = await app.test_client().get("/slow/x")
    assert (page.status_code, await page.get_data(as_text=True)) == (504, "The deadline passed {'name': 'x'}")
    for _ in range(500):
        if ended:
            break
        await asyncio.sleep(0.02)
    assert ended == [True]


async def test_errors_without_a_handler_stay_the_problem_document() -> None:
    app = make_app()
    Resilience(app, error_pages=True)
    answer = await app.test_client().get("/", headers={"X-Request-Timeout-Ms": "0"})
    assert (answer.status_code, (await answer.get_json())["reason"]) == (504, "expired_on_arrival")


async def test_what_goes_past_the_middlewares_is_quarts_own() -> None:
    app = make_app()
    begun: list[str] = []

    @app.before_serving
    async def start() -> None:
        begun.append("started")

    Resilience(app)
    async with app.test_app() as running:
        assert begun == ["started"]
        assert (await running.test_client().get("/nothing")).status_code == 404
