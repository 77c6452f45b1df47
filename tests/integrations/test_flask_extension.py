"""The Flask extension: where its policy comes from, what it protects, what it lists, and who draws the refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, g, render_template_string, request, stream_with_context
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from resilient_mw import ServerPolicy, current, deadline, exempt, priority
from resilient_mw.core.pages import RefusalPage
from resilient_mw.runtime.configuration import load_policy, sources_of
from resilient_mw_integrations.flask import Resilience
from tests.wsgi.helpers import outcomes, slots_taken
from tests.wsgi.servers import serve

pytestmark = pytest.mark.usefixtures("entry_points")

LATE = {"X-Request-Timeout-Ms": "0"}


def make_app(**config: Any) -> Flask:
    app = Flask("shop", static_folder=None)
    app.config.update(config)

    @app.get("/")
    def index() -> ResponseReturnValue:
        return {"left": current().remaining()}

    return app


def rows(policy: ServerPolicy) -> dict[tuple[str, str], int]:
    """Return the requests that arrived, by label and class."""
    return {(each.route, each.priority): each.arrived for each in policy.snapshot().routes if each.arrived}


# -- the policy --------------------------------------------------------------------------------------------------------


def test_three_lines_protect_an_application() -> None:
    app = make_app()
    resilience = Resilience(app)
    assert 5.0 < app.test_client().get("/", buffered=True).get_json()["left"] <= 10.0
    assert app.test_client().get("/", headers=LATE, buffered=True).status_code == 504
    assert rows(resilience.policy_of(app)) == {("/", "normal"): 2}


def test_the_configuration_of_the_application_goes_before_the_defaults() -> None:
    app = make_app(
        RESILIENCE_LIMIT="3",
        RESILIENCE_QUEUE=7,
        RESILIENCE_ROUTES=[{"path": "/", "priority": "sheddable", "deadline_default": 2}],
        RESILIENCE_EXEMPT_PATHS="/up",
    )
    resilience = Resilience()
    resilience.init_app(app)
    policy = resilience.policy_of(app)
    assert (policy.limit, policy.queue, policy.exempt_paths) == (3, 7, ("/up",))
    assert sources_of(policy)["limit"] == "app.config['RESILIENCE_LIMIT']"
    assert app.test_client().get("/", buffered=True).get_json()["left"] <= 2.0
    assert rows(policy) == {("/", "sheddable"): 1}


def test_file_and_environment_go_before_it_and_keywords_before_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "resilient.toml"
    file.write_text("queue = 5\nramp = 4", encoding="utf-8")
    monkeypatch.setenv("RESILIENT_MW_CONFIG", str(file))
    monkeypatch.setenv("RESILIENT_MW_RAMP", "2")
    app = make_app(RESILIENCE_LIMIT=3, RESILIENCE_QUEUE=7, RESILIENCE_RAMP=9, RESILIENCE_MAX_WAIT=3)
    policy = Resilience(app, max_wait=0.5).policy_of(app)
    assert (policy.limit, policy.queue, policy.ramp, policy.max_wait) == (3, 5, 2, 0.5)
    assert {name: sources_of(policy)[name] for name in ("limit", "queue", "ramp", "max_wait", "debug")} == {
        "limit": "app.config['RESILIENCE_LIMIT']",
        "queue": "resilient.toml",
        "ramp": "RESILIENT_MW_RAMP",
        "max_wait": "keyword of the middleware",
        "debug": "default",
    }


def test_the_configuration_changes_a_policy_that_was_given_without_touching_it() -> None:
    given = load_policy(limit=8, queue=1, environ={})
    app = make_app(RESILIENCE_LIMIT=3)
    policy = Resilience(app, given).policy_of(app)
    assert (policy.limit, policy.queue, given.limit) == (3, 1, 8)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"RESILIENCE_LIMTI": 3}, r"app\.config\['RESILIENCE_LIMTI'\]: 'limti' is no setting: did you mean 'limit'\?"),
        ({"RESILIENCE_LIMIT": 0}, r"app\.config\['RESILIENCE_LIMIT'\]: limit=0 is not allowed"),
        ({"RESILIENCE_LISTENERS": [print]}, r"listeners can be given in code only"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_start(config: dict[str, Any], message: str) -> None:
    app = make_app(**config)
    with pytest.raises(ValueError, match=message):
        Resilience(app)
    assert "resilience" not in app.extensions


def test_one_object_protects_several_applications_under_one_limit() -> None:
    resilience = Resilience(policy=ServerPolicy(), limit=2)
    first, second, other = make_app(), make_app(), make_app(RESILIENCE_LIMIT=5)
    for app in (first, second, other):
        resilience.init_app(app)
    assert resilience.policy_of(first) is resilience.policy_of(second)
    assert resilience.policy_of(first).limit == 2
    assert resilience.policy_of(other) is not resilience.policy_of(first)
    first.test_client().get("/", buffered=True)
    second.test_client().get("/", buffered=True)
    assert rows(resilience.policy_of(first)) == {("/", "normal"): 2}


def test_without_a_policy_each_application_has_a_limit_of_its_own() -> None:
    resilience = Resilience(limit=2)
    first, second = make_app(), make_app()
    resilience.init_app(first)
    resilience.init_app(second)
    assert resilience.policy_of(first) is not resilience.policy_of(second)
    with pytest.raises(RuntimeError, match="'shop' is protected already"):
        resilience.init_app(first)


# -- marks and context -------------------------------------------------------------------------------------------------


def test_marks_on_blueprints_count_below_prefixes_subdomains_and_in_each_other() -> None:
    app = Flask("shop", static_folder=None, subdomain_matching=True)
    app.config["SERVER_NAME"] = "shop.test"
    outer, inner, api = (
        Blueprint("outer", "x"),
        Blueprint("inner", "x"),
        Blueprint("api", "x", subdomain="api"),
    )
    priority("sheddable")(outer)
    priority("critical")(api)

    @inner.get("/a/<int:number>")
    @deadline(default=2)
    def below(number: int) -> str:
        return f"{current().remaining() <= 2}"

    @inner.get("/b")
    @exempt
    def free() -> str:
        return "b"

    @api.get("/")
    def there() -> str:
        return "api"

    outer.register_blueprint(inner, url_prefix="/in")
    app.register_blueprint(outer, url_prefix="/out")
    app.register_blueprint(api)
    resilience = Resilience(app)
    client = app.test_client()
    assert client.get("/out/in/a/7", base_url="http://shop.test", buffered=True).text == "True"
    assert client.get("/out/in/b", base_url="http://shop.test", buffered=True).text == "b"
    assert client.get("/", base_url="http://api.shop.test", buffered=True).text == "api"
    assert rows(resilience.policy_of(app)) == {
        ("/out/in/a/<int:number>", "sheddable"): 1,
        ("/out/in/b", "exempt"): 1,
        ("/", "critical"): 1,
    }


def test_the_order_of_decorators_does_not_matter() -> None:
    app = make_app()

    @app.get("/below")
    @priority("critical", cost=2)
    def below() -> str:
        return ""

    @priority("critical", cost=2)
    @app.get("/above")
    def above() -> str:
        return ""

    resilience = Resilience(app)
    for path in ("/below", "/above"):
        app.test_client().get(path, buffered=True)
    assert rows(resilience.policy_of(app)) == {("/below", "critical"): 1, ("/above", "critical"): 1}


def test_the_context_is_there_from_the_first_hook_to_the_last_without_g() -> None:
    app = make_app()
    seen: dict[str, float] = {}

    def see(where: str) -> None:
        seen[where] = current().remaining()

    @app.before_request
    def before() -> None:
        see("before_request")
        g.begun = True

    @app.after_request
    def after(response: Response) -> Response:
        see("after_request")
        return response

    @app.teardown_request
    def teardown(error: BaseException | None) -> None:
        see("teardown_request")

    @app.get("/plain")
    def plain() -> ResponseReturnValue:
        see("view")

        def parts() -> Iterator[str]:
            for number in range(3):
                see(f"plain {number}")
                yield str(number)

        return Response(parts())

    @app.get("/with")
    def with_context() -> ResponseReturnValue:
        def parts() -> Iterator[str]:
            see(f"with {request.path} {g.begun}")
            yield "x"

        return Response(stream_with_context(parts()))

    Resilience(app, deadline_default=7.0)
    client = app.test_client()
    assert client.get("/plain", buffered=True).text == "012"
    assert client.get("/with", buffered=True).text == "x"
    assert sorted(seen) == [
        "after_request", "before_request", "plain 0", "plain 1", "plain 2", "teardown_request", "view", "with /with True",
    ]  # fmt: skip
    assert all(2.0 < left <= 7.0 for left in seen.values())


def test_async_views_see_the_deadline() -> None:
    pytest.importorskip("asgiref")
    app = make_app()

    @app.get("/async")
    async def view() -> ResponseReturnValue:
        return {"left": current().remaining()}

    resilience = Resilience(app, deadline_default=7.0)
    assert 2.0 < app.test_client().get("/async", buffered=True).get_json()["left"] <= 7.0
    assert outcomes(resilience.policy_of(app)) == {"completed": 1}


def test_sub_applications_below_a_dispatcher_have_their_own_policies_or_one() -> None:
    outer, inner = make_app(), make_app()
    priority("critical")(inner)
    outer.wsgi_app = DispatcherMiddleware(outer.wsgi_app, {"/admin": inner})  # type: ignore[method-assign]
    shared = Resilience(policy=ServerPolicy(limit=1, queue=0))
    shared.init_app(inner)
    shared.init_app(outer)  # a request to /admin passes both and takes one slot
    client = Client(outer)
    assert client.get("/admin/", buffered=True).status_code == 200
    assert client.get("/", buffered=True).status_code == 200
    assert rows(shared.policy_of(outer)) == {("/admin/", "critical"): 1, ("/", "normal"): 1}
    assert slots_taken(shared.policy_of(outer)) == 0


# -- pages -------------------------------------------------------------------------------------------------------------


def with_pages() -> Flask:
    app = make_app()
    app.secret_key = "x"

    @app.errorhandler(504)
    def late(error: HTTPException) -> ResponseReturnValue:
        refused: Any = error
        text = render_template_string(
            "<h1>{{ why }}</h1>{{ path }}", why=error.description, path=request.path
        )
        return text, 504, {"X-Page": refused.refused.reason, "Set-Cookie": "a=1", "Retry-After": "999"}

    return app


def test_the_error_handlers_of_the_application_draw_its_refusals() -> None:
    app = with_pages()
    Resilience(app, error_pages=True, limit=1, queue=0)
    page = app.test_client().get("/", headers=LATE, buffered=True)
    assert (page.status_code, page.text) == (504, "<h1>The deadline had passed on arrival</h1>/")
    assert (page.headers["X-Page"], page.headers["X-Refusal-Reason"]) == ("expired_on_arrival",) * 2
    assert "Set-Cookie" not in page.headers
    assert "Retry-After" not in page.headers


@contextmanager
def full(app: Flask) -> Iterator[None]:
    """Hold the one slot of an application meanwhile."""
    entered, free = threading.Event(), threading.Event()

    @app.get("/hold")
    def hold() -> str:
        entered.set()
        free.wait(10)
        return ""

    holder = threading.Thread(target=lambda: app.test_client().get("/hold", buffered=True))
    holder.start()
    try:
        assert entered.wait(10)
        yield
    finally:
        free.set()
        holder.join(10)


def test_what_no_handler_draws_is_the_problem_document() -> None:
    app = with_pages()
    Resilience(app, error_pages=True, limit=1, queue=0)
    with full(app):
        refused = app.test_client().get("/", buffered=True)
    assert (refused.status_code, refused.get_json()["reason"]) == (503, "queue_full")


def test_a_handler_of_all_errors_draws_all_refusals_and_has_no_body_to_read() -> None:
    app = make_app()

    @app.errorhandler(HTTPException)
    def any_error(error: HTTPException) -> ResponseReturnValue:
        return f"{error.code} {request.method} {request.get_data()!r}"

    Resilience(app, error_pages=True, limit=1, queue=0)
    with full(app):
        drawn = app.test_client().post("/", data=b"body", buffered=True)
    assert (drawn.status_code, drawn.text) == (503, "503 POST b''")
    assert int(drawn.headers["Retry-After"]) >= 1


def test_work_that_came_to_nothing_gets_the_page_of_the_application_too() -> None:
    app = with_pages()
    closed: list[str] = []

    @app.get("/slow/<name>")
    def slow(name: str) -> str:
        while True:
            threading.Event().wait(0.01)
            current().check()

    @app.teardown_request
    def teardown(error: BaseException | None) -> None:
        closed.append(request.path)

    Resilience(app, error_pages=True, deadline_default=0.1)
    page = app.test_client().get("/slow/x", buffered=True)
    assert (page.status_code, page.text) == (504, "<h1>The deadline passed</h1>/slow/x")
    assert closed == ["/slow/x", "/slow/x"]  # of the view, and of the page


def test_a_handler_that_fails_costs_the_page_only() -> None:
    app = make_app()

    @app.errorhandler(504)
    def late(error: HTTPException) -> ResponseReturnValue:
        raise LookupError("mine")

    resilience = Resilience(app, error_pages=True)
    answer = app.test_client().get("/", headers=LATE, buffered=True)
    assert (answer.status_code, answer.get_json()["reason"]) == (504, "expired_on_arrival")
    assert resilience.policy_of(app).snapshot().guard_errors == 1


def test_two_ways_to_draw_the_same_pages_are_an_error() -> None:
    with pytest.raises(ValueError, match="refusal_page"):
        Resilience(error_pages=True, refusal_page=lambda refused: RefusalPage("x"))


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_lists_how_each_route_is_treated() -> None:
    app = make_app(RESILIENCE_ROUTES=[{"path": "/reports/*", "methods": ["GET"], "cost": 2}])

    @app.route("/reports/<name>", methods=["GET", "POST"])
    @deadline(default=3)
    def report(name: str) -> str:
        return name

    @app.get("/health")
    def health() -> str:
        return "ok"

    Resilience(app)
    said = app.test_cli_runner().invoke(args=["resilience"])
    assert said.exit_code == 0, said.output
    assert said.output.splitlines() == [
        "endpoint  methods  rule             class   cost  deadline  exempt  because of",
        "--------  -------  ---------------  ------  ----  --------  ------  ---------------------------------------",
        "index     GET      /                normal  1     10 s      no      default",
        "report    GET      /reports/<name>  normal  2     3 s       no      rule '/reports/*': cost; mark: deadline",
        "report    POST     /reports/<name>  normal  1     3 s       no      mark: deadline",
        "health    GET      /health          exempt  -     10 s      yes     exempt path: class",
        "          any      everything else  normal  1     10 s      no      default",
    ]


def test_the_command_says_why_the_application_would_not_start() -> None:
    app = make_app()
    app.add_url_rule("/gold", "gold", priority("gold")(lambda: ""))
    Resilience(app)
    said = app.test_cli_runner().invoke(args=["resilience"])
    assert said.exit_code == 1
    assert "names the priority class 'gold', which does not exist" in said.output


# -- a real server -----------------------------------------------------------------------------------------------------


def serving_app() -> Flask:
    app = with_pages()

    @app.get("/stream")
    def stream() -> ResponseReturnValue:
        return Response(f"{current().remaining() > 0}\n" for _ in range(3))

    @app.get("/health")
    def health() -> str:
        return "ok"

    return app


served = serving_app()
Resilience(served, error_pages=True, limit=2, queue=0)


def test_the_extension_on_waitress() -> None:
    with serve("waitress", "tests.integrations.test_flask_extension:served") as server:
        assert server.get("/stream").body == b"True\n" * 3
        page = server.get("/", LATE)
        assert (page.status, page.body) == (504, b"<h1>The deadline had passed on arrival</h1>/")
        assert server.get("/health").body == b"ok"
