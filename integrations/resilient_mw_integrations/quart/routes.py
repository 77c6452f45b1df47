"""Routes of Quart applications: which view a request or a websocket will reach, known before Quart routes it.

The route source asks the application's own routing map, so the rule is the one that Quart will pick. Marks count on view
functions, on `View` and `MethodView` classes and their methods, on blueprints (nested ones as well) and on the application; the
inner one goes before the outer one. Rules that are added while the application runs are seen. Converters of the application are
not run: only their expression counts here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quart import Quart
from quart.views import MethodView
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException
from werkzeug.routing import MapAdapter
from werkzeug.sansio.request import Request

from resilient_mw.core.routes import Route, RouteResolver
from resilient_mw_integrations._endpoints import METHODS
from resilient_mw_integrations._werkzeug_rules import RuleRoutes, match


class QuartRouteSource:
    """Knows the routes of `Quart` applications and their `asgi_app`."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is none of these."""
        app = getattr(app, "__self__", app)
        return QuartRoutes(app) if isinstance(app, Quart) else None


route_source = QuartRouteSource()


class QuartRoutes(RuleRoutes):
    """Finds the rule of each request to one application."""

    def __init__(self, app: Quart) -> None:
        super().__init__(app, "", (app,), MethodView)
        self._app = app
        self._bind()

    def _bind(self) -> None:
        self._answers: dict[tuple[str, str], Route] = {}
        self._adapter: MapAdapter | None = None
        # With a server name, the host of the request decides.
        if not self._map.host_matching and self._app.config["SERVER_NAME"] is None:
            subdomain = self._map.default_subdomain if not self._app.subdomain_matching else ""
            self._adapter = self._map.bind("localhost", subdomain=subdomain or "")

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        """Return the route of the rule that Quart would pick; None if no view would run."""
        path = path_below(scope)
        websocket = scope["type"] == "websocket"
        method: str = "GET" if websocket else scope["method"]
        adapter = self._adapter
        usual = adapter is not None and not websocket
        if usual:
            answer = self._answers.get((path, method))
            if answer is not None:
                return answer
        try:
            if adapter is None:
                adapter = self._adapter_for(path, method, scope)
            rule = match(adapter, path, method.upper(), websocket=websocket)
        except HTTPException:
            if self._has_grown():
                self._read_map()
                self._bind()
                return self.resolve(path, scope)
            return None
        _, route, by_method = self._entry(rule)
        route = by_method.get(method.upper(), route)
        if usual and method in METHODS and rule.rule == path:
            self._answers[path, method] = route
        return route

    def _adapter_for(self, path: str, method: str, scope: Mapping[str, Any]) -> MapAdapter:
        """Return what Quart would make for a request whose host decides."""
        headers = Headers(
            [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        )
        request: Any = Request(
            method,
            scope.get("scheme", "http"),
            scope.get("server"),
            scope.get("root_path", ""),
            path,
            b"",
            headers,
            None,
        )
        adapter = self._app.create_url_adapter(request)
        if adapter is None:
            raise HTTPException("the application binds no routes to a request")
        adapter.map = self._map
        return adapter


def path_below(scope: Mapping[str, Any]) -> str:
    """Return the path as Quart matches it."""
    path: str = scope["path"]
    root_path: str = scope.get("root_path", "")
    if not root_path:
        return path
    # Where the path is not below the root, Quart answers 404.
    return path.removeprefix(root_path) if path.startswith(root_path) else " "
