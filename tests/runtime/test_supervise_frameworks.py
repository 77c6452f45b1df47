"""Frameworks that run a view in a task of their own: Django and Quart; and asgiref's bridges between the worlds."""

from __future__ import annotations

import asyncio
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.runtime.context import current
from tests.django_project import ready
from tests.runtime.small_shell import (
    App,
    Held,
    Outcome,
    Shell,
    expired,
    nothing_left,
    plain,
    run,
    serve,
    until,
)

asgiref_sync = pytest.importorskip("asgiref.sync")

LOG: list[str] = []
ENDED: list[float] = []
CLEAN_UP = 0.05


@pytest.fixture(autouse=True)
def _fresh() -> None:
    LOG.clear()
    ENDED.clear()


async def work(name: str) -> None:
    LOG.append(f"{name} begun")
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        LOG.append(f"{name} cancelled")
        for _ in range(3):
            await asyncio.sleep(CLEAN_UP / 3)
        LOG.append(f"{name} clean")
        raise


def in_thread() -> None:
    """Work on for long after the request has been cancelled."""
    request = current()
    end = time.monotonic() + 10
    while request.cancel_reason is None and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.3)
    ENDED.append(time.monotonic())


CLEANED = ["view begun", "view cancelled", "view clean"]


# -- asgiref -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread_sensitive", [True, False])
async def test_sync_to_async_holds_the_slot(thread_sensitive: bool) -> None:
    bridged = asgiref_sync.sync_to_async(in_thread, thread_sensitive=thread_sensitive)
    async with nothing_left():
        outcome = await run(plain(bridged))
    expired(outcome)
    assert outcome.freed_after(ENDED[0]) >= 0


async def test_async_to_sync_below_a_thread_is_cancelled() -> None:
    def call_back() -> None:
        asgiref_sync.async_to_sync(work)("view")

    async with nothing_left():
        outcome = await run(plain(asgiref_sync.sync_to_async(call_back)))
    expired(outcome)
    assert CLEANED == LOG
    assert outcome.released_at is not None
    assert outcome.released_at < 2.0


async def test_a_thread_below_async_code_below_a_thread_holds_the_slot() -> None:
    async def inner() -> None:
        await asgiref_sync.sync_to_async(in_thread)()

    def call_back() -> None:
        asgiref_sync.async_to_sync(inner)()

    async with nothing_left():
        outcome = await run(plain(asgiref_sync.sync_to_async(call_back)))
    expired(outcome)
    assert outcome.freed_after(ENDED[0]) >= 0


async def test_sync_to_async_that_queues_for_its_thread_never_runs() -> None:
    ran: list[str] = []

    async def handler() -> None:
        await asgiref_sync.sync_to_async(ran.append)("ran")

    held = Held()

    async def blocker() -> None:
        await asgiref_sync.sync_to_async(held.work)()

    async with nothing_left():
        blocked = asyncio.create_task(blocker())
        await asyncio.sleep(0.01)
        outcome = await run(plain(handler))
        expired(outcome)
        assert not blocked.done()
        held.release.set()
        await blocked
    assert ran == []


# -- Django ------------------------------------------------------------------------------------------------------------


def response(body: Any) -> Any:
    http: Any = sys.modules["django.http"]
    return http.HttpResponse(body) if isinstance(body, str) else http.StreamingHttpResponse(body)


async def async_view(request: Any) -> Any:
    await work("view")
    return response("never")


def sync_view(request: Any) -> Any:
    in_thread()
    return response("too late")


async def view_in_thread(request: Any) -> Any:
    await asgiref_sync.sync_to_async(in_thread)()
    await asyncio.sleep(5)
    return response("never")


async def chunks() -> AsyncIterator[bytes]:
    yield b"x"
    await work("view")
    yield b"y"


async def stream_view(request: Any) -> Any:
    return response(chunks())


async def quick_view(request: Any) -> Any:
    return response("ok")


async def swallowing_view(request: Any) -> Any:
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        LOG.append("swallowed")
    await asyncio.sleep(5)
    return response("never")


def sync_only(get_response: Any) -> Any:
    """Make a middleware that is not declared async-capable."""

    def middleware(request: Any) -> Any:
        return get_response(request)

    return middleware


@pytest.fixture(scope="session")
def django_app() -> Any:
    asgi = pytest.importorskip("django.core.asgi")
    override = pytest.importorskip("django.test").override_settings
    pytest.importorskip("django.http")
    path = pytest.importorskip("django.urls").path
    module = types.ModuleType("tests_django_site")
    module.sync_only = sync_only  # type: ignore[attr-defined]
    module.urlpatterns = [  # type: ignore[attr-defined]
        path("async", async_view), path("sync", sync_view), path("thread", view_in_thread),
        path("stream", stream_view), path("quick", quick_view), path("swallow", swallowing_view),
    ]  # fmt: skip
    sys.modules[module.__name__] = module
    ready()  # a process has one project; this one has its own URLconf in it
    apps = {}
    for name, middleware in (("plain", []), ("wrapped", [f"{module.__name__}.sync_only"])):
        with override(ROOT_URLCONF=module.__name__, MIDDLEWARE=middleware):
            apps[name] = asgi.get_asgi_application()
    return apps


