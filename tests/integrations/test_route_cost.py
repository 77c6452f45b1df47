"""B83: what a look-up costs does not depend on how many routes there are, nor on their order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from tests.integrations.serving import asgi_routes, http_scope, wsgi_environ, wsgi_routes


async def answer(request: Any) -> PlainTextResponse:
    return PlainTextResponse("")


def starlette_look_up(count: int) -> Callable[[str], Callable[[], object]]:
    """Return a maker of look-ups among `count` routes, half of them with parameters, and as many below a mount."""
    flat = [Route(f"/fixed/{number}", answer) for number in range(count // 2)]
    flat += [Route(f"/with/{number}/{{id}}", answer) for number in range(count // 2)]
    app = Starlette(routes=[*flat, Mount("/sub", routes=list(flat))])
    resolve = asgi_routes(app).resolve

    def look_up(path: str) -> Callable[[], object]:
        scope = http_scope(path)
        return lambda: resolve(path, scope)

    return look_up


def flask_look_up(count: int) -> Callable[[str], Callable[[], object]]:
    app = Flask(__name__, static_folder=None)
    for number in range(count // 2):
        app.add_url_rule(f"/fixed/{number}", f"f{number}", lambda: "")
        app.add_url_rule(f"/with/{number}/<id>", f"w{number}", lambda id: "")  # noqa: A006
    resolve = wsgi_routes(app).resolve

    def look_up(path: str) -> Callable[[], object]:
        environ = wsgi_environ(path)
        return lambda: resolve(path, environ)

    return look_up


def microseconds(*calls: Callable[[], object]) -> list[float]:
    """Return what each call takes of the processor: the best of interleaved rounds, so that noise hits all alike."""
    best = [float("inf")] * len(calls)
    for _ in range(15):
        for place, call in enumerate(calls):
            begin = time.thread_time()
            for _ in range(200):
                call()
            best[place] = min(best[place], (time.thread_time() - begin) / 200 * 1e6)
    return best


@pytest.mark.parametrize(
    ("make", "many", "kinds"),
    [
        (
            starlette_look_up,
            10_000,
            ["/fixed/{}", "/with/{}/x", "/sub/fixed/{}", "/sub/with/{}/x", "/none/{}"],
        ),
        (flask_look_up, 1_000, ["/fixed/{}", "/with/{}/x", "/none/{}"]),
    ],
    ids=["starlette", "flask"],
)
def test_b83_the_cost_does_not_grow_with_the_routes(make: Any, many: int, kinds: list[str]) -> None:
    few, thousands = make(10), make(many)
    for kind in kinds:
        first, last = kind.format(0), kind.format(many // 2 - 1)
        if not kind.startswith("/none"):
            assert thousands(last)() is not None
        small, head, tail = microseconds(few(first), thousands(first), thousands(last))
        assert max(head, tail) < 3 * small + 2, kind
        assert max(small, head, tail) < 50, kind
