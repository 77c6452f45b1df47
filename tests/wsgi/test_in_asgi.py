"""A WSGI application inside an ASGI one, each with a middleware of ours, and contexts that threads inherit."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from asgiref.wsgi import WsgiToAsgi

from resilient_mw import ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.testing import ScriptedASGI, ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import hello, outcomes, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


async def test_one_policy_on_both_guards_a_request_once() -> None:
    policy = ServerPolicy(limit=1, queue=0)
    bridge: Any = WsgiToAsgi(ResilienceMiddleware(hello, policy))  # type: ignore[no-untyped-call]
    server = await ScriptedASGI(AsgiMiddleware(bridge, policy)).run()
    assert (server.status, server.body) == (200, b"hello")
    assert outcomes(policy) == {"completed": 1}
    assert slots_taken(policy) == 0


async def test_the_deadline_does_not_grow_from_layer_to_layer() -> None:
    seen: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        seen.append(current().remaining())
        return hello(environ, start_response)

    bridge: Any = WsgiToAsgi(ResilienceMiddleware(app, deadline_default=60.0))  # type: ignore[no-untyped-call]
    server = await ScriptedASGI(AsgiMiddleware(bridge, deadline_default=4.0)).run()
    assert server.status == 200
    assert 3.0 < seen[0] <= 4.0


def test_a_thread_that_inherited_a_finished_request_serves_requests_of_its_own() -> None:
    policy = ServerPolicy(deadline_default=5.0)
    inherited: list[Any] = []
    seen: list[float] = []

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        inherited.append(copy_context())
        seen.append(current().deadline_at)
        return hello(environ, start_response)

    middleware = ResilienceMiddleware(app, policy)
    ScriptedWSGI(middleware).run()
    server = ScriptedWSGI(middleware)
    thread = threading.Thread(target=inherited[0].run, args=(server.run,))
    thread.start()
    thread.join(5)
    assert server.status == "200 OK"
    assert seen[1] > seen[0]
    assert outcomes(policy) == {"completed": 2}