@pytest.fixture(params=["plain", "wrapped"])
def django_both(request: pytest.FixtureRequest, django_app: Any) -> Iterator[App]:
    app: App = django_app[request.param]
    with pytest.importorskip("django.test").override_settings(ROOT_URLCONF="tests_django_site"):
        yield app


async def test_django_stops_its_async_view(django_both: App) -> None:
    """B25: also below a middleware that is not declared async-capable."""
    async with nothing_left():
        outcome = await run(django_both, "/async")
    expired(outcome)
    assert CLEANED == LOG
    assert outcome.late == 0


async def test_django_at_a_disconnect(django_both: App) -> None:
    shell = Shell(django_both, deadline=5)
    outcome = Outcome()
    async with nothing_left():
        request = asyncio.create_task(serve(shell, "/async", outcome=outcome))
        await until(lambda: LOG == ["view begun"])
        outcome.disconnect()
        await request
        await until(lambda: shell.taken == 0)
    assert CLEANED == LOG
    assert outcome.messages == []
    assert outcome.raised is None
    assert outcome.cancelling == 0
    assert (await run(django_both, "/quick", 5)).status == 200


@pytest.mark.parametrize("path", ["/sync", "/thread"])
async def test_django_holds_the_slot_for_a_thread(django_both: App, path: str) -> None:
    async with nothing_left():
        outcome = await run(django_both, path)
    expired(outcome)
    assert 0 <= outcome.freed_after(ENDED[0]) < 2.0


async def test_django_stream_is_cut(django_both: App) -> None:
    async with nothing_left():
        outcome = await run(django_both, "/stream")
    assert outcome.status == 200
    assert not outcome.finished
    assert CLEANED == LOG
    assert outcome.raised is None


async def test_django_view_that_swallows_is_nudged(django_both: App) -> None:
    async with nothing_left():
        outcome = await run(django_both, "/swallow")
    expired(outcome)
    assert LOG == ["swallowed"]
    assert outcome.late == 1
    assert outcome.released_at is not None
    assert outcome.released_at < 3.0


# -- Quart -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def quart_app() -> App:
    quart: Any = pytest.importorskip("quart")
    app = quart.Quart("quart_app", root_path=str(Path(__file__).parent))

    @app.get("/async")  # type: ignore[untyped-decorator,unused-ignore]
    async def quart_async() -> str:
        await work("view")
        return "never"

    @app.get("/sync")  # type: ignore[untyped-decorator,unused-ignore]
    def quart_sync() -> str:
        in_thread()
        return "too late"

    @app.get("/stream")  # type: ignore[untyped-decorator,unused-ignore]
    async def quart_stream() -> Any:
        return chunks()

    return app  # type: ignore[no-any-return]


async def test_quart_stops_its_view(quart_app: App) -> None:
    async with nothing_left():
        outcome = await run(quart_app, "/async")
    expired(outcome)
    assert CLEANED == LOG
    assert outcome.late == 0


async def test_quart_at_a_disconnect(quart_app: App) -> None:
    shell = Shell(quart_app, deadline=5)
    outcome = Outcome()
    async with nothing_left():
        request = asyncio.create_task(serve(shell, "/async", outcome=outcome))
        await asyncio.sleep(0.1)
        outcome.disconnect()
        await request
    assert CLEANED == LOG
    assert outcome.raised is None


async def test_quart_holds_the_slot_for_a_thread(quart_app: App) -> None:
    async with nothing_left():
        outcome = await run(quart_app, "/sync")
    expired(outcome)
    assert outcome.freed_after(ENDED[0]) >= 0


async def test_quart_stream_is_cut(quart_app: App) -> None:
    async with nothing_left():
        outcome = await run(quart_app, "/stream")
    assert outcome.status == 200
    assert not outcome.finished
    assert CLEANED == LOG


# -- Litestar ----------------------------------------------------------------------------------------------------------


async def test_litestar_handlers() -> None:
    litestar = pytest.importorskip("litestar")

    @litestar.get("/async")  # type: ignore[untyped-decorator,unused-ignore]
    async def async_handler() -> str:
        await work("view")
        return "never"

    @litestar.get("/sync", sync_to_thread=True)  # type: ignore[untyped-decorator,unused-ignore]
    def sync_handler() -> str:
        in_thread()
        return "too late"

    app: Any = litestar.Litestar([async_handler, sync_handler], openapi_config=None, logging_config=None)
    async with nothing_left():
        outcome = await run(app, "/async")
        expired(outcome)
        assert CLEANED == LOG
        outcome = await run(app, "/sync")
    expired(outcome)
    assert outcome.freed_after(ENDED[0]) >= 0
