"""What the Flask route source finds: labels, marks and classes, as Werkzeug's routing map routes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flask
import pytest
from flask import Blueprint, Flask
from flask.views import MethodView, View
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import BaseConverter, Rule, ValidationError

from resilient_mw import RouteRule, exempt, priority
from resilient_mw.core.routes import may_overlap
from resilient_mw_integrations.flask import route_source
from tests.integrations.serving import call, rule_of, view_priority, wsgi_environ, wsgi_routes


def view() -> Any:
    """Return a view of its own, so that a mark on it is nobody else's."""

    def view(**values: Any) -> str:
        return ""

    return view


def add(app: Any, rule: str, function: Any, **more: Any) -> Any:
    more.setdefault("endpoint", f"e{len(getattr(app, 'view_functions', ())) or id(function)}")
    app.add_url_rule(rule, view_func=function, **more)
    return function


def foreign(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [b""]


# -- exactly the view that Flask would pick ----------------------------------------------------------------------------


def test_b83_each_request_gets_the_class_of_the_view_that_serves_it() -> None:
    app = Flask(__name__)
    add(app, "/both", priority("sheddable")(view()), methods=["GET"])
    add(app, "/both", priority("critical")(view()), methods=["POST"])
    add(app, "/<path:rest>", priority("normal")(view()))
    add(app, "/items/<id>", priority("sheddable")(view()))
    add(app, "/items/special", priority("critical")(view()))
    routes = wsgi_routes(app)
    for _ in range(2):  # the second time from memory
        assert view_priority(routes, "/both") == "sheddable"
        assert view_priority(routes, "/both", "HEAD") == "sheddable"
        assert view_priority(routes, "/both", "POST") == "critical"
        assert view_priority(routes, "/items/special") == "critical"  # Werkzeug prefers fixed text
        assert view_priority(routes, "/items/other") == "sheddable"
        assert view_priority(routes, "/deep/elsewhere") == "normal"
    assert rule_of(routes, "/items/7") == "/items/<id>"
    assert rule_of(routes, "/deep/elsewhere") == "/<path:rest>"
    app.url_map.add(Rule("/late", endpoint="late"))
    app.view_functions["late"] = priority("critical")(view())
    assert view_priority(routes, "/late") == "critical"


def test_a_method_that_does_not_fit_is_counted_for_the_rule_of_the_path() -> None:
    app = Flask(__name__)
    add(app, "/x", view(), methods=["POST"])
    add(app, "/y/<int:id>", priority("sheddable")(view()), methods=["PUT", "DELETE"])
    routes = wsgi_routes(app)
    for method in ("GET", "FOO", "X" * 4096):
        assert rule_of(routes, "/x", method) == "/x"
        assert rule_of(routes, "/y/7", method) == "/y/<int:id>"
        assert view_priority(routes, "/y/7", method) == "sheddable"
        assert call(app, wsgi_environ("/x", method)) == 405


def test_redirects_and_errors_are_no_route() -> None:
    app = Flask(__name__)
    add(app, "/x/", exempt(view()))
    add(app, "/y", exempt(view()))
    add(app, "/loose/", view(), strict_slashes=False)
    add(app, "/n/<int(max=9):id>", view())
    add(app, "/old", None, redirect_to="/y")
    routes = wsgi_routes(app)
    for path, status in (
        ("/x", 308), ("/y/", 404), ("/a//b", 404), ("/y//", 308), ("/n/10", 404), ("/n/x", 404), ("/old", 308), ("/Y", 404),
    ):  # fmt: skip
        answered = call(app, wsgi_environ(path))
        assert answered in {status, 404, 308}, path
        assert rule_of(routes, path) is None, path
    assert rule_of(routes, "/loose") == rule_of(routes, "/loose/") == "/loose/"
    assert rule_of(routes, "/n/9") == "/n/<int(max=9):id>"
    # Werkzeug drops slashes at the front, so this is the view that runs.
    assert rule_of(routes, "//y") == "/y"
    assert call(app, wsgi_environ("//y")) == 200


@pytest.mark.parametrize("root", ["", "/product", "/y"])
def test_b10_only_the_exact_path_reaches_a_protected_view(root: str) -> None:
    app = Flask(__name__)
    for path in ("/health", "/v1.0", "/a+b"):
        add(app, path, exempt(view()))
    routes = wsgi_routes(app)
    for path in ("/health", "/v1.0", "/a+b"):
        assert view_priority(routes, path, SCRIPT_NAME=root) == "exempt"
    for path in (
        "/healthz-admin",
        "/health/../admin",
        "/HEALTH",
        "/health%252f",
        "/health/",
        "/v1x0",
        "/aab",
        "/products",
    ):
        assert view_priority(routes, path, SCRIPT_NAME=root) is None, path


def test_paths_beyond_ascii() -> None:
    app = Flask(__name__)
    add(app, "/straße", view())
    add(app, "/é/<name>", view())
    routes = wsgi_routes(app)
    for _ in range(2):
        assert rule_of(routes, "/straße") == "/straße"
    assert rule_of(routes, "/é/ü") == "/é/<name>"
    environ = {**wsgi_environ("/"), "PATH_INFO": "/\xff\xfe"}
    assert routes.resolve("/", environ) is None
    assert call(app, environ) == 404


def test_hosts_and_subdomains() -> None:
    by_host = Flask(__name__, host_matching=True, static_host="static.org")
    add(by_host, "/x", priority("critical")(view()), host="api.org")
    add(by_host, "/<name>", view(), host="<sub>.shop.org")
    routes = wsgi_routes(by_host)
    assert view_priority(routes, "/x", HTTP_HOST="api.org") == "critical"
    assert rule_of(routes, "/x", HTTP_HOST="a.shop.org") == "/<name>"
    assert rule_of(routes, "/x", HTTP_HOST="other.org") is None
    assert rule_of(routes, "/x", HTTP_HOST="\x00") is None

    by_subdomain = Flask(__name__, subdomain_matching=True)
    by_subdomain.config["SERVER_NAME"] = "shop.org"
    add(by_subdomain, "/x", priority("critical")(view()), subdomain="api")
    add(by_subdomain, "/x", view())
    routes = wsgi_routes(by_subdomain)
    assert view_priority(routes, "/x", HTTP_HOST="api.shop.org") == "critical"
    assert view_priority(routes, "/x", HTTP_HOST="shop.org") is None
    assert rule_of(routes, "/x", HTTP_HOST="shop.org") == "/x"
    assert rule_of(routes, "/x", HTTP_HOST="www.shop.org") is None


def test_a_wish_for_a_websocket_is_no_route() -> None:
    app = Flask(__name__)
    add(app, "/x", view())
    routes = wsgi_routes(app)
    upgrade = {"HTTP_CONNECTION": "keep-alive, Upgrade", "HTTP_UPGRADE": "websocket"}
    assert rule_of(routes, "/x", **upgrade) is None
    assert call(app, wsgi_environ("/x", **upgrade)) == 400
    assert rule_of(routes, "/x", HTTP_UPGRADE="h2c") == "/x"


def test_converters_of_the_application_are_not_run() -> None:
    asked: list[str] = []

    class Customer(BaseConverter):
        regex = "[a-z]+"

        def to_python(self, value: str) -> str:
            asked.append(value)
            flask.current_app.logger.name  # noqa: B018  fails where no application is at work
            raise ValidationError

    by_host = Flask(__name__, host_matching=True, static_host="static.org")
    by_host.url_map.converters["customer"] = Customer
    add(by_host, "/<customer:name>", view(), host="api.org")
    assert rule_of(wsgi_routes(by_host), "/anna", HTTP_HOST="api.org") == "/<customer:name>"

    app = Flask(__name__)
    app.url_map.converters["customer"] = Customer
    add(app, "/c/<customer:name>/x", priority("critical")(view()))
    add(app, "/n/<int(max=9):id>", view())
    add(app, "/m//n", view(), merge_slashes=False)
    routes = wsgi_routes(app)
    assert view_priority(routes, "/c/anna/x") == "critical"
    assert rule_of(routes, "/c/7/x") is None
    assert rule_of(routes, "/n/9") == "/n/<int(max=9):id>"
    assert rule_of(routes, "/n/10") is None
    assert rule_of(routes, "/m//n") == "/m//n"
    assert asked == []
    assert rule_of(routes, "/late") is None
    app.url_map.add(Rule("/late", endpoint="late"))
    assert rule_of(routes, "/late") == "/late"
    assert call(app, wsgi_environ("/c/anna/x")) == 404
    assert asked == ["anna"]


def test_what_is_remembered_is_bounded() -> None:
    app = Flask(__name__)
    add(app, "/x", view())
    add(app, "/y/<id>", view())
    routes = wsgi_routes(app)
    for number in range(1000):
        assert rule_of(routes, "/x", f"M{number}") == "/x"
        assert rule_of(routes, f"/y/{number}") == "/y/<id>"
        assert rule_of(routes, "/x") == "/x"
    assert len(routes._answers) == 1  # type: ignore[attr-defined]


# -- marks -------------------------------------------------------------------------------------------------------------


def test_marks_on_blueprints_and_the_application() -> None:
    app = priority("normal")(Flask(__name__))
    parent, child = Blueprint("parent", __name__), Blueprint("child", __name__)
    priority("sheddable")(parent)
    parent.add_url_rule("/p", "p", view())
    child.add_url_rule("/c", "c", view())
    child.add_url_rule("/own", "own", priority("critical")(view()))
    parent.register_blueprint(child, url_prefix="/child")
    app.register_blueprint(parent, url_prefix="/parent")
    app.register_blueprint(child, url_prefix="/again", name="again")
    add(app, "/plain", view())
    routes = wsgi_routes(app)
    assert view_priority(routes, "/parent/p") == "sheddable"
    assert view_priority(routes, "/parent/child/c") == "sheddable"
    assert rule_of(routes, "/parent/child/c") == "/parent/child/c"
    assert view_priority(routes, "/parent/child/own") == "critical"
    assert view_priority(routes, "/again/c") == "normal"
    assert view_priority(routes, "/plain") == "normal"


def wrapping(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        return function(**values)

    return wrapper


@pytest.mark.parametrize("decorators", [[], [wrapping]], ids=["bare", "decorated"])
def test_class_based_views(decorators: list[Any]) -> None:
    """B82: on classes of views and on their methods, in either order."""

    @priority("sheddable")
    class Base(MethodView):
        def get(self, **values: Any) -> str:
            return ""

    class Orders(Base):
        @priority("critical")
        def post(self) -> str:
            return ""

    class Invoices(MethodView):
        @priority("sheddable")
        def get(self) -> str:
            return ""

        def post(self) -> str:
            return ""

    class Report(View):
        @priority("critical")
        def dispatch_request(self) -> str:
            return ""

    Orders.decorators = Report.decorators = decorators
    app = Flask(__name__)
    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.add_url_rule("/orders/<id>", view_func=wrapping(Orders.as_view("order")), endpoint="order")
    app.add_url_rule("/invoices", view_func=Invoices.as_view("invoices"))
    app.add_url_rule("/report", view_func=Report.as_view("report"))
    routes = wsgi_routes(app)
    for _ in range(2):
        assert view_priority(routes, "/orders") == "sheddable"
        assert view_priority(routes, "/orders", "HEAD") == "sheddable"
        assert view_priority(routes, "/orders", "POST") == "critical"
        assert view_priority(routes, "/orders", "OPTIONS") == "sheddable"
    assert view_priority(routes, "/orders/7") == "sheddable"
    assert view_priority(routes, "/invoices", "HEAD") == "sheddable"
    assert view_priority(routes, "/invoices", "POST") is None
    assert view_priority(routes, "/report") == "critical"


def test_partials() -> None:
    """B82: a mark is found below what the framework or its user put around it."""
    app = Flask(__name__)
    add(app, "/p/<id>", functools.partial(priority("sheddable")(view()), extra=1), endpoint="p")
    assert view_priority(wsgi_routes(app), "/p/1") == "sheddable"


# -- how the application is reached ------------------------------------------------------------------------------------


def test_the_application_its_bound_method_and_what_is_neither() -> None:
    app = Flask(__name__)
    add(app, "/x", view())
    assert rule_of(wsgi_routes(app), "/x") == "/x"
    assert rule_of(wsgi_routes(app.wsgi_app), "/x") == "/x"
    assert route_source.resolver(foreign) is None
    assert route_source.resolver(ProxyFix(app)) is None  # its inside is looked at by the caller
    assert route_source.resolver([].append) is None


@pytest.mark.parametrize("way", ["around", "as wsgi_app"])
def test_applications_put_together_by_the_dispatcher(way: str) -> None:
    outer, shop, deep = (Flask(__name__) for _ in range(3))
    add(outer, "/<path:rest>", priority("sheddable")(view()))
    add(shop, "/items/<int:id>", priority("critical")(view()))
    add(deep, "/x", view())
    mounts: dict[str, Any] = {
        "/shop": ProxyFix(shop),
        "/shop/deep": DispatcherMiddleware(deep, {"/metrics": foreign}),
        "/legacy": foreign,
    }
    if way == "around":
        app: Any = DispatcherMiddleware(outer, mounts)
    else:
        outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, mounts)  # type: ignore[method-assign]
        app = outer
    routes = wsgi_routes(app)
    for path, template, status in (
        ("/shop/items/7", "/shop/items/<int:id>", 200),
        ("/shop/items/x", None, 404),
        ("/shop", None, 404),
        ("/shop/deep/x", "/shop/deep/x", 200),
        ("/shop/deep/metrics/y", "/shop/deep/metrics/*", 200),
        ("/legacy", "/legacy/*", 200),
        ("/legacy/x/y", "/legacy/*", 200),
        ("/legacyish", "/<path:rest>", 200),
        ("/", None, 404),
    ):
        assert rule_of(routes, path) == template, path
        assert call(app, wsgi_environ(path)) == status, path
    assert view_priority(routes, "/shop/items/7") == "critical"
    assert view_priority(routes, "/elsewhere") == "sheddable"
    listed = {route.template for route in routes.routes()}
    assert {
        "/<path:rest>",
        "/shop/items/<int:id>",
        "/shop/deep/x",
        "/legacy/*",
        "/shop/deep/metrics/*",
    } <= listed
    mounts["/late"] = foreign
    assert rule_of(routes, "/late/items/7") == "/late/*"
    mounts["/late"] = shop
    assert rule_of(routes, "/late/items/7") == "/late/items/<int:id>"


def test_listed_rules_can_be_compared_with_route_rules() -> None:
    app = Flask(__name__, static_folder=None)
    add(app, "/files/<path:name>", view())
    add(app, "/items/<int:id>", view())
    listed = [route.template for route in wsgi_routes(app).routes()]
    assert listed == ["/files/<path:name>", "/items/<int:id>"]
    for path in ("/files/a/b", "/files/*", "/items/7", "/items/{id}"):
        assert any(may_overlap(RouteRule(path, cost=2), each) for each in listed), path
    assert not any(may_overlap(RouteRule("/itmes/{id}", cost=2), each) for each in listed)


def test_listed_rules_say_which_methods_they_serve() -> None:
    class Orders(MethodView):
        def get(self) -> str:
            return ""

        @priority("critical")
        def post(self) -> str:
            return ""

    app = Flask(__name__, static_folder=None)
    shared = add(app, "/x", view(), methods=["PUT"], endpoint="put")
    add(app, "/x", shared, methods=["DELETE"], endpoint="delete")
    app.add_url_rule("/orders", view_func=Orders.as_view("orders"))
    app.url_map.add(Rule("/ws", endpoint="put", websocket=True))
    app.url_map.add(Rule("/any", endpoint="put"))
    listed = {(route.template, route.methods) for route in wsgi_routes(app).routes()}
    assert listed == {
        ("/x", frozenset({"PUT", "OPTIONS"})),
        ("/x", frozenset({"DELETE", "OPTIONS"})),
        ("/orders", frozenset({"GET", "HEAD", "OPTIONS"})),
        ("/orders", frozenset({"POST"})),
        ("/ws", frozenset({"websocket"})),
        ("/any", None),
    }


# -- random applications -----------------------------------------------------------------------------------------------

PARTS = (
    "a", "b", "ab", "v1.0", "a+b", "", "<%s>", "<int:%s>", "<float:%s>", "<path:%s>", "x-<%s>", "<int:%s>.txt",
    "<any(a,ab):%s>", "<string(length=2):%s>", "<int(max=8):%s>", "<%s>-<int:%s>",
)  # fmt: skip
VALUES = ("a", "b", "ab", "v1.0", "a+b", "", "7", "9", "7.5", "x-a", "7.txt", "a-7", "A", "é", "a\n", "..")
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "FOO", "post")
rules = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PARTS), min_size=1, max_size=3),
        st.one_of(st.none(), st.lists(st.sampled_from(("GET", "POST", "PUT")), min_size=1, unique=True)),
        st.booleans(),
        st.sampled_from((None, None, "one", "two")),
    ),
    max_size=8,
)
requests = st.lists(
    st.tuples(
        st.lists(st.sampled_from(VALUES), min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts)),
        st.sampled_from(METHODS),
    ),
    min_size=1,
    max_size=12,
)


