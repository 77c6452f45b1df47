"""A FastAPI application behind uvicorn: marks, templates, dependencies, its own error pages, its OpenAPI document."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Query, WebSocket
from fastapi.openapi.models import OpenAPI
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.requests import Request

from resilient_mw import (
    Deadline,
    Dependency,
    RequestContext,
    ResilienceWarning,
    RouteRule,
    ServerPolicy,
    current,
    exempt,
    priority,
)
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.quotas import Quota
from resilient_mw.core.rejection import Reason
from resilient_mw_integrations.fastapi import (
    CurrentBudget,
    CurrentContext,
    CurrentDeadline,
    DocumentedAnswer,
    RequestRefused,
    current_context,
    current_deadline,
    document_refusals,
    handled_by,
)
from tests.contract.client import ask
from tests.contract.stacks import behind_uvicorn

POLICY = ServerPolicy(limit=20, name="fastapi-served")


def make_app(policy: ServerPolicy) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ResilienceMiddleware, policy=policy)
    router = APIRouter(prefix="/shop")

    @router.get("/items/{id}")
    @priority("critical")
    async def below(id: int) -> dict[str, Any]:  # noqa: A002
        return {"id": id}

    @priority("sheddable")
    @router.get("/reports/{name:path}")
    def above(name: str) -> dict[str, str]:
        return {"name": name}

    app.include_router(router)
    sub = FastAPI()

    @sub.get("/things/{thing}")
    @priority("critical")
    async def thing(thing: str, left: CurrentBudget) -> dict[str, float]:
        return {"left": left}

    app.mount("/sub", sub)

    @app.get("/dependencies")
    async def dependencies(
        deadline: Annotated[Deadline, Depends(current_deadline)],
        context: Annotated[RequestContext, Depends(current_context)],
        left: CurrentBudget,
        again: CurrentDeadline,
        at_last: CurrentContext,
    ) -> dict[str, Any]:
        return {
            "same": context is current() is at_last and deadline == again == current().deadline,
            "left": left,
        }

    @app.get("/classic")
    def classic(deadline: Deadline = Depends(current_deadline)) -> dict[str, bool]:  # noqa: B008
        return {"same": deadline == current().deadline}

    @app.websocket("/socket")
    async def socket(websocket: WebSocket, context: CurrentContext) -> None:
        await websocket.accept()
        await websocket.send_text(str(context is current()))
        await websocket.close()

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    return app


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with behind_uvicorn(make_app(POLICY)) as port:
        yield port


async def test_templates_are_labels_and_marks_count_above_and_below(port: int) -> None:
    for path in ("/shop/items/1", "/shop/items/2", "/shop/reports/a/b", "/sub/things/x", "/nowhere"):
        await ask(port, path)
    routes = {each.route: each for each in POLICY.snapshot().routes if each.arrived}
    assert routes["/shop/items/{id}"].arrived == 2
    assert routes["/shop/items/{id}"].priority == "critical"
    assert routes["/shop/reports/{name}"].priority == "sheddable"
    assert routes["/sub/things/{thing}"].priority == "critical"
    assert routes["unmatched"].priority == "normal"


async def test_dependencies_say_what_is_left(port: int) -> None:
    answer = await ask(port, "/dependencies", budget_ms=5000)
    assert answer.json["same"] is True
    assert 0 < answer.json["left"] <= 5
    assert (await ask(port, "/classic")).json == {"same": True}
    assert 0 < (await ask(port, "/sub/things/x", budget_ms=4000)).json["left"] <= 4


def test_dependencies_of_a_websocket(port: int) -> None:
    from websockets.sync.client import connect

    with connect(f"ws://127.0.0.1:{port}/socket", proxy=None) as socket:
        assert socket.recv(timeout=10) == "True"


async def test_the_deadline_cancels_and_says_so(port: int) -> None:
    answer = await ask(port, "/slow", budget_ms=100)
    assert (answer.status, answer.json["reason"]) == (504, "deadline_exceeded")


# -- error pages in the framework's own way ------------------------------------------------------------------------------


def paged(how: str) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ResilienceMiddleware, refusal_page=handled_by(app))

    @app.get("/slow")
    async def slow() -> None:
        await asyncio.sleep(30)

    async def by_class(request: Request, error: RequestRefused) -> HTMLResponse:
        refused = error.refused
        return HTMLResponse(
            f"<p>{refused.reason} {refused.begun} {request.url.path} {request.app is app}",
            418,
            {"X-Page": "1"},
        )

    def by_status(request: Request, error: RequestRefused) -> JSONResponse:
        return JSONResponse({"error": error.detail, "thread": threading.current_thread().name}, 504)

    if how == "class":
        app.add_exception_handler(RequestRefused, by_class)  # type: ignore[arg-type]
    elif how == "status":
        app.add_exception_handler(504, by_status)  # type: ignore[arg-type]
    return app


async def test_an_exception_handler_draws_the_page() -> None:
    with behind_uvicorn(paged("class")) as port:
        refused = await ask(port, "/slow", budget_ms=0)
        late = await ask(port, "/slow", budget_ms=50)
    assert (refused.status, refused.reason) == (504, "expired_on_arrival")
    assert refused.body == b"<p>expired_on_arrival False /slow True"
    assert refused.headers["content-type"] == "text/html; charset=utf-8"
    assert refused.headers["x-page"] == "1"
    assert refused.headers["cache-control"] == "no-store"
    assert (late.status, late.reason) == (504, None)
    assert late.body == b"<p>deadline_exceeded True /slow True"


async def test_a_handler_of_the_status_goes_first_and_runs_in_a_thread_if_it_is_not_async() -> None:
    with behind_uvicorn(paged("status")) as port:
        answer = await ask(port, "/slow", budget_ms=0)
    assert answer.json["error"] == "The deadline had passed on arrival"
    assert "worker" in answer.json["thread"].lower()
    assert answer.headers["content-type"] == "application/json"


async def test_without_a_handler_of_the_users_it_is_the_problem_document() -> None:
    with behind_uvicorn(paged("none")) as port:
        answer = await ask(port, "/slow", budget_ms=0)
    assert answer.headers["content-type"] == "application/problem+json"


# -- OpenAPI ---------------------------------------------------------------------------------------------------------


def documented(**fields: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(ResilienceMiddleware, **fields)

    @app.get(
        "/plain/{id}", responses={503: {"description": "mine", "headers": {"Retry-After": {"schema": {}}}}}
    )
    async def plain(id: int) -> int:  # noqa: A002
        return id

    @app.get("/live")
    @exempt
    async def live() -> int:
        return 1

    @app.get("/health")
    async def health() -> int:
        return 1

    @app.post("/upload")
    async def upload() -> int:
        return 1

    @app.post("/metered/{id}")
    @priority("sheddable")
    async def metered(id: int, q: Annotated[int, Query()] = 0) -> int:  # noqa: A002
        return id

    return app


FIELDS: dict[str, Any] = {
    "tenant": "X-Tenant",
    "quotas": [Quota("10/minute", path="/metered/*")],
    "routes": [RouteRule("/upload", max_body=1000)],
}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method} {path}", operation["responses"]


def statuses(document: dict[str, Any]) -> dict[str, set[str]]:
    return {name: {each for each in found if each[0] in "45"} for name, found in operations(document)}


def check_structure(document: dict[str, Any]) -> None:
    """Check what OpenAPI 3.1 demands of responses: FastAPI's own models, and references that lead somewhere."""
    OpenAPI.model_validate(document)
    for _, responses in operations(document):
        for status, response in responses.items():
            assert status == "default" or len(status) == 3
            assert isinstance(response["description"], str)
            for header in response.get("headers", {}).values():
                assert set(header) <= {"description", "schema"}
            for media_type, content in response.get("content", {}).items():
                assert "/" in media_type
                reference = content["schema"].get("$ref")
                if reference is not None:
                    place: Any = document
                    for step in reference.removeprefix("#/").split("/"):
                        place = place[step]
                    assert place["type"] == "object"


