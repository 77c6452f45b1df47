"""B82: marks count in either decorator order, or the start says that they do not. And what else the start says."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from resilient_mw import ResilienceWarning, RouteRule, deadline, exempt, priority
from resilient_mw.runtime.protection import Protection
from tests.integrations.serving import http_scope, wsgi_environ

pytestmark = pytest.mark.usefixtures("entry_points")

Decorator = Callable[[Any], Any]


class Framework(Protocol):
    """One framework: an application, the decorator that registers an endpoint, and the class of a request."""

    app: Any

    def register(self, path: str) -> Decorator: ...

    def scope(self, path: str) -> dict[str, Any]: ...


class OnFastAPI:
    def __init__(self) -> None:
        self.app: Any = FastAPI()

    def register(self, path: str) -> Decorator:
        decorator: Decorator = self.app.get(path)
        return decorator

    def scope(self, path: str) -> dict[str, Any]:
        return http_scope(path)


class OnStarlette(OnFastAPI):
    def __init__(self) -> None:
        self.app = Starlette()

    def register(self, path: str) -> Decorator:
        def add(function: Any) -> Any:
            self.app.router.routes.append(Route(path, function))
            return function

        return add


class OnFlask(OnFastAPI):
    def __init__(self) -> None:
        self.app = Flask(__name__)

    def register(self, path: str) -> Decorator:
        decorator: Decorator = self.app.route(path, endpoint=path)
        return decorator

    def scope(self, path: str) -> dict[str, Any]:
        return wsgi_environ(path)


@pytest.fixture(params=[OnFastAPI, OnStarlette, OnFlask])
def framework(request: pytest.FixtureRequest) -> Framework:
    made: Framework = request.param()
    return made


def started(app: Any, **overrides: Any) -> Protection:
    protection = Protection(None, overrides)
    protection.start([app])
    return protection


def treatment(protection: Protection, framework: Framework, path: str) -> tuple[str, str, int, float | None]:
    entry = protection.entry(path, "", "GET", framework.scope(path))
    return entry.template, entry.priority, entry.cost, entry.deadline.maximum


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        return function(*args, **values)

    return wrapper


def hiding(function: Any) -> Any:
    def wrapper() -> Any:
        return function()

    return wrapper


def plain() -> Any:
    def endpoint() -> PlainTextResponse:
        return PlainTextResponse("")

    return endpoint


def asynchronous() -> Any:
    async def endpoint() -> PlainTextResponse:
        return PlainTextResponse("")

    return endpoint


MARKS = [priority("critical", cost=3), deadline(maximum=2.5)]
EFFECTIVE: dict[str, Callable[[Decorator], list[Decorator]]] = {
    # the decorators from the innermost to the outermost
    "marks below": lambda register: [*MARKS, register],
    "marks above": lambda register: [register, *MARKS],
    "around it": lambda register: [MARKS[0], register, MARKS[1]],
    "below a wrapper": lambda register: [*MARKS, wrapping, register],
    "above a wrapper": lambda register: [wrapping, *MARKS, register],
    "above a hiding wrapper": lambda register: [hiding, *MARKS, register],
    "above all": lambda register: [wrapping, wrapping, register, *MARKS],
    "below and above a wrapper": lambda register: [MARKS[0], wrapping, MARKS[1], register],
}
WITHOUT_EFFECT: dict[str, Callable[[Decorator], list[Decorator]]] = {
    "below a hiding wrapper": lambda register: [*MARKS, hiding, register],
    "above a wrapper that comes after": lambda register: [register, wrapping, *MARKS],
}


def decorate(function: Any, decorators: list[Decorator]) -> Any:
    for decorator in decorators:
        function = decorator(function)
    return function


@pytest.mark.parametrize("make", [plain, asynchronous])
@pytest.mark.parametrize("order", EFFECTIVE.values(), ids=EFFECTIVE.keys())
def test_b82_effective_in_every_order(framework: Framework, order: Any, make: Callable[[], Any]) -> None:
    kept = decorate(make(), order(framework.register("/x")))
    assert treatment(started(framework.app), framework, "/x") == ("/x", "critical", 3, 2.5)
    assert kept is not None


@pytest.mark.parametrize("order", WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT.keys())
def test_b82_what_has_no_effect_is_named_at_start(framework: Framework, order: Any) -> None:
    kept = decorate(plain(), order(framework.register("/x")))
    with pytest.warns(ResilienceWarning, match=r"endpoint has no effect: no route") as told:
        protection = started(framework.app)
    assert len(told) == 1
    assert treatment(protection, framework, "/x")[:2] == ("/x", "normal")
    assert kept is not None


def test_a_marked_router_that_nobody_includes_is_named() -> None:
    app, router = FastAPI(), priority("sheddable")(APIRouter(prefix="/forgotten"))
    router.get("/x")(plain())
    with pytest.warns(ResilienceWarning, match=r"APIRouter has no effect"):
        started(app)


def test_a_marked_blueprint_that_nobody_registers_is_named() -> None:
    app, blueprint = Flask(__name__), priority("sheddable")(Blueprint("forgotten", __name__))
    blueprint.add_url_rule("/x", "x", plain())
    with pytest.warns(ResilienceWarning, match=r"forgotten has no effect"):
        started(app)


def test_everything_that_can_carry_a_mark_and_has_a_route_is_reached(framework: Framework) -> None:
    framework.register("/x")(exempt(plain()))
    priority("sheddable")(framework.app)
    if isinstance(framework.app, Starlette):
        priority("sheddable")(framework.app.router)
        sub = priority("critical")(Starlette(routes=[priority("critical")(Route("/s", plain()))]))
        framework.app.router.routes.append(priority("critical")(Mount("/sub", sub)))
    protection = started(framework.app)
    assert treatment(protection, framework, "/x")[1] == "exempt"


def test_b82_the_schema_of_fastapi_does_not_change() -> None:
    def schema(marked: bool) -> dict[str, Any]:
        app, router = FastAPI(), APIRouter()
        marks: list[Decorator] = [*MARKS] if marked else []

        def order(id: int, full: bool = False) -> dict[str, int]:  # noqa: A002
            """Show an order."""
            return {"id": id}

        decorate(order, [*marks, router.get("/orders/{id}")])
        decorate(order, [app.post("/orders/{id}"), *marks])
        for mark in marks:
            mark(router)
        app.include_router(router, prefix="/v1")
        return app.openapi()

    assert schema(True) == schema(False)
    assert schema(True)["paths"]["/v1/orders/{id}"]["get"]["description"] == "Show an order."


# -- what else the start says ------------------------------------------------------------------------------------------


def test_a_rule_that_matches_nothing_is_a_warning(framework: Framework) -> None:
    framework.register("/orders")(plain())
    rules = [RouteRule("/orders", priority="critical"), RouteRule("/ordres/*", cost=2)]
    with pytest.warns(ResilienceWarning, match=r"RouteRule\('/ordres/\*'\) matches no route") as told:
        protection = started(framework.app, routes=rules)
    assert len(told) == 1
    assert treatment(protection, framework, "/orders")[1] == "critical"


def test_a_class_that_does_not_exist_is_an_error_that_names_it(framework: Framework) -> None:
    framework.register("/orders")(priority("urgent")(plain()))
    with pytest.raises(ValueError, match=r"'/orders'.*'urgent'.*does not exist.*critical"):
        started(framework.app)


def test_a_cost_that_never_fits_is_an_error(framework: Framework) -> None:
    framework.register("/orders")(priority("normal", cost=11)(plain()))
    with pytest.raises(ValueError, match=r"'/orders' has cost=11"):
        started(framework.app, limit=10)


def test_a_rule_goes_before_the_mark_and_leaves_what_it_does_not_say(framework: Framework) -> None:
    framework.register("/x")(decorate(plain(), MARKS))
    protection = started(framework.app, routes=[RouteRule("/x", priority="sheddable")])
    assert treatment(protection, framework, "/x") == ("/x", "sheddable", 3, 2.5)


SCRIPTS = {
    "flask": "import flask; app = flask.Flask('x'); add = app.route('/x')",
    "starlette": (
        "from starlette.applications import Starlette; from starlette.routing import Route; app = Starlette()\n"
        "add = lambda function: app.router.routes.append(Route('/x', function)) or function"
    ),
}
START = """
from resilient_mw import priority
from resilient_mw.runtime.protection import Protection
priority("critical")(add(lambda *args: None))
protection = Protection(None, {})
protection.start([app])
print(sorted({name.split(".")[1] for name in sys.modules if name.startswith("resilient_mw_integrations.")}))
print(sorted({"flask", "starlette", "fastapi"} & set(sys.modules)))
"""


@pytest.mark.parametrize("name", ["flask", "starlette"])
def test_only_the_source_of_the_framework_in_use_is_loaded(name: str, entry_points: Path) -> None:
    path = [str(entry_points), *(each for each in sys.path if each)]
    script = f"import sys; sys.path[:0] = {path!r}\n{SCRIPTS[name]}\n{START}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded, frameworks = done.stdout.splitlines()
    assert (f"'{name}'" in loaded, "'flask'" in loaded) == (True, name == "flask")
    assert frameworks == f"['{name}']"
