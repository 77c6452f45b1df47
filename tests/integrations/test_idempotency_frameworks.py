"""Idempotency keys in front of real frameworks: what endpoints read, what replays look like, background work, marks."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import litestar
import pytest
from flask import Flask, request
from quart import Quart
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from resilient_mw import ServerPolicy
from resilient_mw.asgi.idempotency import IdempotencyMiddleware as AsgiMiddleware
from resilient_mw.idempotency import IdempotencyPolicy, idempotent_route
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware as WsgiMiddleware
from resilient_mw_integrations.flask import Resilience as FlaskResilience
from resilient_mw_integrations.litestar import ResiliencePlugin
from resilient_mw_integrations.quart import Resilience as QuartResilience

KEY = {"Idempotency-Key": '"k-1"'}
POLICY = IdempotencyPolicy(single_tenant=True)
LINES = [
    (b"set-cookie", b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
    (b"set-cookie", b"b=2"),
    (b"link", b"</a>"),
    (b"link", b"</b>; title=\xe9"),
    (b"vary", b"Accept"),
    (b"etag", b'"1"'),
    (b"location", b"/payments/1"),
    (b"content-encoding", b"gzip"),
    (b"x-empty", b""),
    (b"date", b"Wed, 21 Oct 2026 07:28:00 GMT"),
    (b"server", b"ours"),
    (b"retry-after", b"9"),
    (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
]
KEPT = [
    line
    for line in LINES
    if line[0] in {b"link", b"vary", b"etag", b"location", b"content-encoding", b"x-empty"}
]


async def read_body(asked: Request) -> bytes:
    return await asked.body()


async def read_stream(asked: Request) -> bytes:
    return b"".join([piece async for piece in asked.stream()])


async def read_nothing(_: Request) -> bytes:
    return b""


async def pieces(data: bytes) -> Any:
    for start in range(0, len(data), 8_191):
        yield data[start : start + 8_191]


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize("size", [0, 1_024, 1_000_000])
@pytest.mark.parametrize("read", [read_body, read_stream, read_nothing], ids=lambda each: each.__name__)
async def test_b02_the_endpoint_reads_what_was_sent(read: Any, size: int) -> None:
    """In many pieces and without a length, larger than what is read before it, too."""
    runs = []

    async def endpoint(asked: Request) -> Response:
        runs.append(1)
        return JSONResponse(len(await read(asked)))

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    app.add_middleware(AsgiMiddleware, policy=POLICY, store=MemoryIdempotencyStore())
    sent = b"x" * size
    async with client(app) as http:
        for replay in (False, True):
            answer = await http.post("/", content=pieces(sent), headers=KEY)
            assert answer.json() == (0 if read is read_nothing else size)
            assert ("idempotency-replayed" in answer.headers) == replay
    assert runs == [1]


async def test_b89_a_replay_is_the_same_response() -> None:
    """The first one passes byte by byte; its cookies, date and ids are its own; its background task runs once."""
    after: list[int] = []
    body = gzip.compress(b"paid")

    async def endpoint(_: Request) -> Response:
        response = StreamingResponse(pieces(body), 201, background=BackgroundTask(after.append, 1))
        response.raw_headers = list(LINES)
        return response

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    guarded = AsgiMiddleware(app, POLICY, store=MemoryIdempotencyStore())
    async with client(app) as http:
        plain = await http.post("/")
    async with client(guarded) as http:
        first, second = await http.post("/", headers=KEY), await http.post("/", headers=KEY)
    assert first.headers.raw == plain.headers.raw == LINES
    assert first.text == plain.text == second.text == "paid"
    length = (b"content-length", b"%d" % len(body))
    assert second.headers.raw == [*KEPT, length, (b"idempotency-replayed", b"true")]
    assert after == [1, 1]


def test_b89_flask() -> None:
    """Marks of views count, and what Flask closes is closed once."""
    app = Flask(__name__)
    runs, closed = [], []

    @app.put("/payments/<number>")
    @idempotent_route(required=True)
    def pay(number: str) -> Any:
        runs.append(number)
        response = app.response_class(iter([request.get_data(), b"!"]), 201)
        response.call_on_close(lambda: closed.append(1))
        response.set_cookie("a", "1")
        return response

    middleware = WsgiMiddleware(app.wsgi_app, POLICY, store=MemoryIdempotencyStore())
    app.wsgi_app = middleware  # type: ignore[method-assign]

    def put(number: int, *headers: tuple[str, str], body: bytes = b"x" * 100_000) -> ScriptedWSGI:
        return ScriptedWSGI(app, method="PUT", path=f"/payments/{number}", headers=headers, body=body).run()

    key = ("Idempotency-Key", "k-1")
    assert put(1).status.startswith("400")
    first, second = put(1, key), put(1, key)
    assert first.body == second.body == b"x" * 100_000 + b"!"
    assert first.header("Set-Cookie") is not None
    assert second.header("Set-Cookie") is None
    assert second.header("Idempotency-Replayed") == "true"
    assert (runs, closed) == (["1"], [1])
    assert put(2, key).status.startswith("422"), "one route, one key: another path is another request"
    assert [record.about.route for record in middleware.records.store.records()] == ["/payments/<number>"]


@pytest.mark.parametrize("size", [0, 1_024, 300_000])
def test_b02_flask_reads_a_form_with_a_file(size: int) -> None:
    app = Flask(__name__)
    runs = []

    @app.post("/")
    def upload() -> Any:
        runs.append(1)
        return {"size": len(request.files["f"].read()), "name": request.form["name"]}

    middleware = WsgiMiddleware(app.wsgi_app, POLICY, store=MemoryIdempotencyStore())
    form = (
        b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nme\r\n'
        b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n'
        + b"x" * size
        + b"\r\n--b--\r\n"
    )
    headers = [("Idempotency-Key", "k-1"), ("Content-Type", "multipart/form-data; boundary=b")]
    for _ in range(2):
        answer = ScriptedWSGI(middleware, method="POST", headers=headers, body=form).run()
        assert json.loads(answer.body) == {"size": size, "name": "me"}
    assert runs == [1]


def test_the_flask_extension_puts_keys_inside_admission() -> None:
    app = Flask(__name__)
    runs = []

    @app.post("/payments")
    def pay() -> Any:
        runs.append(1)
        return {}, 201

    FlaskResilience(app, ServerPolicy(), idempotency=POLICY, store=MemoryIdempotencyStore())
    http = app.test_client()
    answers = [http.post("/payments", headers=KEY) for _ in range(2)]
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]
    assert runs == [1]
    with pytest.raises(ValueError, match="keys have a policy and a store"):
        FlaskResilience(idempotency=POLICY)


async def test_the_quart_extension_puts_keys_inside_admission() -> None:
    app = Quart(__name__)
    runs = []

    @app.post("/payments")
    async def pay() -> Any:
        runs.append(1)
        return {}, 201

    QuartResilience(app, ServerPolicy(), idempotency=POLICY, store=MemoryIdempotencyStore())
    http = app.test_client()
    answers = [await http.post("/payments", headers=KEY) for _ in range(2)]
    assert [answer.headers.get("Idempotency-Replayed") for answer in answers] == [None, "true"]
    assert runs == [1]


async def test_the_litestar_plugin_puts_keys_inside_admission() -> None:
    runs = []

    @litestar.post("/payments", sync_to_thread=False)
    @idempotent_route(required=True)
    def pay() -> dict[str, int]:
        runs.append(1)
        return {}

    plugin = ResiliencePlugin(ServerPolicy(), idempotency=POLICY, store=MemoryIdempotencyStore())
    app = litestar.Litestar([pay], plugins=[plugin], logging_config=None)
    async with app.lifespan(), client(app) as http:
        assert (await http.post("/payments")).status_code == 400
        answers = [await http.post("/payments", headers=KEY) for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true"]
    assert runs == [1]
    with pytest.raises(ValueError, match="keys have a policy and a store"):
        ResiliencePlugin(store=MemoryIdempotencyStore())