async def test_the_document_says_what_each_operation_may_be_answered() -> None:
    app = documented(**FIELDS)
    document_refusals(app)
    with behind_uvicorn(app) as port:
        document = (await ask(port, "/openapi.json")).json
    check_structure(document)
    assert statuses(document) == {
        "get /plain/{id}": {"422", "503", "504"},
        "get /live": set(),
        "get /health": set(),
        "post /upload": {"413", "503", "504"},
        "post /metered/{id}": {"422", "429", "503", "504"},
    }
    found = dict(operations(document))
    mine = found["get /plain/{id}"]["503"]
    assert mine["description"] == "mine"
    assert mine["headers"]["Retry-After"] == {"schema": {}}
    assert list(mine["content"]) == ["application/problem+json"]
    limited = found["post /metered/{id}"]["429"]
    assert set(limited["headers"]) == {"Retry-After", "X-Refusal-Reason", "RateLimit", "RateLimit-Policy"}
    assert limited["headers"]["X-Refusal-Reason"]["schema"]["enum"] == ["quota_exceeded"]
    late = found["post /upload"]["504"]
    assert "Retry-After" not in late["headers"]
    assert "deadline_exceeded" not in late["headers"]["X-Refusal-Reason"]["schema"]["enum"]
    assert "overloaded" in found["post /metered/{id}"]["503"]["headers"]["X-Refusal-Reason"]["schema"]["enum"]
    assert "overloaded" not in mine["headers"]["X-Refusal-Reason"]["schema"]["enum"]


