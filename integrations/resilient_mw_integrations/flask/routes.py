"""Routes of Flask applications: which view a request will reach, known before Flask routes it.

The route source asks the application's own routing map, so the rule is the one that Flask will pick. Where a request
would be answered without a view (404, a redirect to the path with or without a slash) there is no route; where only
the method does not fit (405) it is the rule whose path matches. Rules that are added while the application runs are
seen.

Marks count on view functions, on `View` and `MethodView` classes, their base classes and their methods, on blueprints
(nested ones as well) and on the application; the inner one goes before the outer one.

Werkzeug's own converters decide whether a value fits, as they do in Flask. Converters of the application are not run,
since they may ask a database and belong to the work that is to be admitted: only their expression counts here.

Applications put together by `DispatcherMiddleware` are known by their mounts; one of another kind is one route,
`/legacy/*`. Other ways to put applications together are unknown: there, protect each Flask application on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flask import Flask
from flask.views import MethodView
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.routing import MapAdapter

from resilient_mw.core.routes import Route, RouteResolver
from resilient_mw_integrations._endpoints import METHODS, merged
from resilient_mw_integrations._werkzeug_rules import RuleRoutes, match

MOST_LAYERS = 32


class FlaskRouteSource:
    """Knows the routes of `Flask` applications, their `wsgi_app`, and Werkzeug's `DispatcherMiddleware`."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is none of these."""
        if isinstance(app, Flask) or isinstance(getattr(app, "__self__", None), Flask):
            return _opened(app, "", ())[0]
        return DispatchedRoutes(app) if isinstance(app, DispatcherMiddleware) else None


route_source = FlaskRouteSource()


class FlaskRoutes(RuleRoutes):
    """Finds the rule of each request to one Flask application.

    Args:
        app: the application.
        prefix: where it is mounted.
        owners: whose marks count for all of it, the innermost first; the application is the first.
    """

    def __init__(self, app: Flask, prefix: str, owners: tuple[object, ...]) -> None:
        super().__init__(app, prefix, owners, MethodView)
        self._app = app
        self._bind()

    def _bind(self) -> None:
        self._answers: dict[tuple[str, str], Route] = {}
        self._adapter: MapAdapter | None = None
        if not self._map.host_matching and not self._app.subdomain_matching:
            self._adapter = self._map.bind("localhost", subdomain=self._map.default_subdomain or "")

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:  # noqa: ARG002  the environ says it
        """Return the route of the rule that Flask would pick; None if no view would run."""
        return self.pick(scope.get("PATH_INFO", ""), scope)

    def pick(self, path_info: str, environ: Mapping[str, Any]) -> Route | None:
        """Return the route of a path below the application, written as in the WSGI environ."""
        method: str = environ["REQUEST_METHOD"]
        adapter = self._adapter
        usual = adapter is not None and "HTTP_UPGRADE" not in environ
        if usual:
            answer = self._answers.get((path_info, method))
            if answer is not None:
                return answer
        try:
            if adapter is None or not usual:
                adapter = self._adapter_for(environ)
            rule = match(adapter, _decoded(path_info), method.upper())
        except HTTPException:
            if self._has_grown():
                self._read_map()
                self._bind()
                return self.pick(path_info, environ)
            return None
        _, route, by_method = self._entry(rule)
        route = by_method.get(method.upper(), route)
        if usual and method in METHODS and rule.rule == path_info:
            self._answers[path_info, method] = route
        return route

    def _adapter_for(self, environ: Mapping[str, Any]) -> MapAdapter:
        """Return what Flask would make for a request whose host, or wish for a websocket, decides."""
        request = self._app.request_class(dict(environ), populate_request=False)
        adapter = self._app.create_url_adapter(request)
        if adapter is None:
            raise HTTPException("the application binds no routes to a request")
        adapter.map = self._map
        return adapter


class DispatchedRoutes:
    """Finds the route of each request to applications that `DispatcherMiddleware` has put together.

    Args:
        dispatcher: the middleware.
        prefix: where it is mounted itself.
        owners: whose marks count for all of it.
    """

    def __init__(
        self, dispatcher: DispatcherMiddleware, prefix: str = "", owners: tuple[object, ...] = ()
    ) -> None:
        self._dispatcher = dispatcher
        self._prefix = prefix
        self._owners = (dispatcher, *owners)
        self._targets: dict[str, tuple[object, FlaskRoutes | DispatchedRoutes | None, Route]] = {}

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:  # noqa: ARG002  the environ says it
        """Return the route that the application for this path would pick; None if no view would run."""
        return self.pick(scope.get("PATH_INFO", ""), scope)

    def pick(self, path_info: str, environ: Mapping[str, Any]) -> Route | None:
        """Return the route of a path below the middleware, written as in the WSGI environ."""
        # The longest mount that ends at a segment decides.
        mounts = self._dispatcher.mounts
        script = path_info
        while "/" in script and script not in mounts:
            script = script.rpartition("/")[0]
        if script not in mounts:
            script = ""
        _, routes, everything = self._target(script)
        return everything if routes is None else routes.pick(path_info[len(script) :], environ)

    def routes(self) -> Iterator[Route]:
        """Yield the routes of all applications."""
        for script in {"": None, **self._dispatcher.mounts}:
            _, routes, everything = self._target(script)
            if routes is None:
                yield everything
            else:
                yield from routes.routes()

    def _target(self, script: str) -> tuple[object, FlaskRoutes | DispatchedRoutes | None, Route]:
        app = self._dispatcher.mounts.get(script, self._dispatcher.app)
        found = self._targets.get(script)
        if found is None or found[0] is not app:
            prefix = f"{self._prefix}{script}"
            routes, owners = _opened(app, prefix, self._owners)
            found = self._targets[script] = (app, routes, Route(f"{prefix}/*", merged(owners), owners))
        return found


def _opened(
    app: object, prefix: str, owners: tuple[object, ...]
) -> tuple[FlaskRoutes | DispatchedRoutes | None, tuple[object, ...]]:
    """Return the routes of an application behind its middlewares, if they can be known, and all that was passed."""
    for _ in range(MOST_LAYERS):
        if isinstance(app, DispatcherMiddleware):
            return DispatchedRoutes(app, prefix, owners), owners
        bound = getattr(app, "__self__", None)
        if isinstance(bound, Flask):
            return FlaskRoutes(bound, prefix, (bound, *owners)), owners
        following = getattr(app, "__dict__", {})
        following = following.get("wsgi_app") or following.get("app")
        owners = (app, *owners)
        if following is None and isinstance(app, Flask):
            return FlaskRoutes(app, prefix, owners), owners
        if following is None:
            break
        app = following
    return None, owners


def _decoded(path_info: str) -> str:
    """Return a path as Werkzeug reads it: servers hand bytes over as latin-1."""
    if path_info.isascii():
        return path_info
    return path_info.encode("latin-1", "replace").decode("utf-8", "replace")
