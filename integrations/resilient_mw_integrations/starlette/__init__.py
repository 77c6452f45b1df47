"""Routes of Starlette and FastAPI applications: which endpoint a request will reach, known before it is routed.

The route source walks the application's own routes in the framework's own order: the first that matches fully, else
the first whose path matches (it answers 405), else none. An index leaves only those to try that may match, so that
the cost of a look-up does not grow with the number of routes; the framework's own expressions decide.

Marks count on endpoints (functions, `HTTPEndpoint` classes and their methods), on routes, routers, mounts, hosts and
mounted applications; the inner one goes before the outer one. A mounted application of another kind is one route,
`/legacy/*`. What a router answers without an endpoint (404, a redirect to the path with or without a slash) is
unmatched. Routes that are added while the application runs are seen; one that replaces another one in place is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from resilient_mw.core.routes import Route, RouteResolver
from resilient_mw_integrations.starlette.levels import Level
from resilient_mw_integrations.starlette.refusing import idempotency_refused
from resilient_mw_integrations.starlette.steps import Walk, path_below

__all__ = ["AppRoutes", "StarletteRouteSource", "idempotency_refused", "route_source"]


class StarletteRouteSource:
    """Knows the routes of `Starlette`, `FastAPI`, `Router` and `APIRouter` objects."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is none of these."""
        return AppRoutes(app) if isinstance(app, (Starlette, Router)) else None

    def adds_cors(self, layer: object) -> bool:
        """Return whether `layer` is Starlette's `CORSMiddleware`, or an application to which it was added."""
        if isinstance(layer, CORSMiddleware):
            return True
        # The application makes its layers at the first request only; until then it has but the list of them.
        return isinstance(layer, Starlette) and any(
            isinstance(each.cls, type) and issubclass(each.cls, CORSMiddleware)
            for each in layer.user_middleware
        )


route_source = StarletteRouteSource()


class AppRoutes:
    """Finds the route of each request to one application."""

    def __init__(self, app: Starlette | Router) -> None:
        self._router = app.router if isinstance(app, Starlette) else app
        self._top = Level(self._router, "", (self._router,) if self._router is app else (self._router, app))

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        """Return the route that the application's router would pick; None if no endpoint would run."""
        full: str = scope["path"]
        root: str = scope.get("root_path", "")
        if scope.get("router") is self._router:
            # The router is at work already: who asks stands below one of its mounts, which has moved the root path.
            root = scope.get("app_root_path", root)
            path = path_below(full, root)
        if self._top.root_path:
            root = self._top.root_path
            path = path_below(full, root)
        elif path == "/" and full == root:
            path = ""  # What Starlette's own router sees there.
        return self._top.pick(Walk(path, full, root, scope))

    def routes(self) -> Iterator[Route]:
        """Yield all routes. A parameter that spans segments is written as its author did: `/files/{name:path}`."""
        return self._top.routes()