async def test_what_is_answered_is_what_is_documented() -> None:
    app = documented(**FIELDS)
    document_refusals(app)
    schema = app.openapi()["components"]["schemas"]["RefusalProblem"]
    response = app.openapi()["paths"]["/plain/{id}"]["get"]["responses"]["504"]
    with behind_uvicorn(app) as port:
        answer = await ask(port, "/plain/1", budget_ms=0, headers={"X-Request-Id": "a"})
    assert answer.headers["content-type"] in response["content"]
    assert answer.reason in response["headers"]["X-Refusal-Reason"]["schema"]["enum"]
    assert set(answer.json) == set(schema["properties"])
    assert set(schema["required"]) <= set(answer.json)


def test_documenting_twice_changes_nothing_and_another_policy_takes_the_place() -> None:
    app = documented(**FIELDS)
    document_refusals(app)
    once = copy.deepcopy(app.openapi())
    document_refusals(app)
    document_refusals(app)
    assert app.openapi() == once
    app.openapi_schema = None
    document_refusals(
        app, ServerPolicy(exempt_paths=["/upload"], routes=[RouteRule("/plain/*", priority="exempt")])
    )
    assert statuses(app.openapi())["get /plain/{id}"] == {"422", "503"}  # its own
    assert statuses(app.openapi())["post /upload"] == {"503", "504"}  # exempt for GET and HEAD only


def test_an_openapi_function_of_the_users_is_kept() -> None:
    app = documented()
    before = app.openapi

    def mine() -> dict[str, Any]:
        return before() | {"x-mine": True}

    app.openapi = mine  # type: ignore[method-assign]
    document_refusals(app)
    document = app.openapi()
    assert document["x-mine"] is True
    assert "503" in document["paths"]["/plain/{id}"]["get"]["responses"]


def test_a_response_that_is_a_reference_is_the_users_own() -> None:
    app = documented()
    before = app.openapi

    def mine() -> dict[str, Any]:
        document = before()
        document["paths"]["/upload"]["post"]["responses"]["503"] = {"$ref": "#/components/responses/Busy"}
        return document

    app.openapi = mine  # type: ignore[method-assign]
    document_refusals(app)
    assert app.openapi()["paths"]["/upload"]["post"]["responses"]["503"] == {
        "$ref": "#/components/responses/Busy"
    }


@pytest.mark.parametrize(
    ("shadow", "left"), [("admission", {"504"}), ("deadlines", {"503"}), ("quotas", {"503", "504"})]
)
def test_a_defence_in_shadow_mode_answers_nothing(shadow: str, left: set[str]) -> None:
    app = documented(shadow=[shadow], tenant="X-Tenant", quotas=[Quota("1/minute", path="/upload")])
    document_refusals(app)
    assert statuses(app.openapi())["post /upload"] - {"429"} == left
    assert ("429" in statuses(app.openapi())["post /upload"]) is (shadow != "quotas")


def test_a_sub_application_is_documented_under_the_rules_of_the_whole() -> None:
    app = documented(routes=[RouteRule("/sub/free", priority="exempt")])
    sub = FastAPI()

    @sub.get("/free")
    async def free() -> int:
        return 1

    @sub.get("/other")
    async def other() -> int:
        return 1

    app.mount("/sub", sub)
    document_refusals(sub, within=app, prefix="/sub")
    assert statuses(sub.openapi()) == {"get /free": set(), "get /other": {"503", "504"}}


def test_a_table_can_be_longer() -> None:
    app = documented()
    conflict = DocumentedAnswer(
        409,
        "A request with the same key is under way",
        lambda operation: [Reason.QUEUE_FULL] if operation.method == "POST" else [],
    )
    document_refusals(app, more=[conflict])
    found = statuses(app.openapi())
    assert "409" in found["post /upload"]
    assert "409" not in found["get /plain/{id}"]


def test_an_operation_that_needs_a_dependency_says_so() -> None:
    needed = Dependency("needed-openapi", match="http://needed.example/*")
    app = documented(routes=[RouteRule("/upload", needs="needed-openapi")])
    document_refusals(app)
    header = dict(operations(app.openapi()))["post /upload"]["503"]["headers"]["X-Refusal-Reason"]
    assert "dependency_unavailable" in header["schema"]["enum"]
    assert needed.name


def test_without_a_policy_the_document_is_left_as_it_is() -> None:
    app = FastAPI()

    @app.get("/")
    async def root() -> int:
        return 1

    document_refusals(app)
    with pytest.warns(ResilienceWarning, match="its policy is not known"):
        assert set(app.openapi()["paths"]["/"]["get"]["responses"]) == {"200"}
