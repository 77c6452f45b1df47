"""What users type, for type checkers only: this file is never run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_type

from fastapi import APIRouter, FastAPI
from flask import Blueprint, Flask

from resilient_mw import (
    Band,
    CancelReason,
    OverloadPolicy,
    PriorityClass,
    RequestContext,
    RouteRule,
    ServerPolicy,
    current,
    deadline,
    degradable,
    exempt,
    priority,
)
from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse

policy = ServerPolicy(limit=10, queue=20, routes=[RouteRule("/x", priority="sheddable")])

api = FastAPI()
api.add_middleware(AsgiMiddleware, policy=policy)
api.add_middleware(AsgiMiddleware, limit=20, max_wait=0.5)
api.add_middleware(AsgiMiddleware, limmit=20)  # type: ignore[call-arg]
AsgiMiddleware(api, tenant="X-Tenant")
AsgiMiddleware(api, tenant=lambda head: head.peer)
AsgiMiddleware(api, routes=[RouteRule("/x", cost=lambda head: len(head.values("a")))])
AsgiMiddleware(api, limit="auto", classes=[PriorityClass("only", weight=2)], default_class="only")

site = Flask("site")
site.wsgi_app = WsgiMiddleware(site.wsgi_app, policy)  # type: ignore[method-assign]
site.wsgi_app = WsgiMiddleware(site.wsgi_app, limmit=1)  # type: ignore[method-assign, call-arg]


def plain(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    return [b""]


WsgiMiddleware(plain)


@api.get("/a")
@priority("critical", cost=2)
@deadline(maximum=2.0)
def endpoint(item: int) -> str:
    return str(item)


AsgiMiddleware(api, overload=OverloadPolicy(memory=Band(0.7, 0.9), gc=None))
WsgiMiddleware(plain, overload=None)


def cheap(item: int) -> str:
    return "?"


async def slow(item: int) -> str:
    return str(item)


@api.get("/b")
@degradable(cheap)
def costly(item: int) -> str:
    return str(item)


assert_type(costly(1), str)
degradable(cheap)(slow)  # type: ignore[arg-type]
assert_type(current().overload, float)
assert_type(policy.readiness().ready, bool)


@exempt
def health() -> bool:
    return True


assert_type(endpoint(1), str)
assert_type(health(), bool)
assert_type(priority("sheddable")(APIRouter()), APIRouter)
assert_type(priority("sheddable")(Blueprint("b", "b")), Blueprint)
assert_type(current(), RequestContext)
assert_type(current().remaining(), float)
assert_type(current().cancel_reason, CancelReason | None)


async def scopes() -> None:
    with current().within(0.2) as inner:
        assert_type(inner, RequestContext)
    async with current().within(0.2) as inner:
        inner.check()
    async with current().shield(2.0) as inner:
        inner.check()
