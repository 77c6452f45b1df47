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
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.routing import BaseConverter, Map, MapAdapter, Rule

from resilient_mw.core.marks import layers
from resilient_mw.core.routes import WEBSOCKET, Route, RouteResolver
from resilient_mw_integrations._endpoints import METHODS, KnownRoutes, handler, merged, parts

MOST_LAYERS = 32


class FlaskRouteSource:
    """Knows the routes of `Flask` applications, their `wsgi_app`, and Werkzeug's `DispatcherMiddleware`."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is none of these."""
        if isinstance(app, Flask) or isinstance(getattr(app, "__self__", None), Flask):
            return _opened(app, "", ())[0]
        return DispatchedRoutes(app) if isinstance(app, DispatcherMiddleware) else None


route_source = FlaskRouteSource()


class FlaskRoutes:
    """Finds the rule of each request to one Flask application.

    Args:
        app: the application.
        prefix: where it is mounted.
        owners: whose marks count for all of it, the innermost first; the application is the first.
    """

    def __init__(self, app: Flask, prefix: str, owners: tuple[object, ...]) -> None:
        self._app = app
        self._prefix = prefix
        self._owners = owners
        self._known = KnownRoutes()
        self._bind()

    def _bind(self) -> None:
        self._map = _without_work(self._app.url_map)
        self._copied = 0 if self._map is self._app.url_map else _count(self._app.url_map)
        self._found: dict[int, tuple[Rule, Route, dict[str, Route]]] = {}
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
            rule = _match(adapter, path_info, method.upper())
        except HTTPException:
            if self._copied and _count(self._app.url_map) != self._copied:
                self._bind()
                return self.pick(path_info, environ)
            return None
        _, route, by_method = self._entry(rule)
        route = by_method.get(method.upper(), route)
        if usual and method in METHODS and rule.rule == path_info:
            self._answers[path_info, method] = route
        return route

    def routes(self) -> Iterator[Route]:
        """Yield the routes of all rules, those of marked methods beside them."""
        for rule in self._map.iter_rules():
            _, route, by_method = self._entry(rule)
            yield route
            yield from by_method.values()

    def _adapter_for(self, environ: Mapping[str, Any]) -> MapAdapter:
        """Return what Flask would make for a request whose host, or wish for a websocket, decides."""
        request = self._app.request_class(dict(environ), populate_request=False)
        adapter = self._app.create_url_adapter(request)
        if adapter is None:
            raise HTTPException("the application binds no routes to a request")
        adapter.map = self._map
        return adapter

    def _entry(self, rule: Rule) -> tuple[Rule, Route, dict[str, Route]]:
        found = self._found.get(id(rule))
        if found is None:
            # The rule is kept, so its id stays its own.
            found = self._found[id(rule)] = (rule, *self._routes_of(rule))
        return found

    def _routes_of(self, rule: Rule) -> tuple[Route, dict[str, Route]]:
        template = f"{self._prefix}{rule.rule}"
        view = self._app.view_functions.get(rule.endpoint)
        owners = (*self._blueprints(rule.endpoint), *self._owners)
        kind: object = None
        for layer in layers(view):
            kind = kind or getattr(layer, "__dict__", {}).get("view_class")
        if isinstance(kind, type):
            owners = (getattr(kind, "dispatch_request", None), *parts(kind), *owners)
        owners = (*parts(view), *owners)
        by_method: dict[str, Route] = {}
        if isinstance(kind, type) and issubclass(kind, MethodView):
            for method in METHODS:
                function = handler(kind, method)
                if merged((function,)) is not None:
                    by_method[method] = self._known.get(template, (function, *owners), frozenset({method}))
        methods = WEBSOCKET if rule.websocket else None if rule.methods is None else frozenset(rule.methods)
        return self._known.get(template, owners, methods and methods.difference(by_method)), by_method

    def _blueprints(self, endpoint: object) -> Iterator[object]:
        """Yield the blueprints that an endpoint belongs to, the innermost first."""
        name = endpoint if isinstance(endpoint, str) else ""
        while "." in name:
            name = name.rpartition(".")[0]
            if name in self._app.blueprints:
                yield self._app.blueprints[name]


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


def _match(adapter: MapAdapter, path_info: str, method: str) -> Rule:
    """Return the rule for a path, also if only the method does not fit.

    Raises:
        HTTPException: there is none, or Werkzeug answers by a redirect.
    """
    path = (
        path_info
        if path_info.isascii()
        else path_info.encode("latin-1", "replace").decode("utf-8", "replace")
    )
    try:
        return adapter.match(path, method, return_rule=True)[0]
    except MethodNotAllowed as error:
        allowed = sorted(error.valid_methods or ())
        return adapter.match(path, "GET" if "GET" in allowed else allowed[0], return_rule=True)[0]


def _without_work(map_: Map) -> Map:
    """Return a routing map that runs no code of the application: the same one if it has no converters of its own."""
    foreign = {
        name: kind for name, kind in map_.converters.items() if kind.__module__ != BaseConverter.__module__
    }
    if not foreign:
        return map_
    copy = Map(
        default_subdomain=map_.default_subdomain,
        strict_slashes=map_.strict_slashes,
        merge_slashes=map_.merge_slashes,
        redirect_defaults=map_.redirect_defaults,
        host_matching=map_.host_matching,
        converters={
            **map_.converters,
            **{
                name: type(kind.__name__, (kind,), {"to_python": _as_it_is}) for name, kind in foreign.items()
            },
        },
    )
    for rule in map_.iter_rules():
        twin = rule.empty()
        twin.merge_slashes = rule.merge_slashes
        twin.websocket = rule.websocket
        copy.add(twin)
    return copy


def _as_it_is(converter: BaseConverter, value: str) -> str:  # noqa: ARG001  takes the place of a method
    return value


def _count(map_: Map) -> int:
    return sum(1 for _ in map_.iter_rules())
