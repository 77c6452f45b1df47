"""Levels: a router, what is included in it, and the table in which its routes are found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from starlette import routing
from starlette.applications import Starlette
from starlette.convertors import CONVERTOR_TYPES
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Match

from resilient_mw.core.routes import WEBSOCKET, PathIndex, Route
from resilient_mw_integrations._endpoints import METHODS, KnownRoutes, handler, merged, parts, served
from resilient_mw_integrations._path_templates import PathTemplate
from resilient_mw_integrations.starlette.fastapi_routers import frontends, included_router, own_root_path
from resilient_mw_integrations.starlette.steps import (
    EndpointStep,
    ForeignStep,
    HostStep,
    MountStep,
    Step,
    Walk,
    path_below,
)

FRAMEWORK = ("starlette.routing", "fastapi.routing")
COPIED = (routing.Route, routing.WebSocketRoute, routing.Mount, routing.Host)
"""What FastAPI serves of an included router."""
EVERYWHERE = ("", True)
"""Where the index keeps a route that may match any path."""
MOST_LAYERS = 32


class Level:
    """One router with all routers included in it: what the framework decides in one step.

    Args:
        router: the router.
        prefix: the path template in front of it, as its author wrote it.
        owners: whose marks count for all its routes, the innermost first.
    """

    def __init__(self, router: routing.Router, prefix: str, owners: tuple[object, ...]) -> None:
        self.router = router
        self.prefix = prefix
        self.owners = owners
        self.label = _template(prefix).label
        self.root_path = own_root_path(owners[1]) if len(owners) > 1 else ""
        self._table = Table(self, None)

    def pick(self, walk: Walk) -> Route | None:
        """Return the route that the router would pick."""
        table = self._table
        if table.is_stale():
            table = self._table = Table(self, table)
        method: str = walk.scope.get("method", "")
        answers = table.answers.get(walk.path) if walk.scope["type"] == "http" else None
        route = None if answers is None else answers.get(method)
        if route is not None:
            return route
        step = table.first(walk)
        if step is None:
            return table.fallback(walk)
        route = step.then(walk)
        if answers is not None and route is not None and method in METHODS:
            answers[method] = route
        return route

    def routes(self) -> Iterator[Route]:
        """Yield the routes of this level and of those below it."""
        yield from self._table.listed
        for level in self._table.levels.values():
            yield from level.routes()


class Table:
    """The routes of one level at one time.

    Args:
        level: the level.
        before: the table that this one takes the place of.
    """

    def __init__(self, level: Level, before: Table | None) -> None:
        self.level = level
        self.answers: dict[str, dict[str, Route]] = {}
        self.listed: list[Route] = []
        self.levels: dict[tuple[object, ...], Level] = {}
        self.known: KnownRoutes = KnownRoutes(None if before is None else before.known)
        self._before = before
        self._steps: list[Step] = []
        self._index: PathIndex[int] = PathIndex()
        self._frontends: list[tuple[str, Route]] = []
        self._routers: list[routing.Router] = []
        self._sizes: list[int] = []
        self._fixed: set[str] = set()
        self._default: Route | None = None
        self._collect(level.router, None, level.owners)
        self._collect_fallbacks()
        for path in self._fixed:
            if all(isinstance(self._steps[place], EndpointStep) for place in self._places(path)):
                self.answers[path] = {}
        self._before = None
        self.known.forget()

    def is_stale(self) -> bool:
        """Return whether routes were added or taken away since the table was made."""
        return [len(router.routes) for router in self._routers] != self._sizes

    def first(self, walk: Walk) -> Step | None:
        """Return the first step that matches fully, else the first that matches but for the method."""
        partial: Step | None = None
        for place in self._places(walk.path):
            step = self._steps[place]
            match = step.matches(walk)
            if match is Match.FULL:
                return step
            if match is Match.PARTIAL and partial is None:
                partial = step
        return partial

    def fallback(self, walk: Walk) -> Route | None:
        """Return the route of a path that no step matches: a frontend, or the router's own default application."""
        if not self._frontends and self._default is None:
            return None
        if walk.scope["type"] == "http":
            if self._redirects(walk):
                return None
            for path, route in self._frontends:
                if path in {"/", walk.path} or walk.path.startswith(f"{path}/"):
                    return route
        return self._default

    def _places(self, path: str) -> Sequence[int]:
        if path and path[0] != "/":
            return range(len(self._steps))  # No path, such as the "*" of OPTIONS; the expressions decide.
        places = self._index.candidates(path)
        if path.endswith("\n"):
            # The expressions end in "$", which also matches before a last line feed.
            places = sorted({*places, *self._index.candidates(path[:-1])})
        return places

    def _redirects(self, walk: Walk) -> bool:
        """Return whether the router would rather point the caller to the path with, or without, a final slash."""
        if not self.level.router.redirect_slashes or walk.path == "/":
            return False
        full = walk.full.rstrip("/") if walk.path.endswith("/") else f"{walk.full}/"
        return self.first(Walk(path_below(full, walk.root), full, walk.root, walk.scope)) is not None

    def _collect(self, router: routing.Router, inclusion: str | None, owners: tuple[object, ...]) -> None:
        """Add a router's routes; `inclusion` is the prefix under which FastAPI has included it, None if it has not."""
        self._routers.append(router)
        self._sizes.append(len(router.routes))
        for path in frontends(router, inclusion or ""):
            self._frontends.append((path, self._everything_below(path.rstrip("/"), owners)))
        for route in router.routes:
            included = included_router(route)
            if included is not None:
                self._collect(included[0], f"{inclusion or ''}{included[1]}", (included[0], *owners))
            elif inclusion is None or isinstance(route, COPIED):
                self._add(route, inclusion, (route, *owners))

    def _collect_fallbacks(self) -> None:
        # The longest path goes first, as in FastAPI; among equals the first one.
        self._frontends.sort(key=lambda each: -len(each[0].rstrip("/")))
        router = self.level.router
        if router.default != router.not_found:
            self._default = self._everything_below("", (*parts(router.default), *self.level.owners))

    def _add(self, route: routing.BaseRoute, inclusion: str | None, owners: tuple[object, ...]) -> None:
        path = f"{inclusion or ''}{getattr(route, 'path', '')}"
        below = isinstance(route, routing.Mount)
        template = _template(f"{path.rstrip('/')}/{{path:path}}" if below else path)
        # FastAPI compiles a new expression for an included route, whatever became of the route's own.
        regex: re.Pattern[str] | None = getattr(route, "path_regex", None) if inclusion is None else None
        index = template.index
        if regex is not None and (regex.pattern != template.regex or regex.flags != re.UNICODE):
            index = EVERYWHERE  # Somebody has given the route an expression of its own.
        step: Step
        if type(route).matches.__module__ not in FRAMEWORK and not inclusion:
            index = EVERYWHERE
            step = self._foreign(route, template, owners)
        elif isinstance(route, routing.Mount):
            apps = (route.app, getattr(route, "_base_app", None))
            step = MountStep(
                regex or re.compile(template.regex), self._behind(apps, path.rstrip("/"), owners)
            )
        elif isinstance(route, routing.Host):
            index = EVERYWHERE
            app = routing.Router([routing.Mount(inclusion, app=route.app)]) if inclusion else route.app
            step = HostStep(route, self._behind((app,), "", owners))
        elif isinstance(route, (routing.Route, routing.WebSocketRoute)):
            step = self._endpoint(route, regex, template, owners)
            if template.fixed:
                self._fixed.add(path)
        else:
            index = EVERYWHERE
            step = self._foreign(route, template, owners)
        self._index.add(index[0], len(self._steps), below=index[1])
        self._steps.append(step)

    def _endpoint(
        self,
        route: routing.Route | routing.WebSocketRoute,
        regex: re.Pattern[str] | None,
        template: PathTemplate,
        owners: tuple[object, ...],
    ) -> EndpointStep:
        endpoint = route.endpoint
        owners = (*parts(endpoint), *owners)
        if isinstance(route, routing.WebSocketRoute):
            step = EndpointStep(self._route(template, owners, methods=WEBSOCKET), regex, template.regex)
            step.kind = "websocket"
            return step
        methods = frozenset(route.methods) if route.methods else None
        by_method: dict[str, Route] = {}
        if isinstance(endpoint, type) and issubclass(endpoint, HTTPEndpoint):
            for method in METHODS:
                function = handler(endpoint, method)
                if merged((function,)) is not None:
                    by_method[method] = self._route(
                        template, (function, *owners), methods=frozenset({method})
                    )
            methods = (methods or served(endpoint)).difference(by_method)
        step = EndpointStep(self._route(template, owners, methods=methods), regex, template.regex)
        step.methods = route.methods or ()
        step.by_method = by_method
        return step

    def _foreign(
        self, route: routing.BaseRoute, template: PathTemplate, owners: tuple[object, ...]
    ) -> ForeignStep:
        if not template.written:
            return ForeignStep(route, self._everything_below("", owners))
        return ForeignStep(route, self._route(template, (*parts(getattr(route, "endpoint", None)), *owners)))

    def _behind(self, apps: Sequence[object], path: str, owners: tuple[object, ...]) -> Level | Route:
        """Return what is mounted under a path: a level of its own, or one route for all of a foreign application."""
        for app in apps:
            layers, router = _layers(app)
            if router is not None and all(router is not owner for owner in owners):
                return self._level(router, f"{self.level.prefix}{path}", (*layers, *owners))
        return self._everything_below(path, (*_layers(apps[0])[0], *owners))

    def _level(self, router: routing.Router, prefix: str, owners: tuple[object, ...]) -> Level:
        key = (id(router), prefix, *map(id, owners))
        level = None if self._before is None else self._before.levels.get(key)
        if level is None:
            level = Level(router, prefix, owners)
        self.levels[key] = level
        return level

    def _everything_below(self, path: str, owners: tuple[object, ...]) -> Route:
        template = _template(f"{path}/{{path:path}}")
        return self._route(template, owners, f"{template.label.removesuffix('{path}')}*")

    def _route(
        self,
        template: PathTemplate,
        owners: tuple[object, ...],
        label: str | None = None,
        methods: frozenset[str] | None = None,
    ) -> Route:
        label = f"{self.level.label}{label or template.label}"
        written = f"{self.level.prefix}{template.written}"
        route = self.known.get(label, owners, methods)
        self.listed.append(route if label == written else Route(written, route.mark, route.targets, methods))
        return route


def _template(written: str) -> PathTemplate:
    return PathTemplate(written, routing.PARAM_REGEX, _convertor)


def _convertor(name: str) -> tuple[str, bool]:
    convertor = CONVERTOR_TYPES[name]
    # An expression of the user's may match slashes.
    one_segment = type(convertor).__module__ == "starlette.convertors" and name != "path"
    return convertor.regex, one_segment


def _layers(app: object) -> tuple[tuple[object, ...], routing.Router | None]:
    """Return what lies between a mount and the router in it, the innermost first, and that router if there is one."""
    found: list[object] = []
    while app is not None and len(found) < MOST_LAYERS:
        found.insert(0, app)
        if isinstance(app, Starlette):
            return (app.router, *found), app.router
        if isinstance(app, routing.Router):
            return tuple(found), app
        app = getattr(app, "__dict__", {}).get("app")
    return tuple(found), None