def random_app(rules: list[Any], foreign_converter: bool) -> Flask:
    app = Flask(__name__, static_folder=None)
    if foreign_converter:  # then the map is copied
        app.url_map.converters["mine"] = type("Mine", (BaseConverter,), {"__module__": __name__})
    blueprints = {name: Blueprint(name, __name__, url_prefix="/a") for name in ("one", "two")}
    number = 0
    for place, (parts, methods, strict, where) in enumerate(rules):
        path = "".join(f"/{part}" for part in parts)
        while "%s" in path:
            path, number = path.replace("%s", f"p{number}", 1), number + 1
        target: Any = app if where is None else blueprints[where]
        target.add_url_rule(path, f"e{place}", view(), methods=methods, strict_slashes=strict)
    for blueprint in blueprints.values():
        app.register_blueprint(blueprint)
    return app


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rules=rules, requests=requests, foreign_converter=st.booleans())
def test_for_random_rules_and_requests_it_is_the_rule_that_flask_picks(
    rules: list[Any], requests: list[Any], foreign_converter: bool
) -> None:
    app = random_app(rules, foreign_converter)
    picked: list[Rule | None] = []
    app.before_request(lambda: picked.append(flask.request.url_rule))
    routes = wsgi_routes(app)
    for path, method in (*requests, *requests):  # the second time from memory
        found = routes.resolve(path, wsgi_environ(path, method))
        picked.clear()
        status = call(app, wsgi_environ(path, method))
        shown = (path, method, status, picked, found and found.template)
        if status == 405 and found is None:
            # Flask says 405 also for a path that no method would bring to a view: a redirect, or a value that the
            # converter would refuse.
            for other in ("GET", "POST", "PUT"):
                call(app, wsgi_environ(path, other))
            assert set(picked) == {None}, shown
        elif status == 405:
            assert picked == [None], shown
        elif picked[0] is None:
            assert found is None, shown
        else:
            assert found is not None, shown
            assert found.template == picked[0].rule, shown
            assert app.view_functions[picked[0].endpoint] in found.targets, shown
