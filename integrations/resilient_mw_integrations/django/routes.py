"""Routes of Django projects: which view a request will reach, known before Django routes it.

The route source walks the URLconf (`ROOT_URLCONF`) as Django does: the first pattern that matches, depth first. An index
leaves only those to try that may match; Django's own patterns decide. Where a request would be answered without a view
(404, the redirect to the path with a slash) there is no route.

Marks count on views, whatever decorators are above or below, on view classes, their base classes, `dispatch` and their
methods, on actions of view sets and on functions below `@api_view`, on entries of the URLconf and on what they include;
the inner one goes before the outer one.

Converters of the project are not run, since they may ask a database and belong to the work that is to be admitted: only
their expression counts here. A language prefix of `i18n_patterns()` is one label, `/<language>/about/`, and patterns that
are translated are matched in the language of that prefix. A URLconf that a middleware puts on the request
(`request.urlconf`) is not known before it has run: such requests go by `ROOT_URLCONF`, and by rules of the policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.urls import get_resolver
from django.utils import translation

from resilient_mw.core.routes import PathIndex, Route, RouteResolver
from resilient_mw_integrations._endpoints import METHODS, KnownRoutes, merged
from resilient_mw_integrations.django.entries import Leaf, leaves
from resilient_mw_integrations.django.views import handlers, methods_of, owners_of

MOST_LAYERS = 32


class DjangoApplication:
    """What stands for Django where no handler of its own can be seen."""


class DjangoRouteSource:
    """Knows the routes of Django's WSGI and ASGI handlers, also inside WhiteNoise and a router of Channels."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if there is no Django in it."""
        for _ in range(MOST_LAYERS):
            if isinstance(app, (BaseHandler, DjangoApplication)):
                return DjangoRoutes()
            inside = getattr(app, "__dict__", {})
            by_protocol = inside.get("application_mapping")
            app = by_protocol.get("http") if isinstance(by_protocol, dict) else inside.get("application")
        return None


route_source = DjangoRouteSource()


class DjangoRoutes:
    """Finds the view of each request by the URLconf of the settings; read anew when that setting changes."""

    def __init__(self) -> None:
        self._known = KnownRoutes()
        self._bind()

    def _bind(self) -> None:
        self._root = get_resolver()
        self._leaves = tuple(leaves(self._root))
        self._localized = any(leaf.localized for leaf in self._leaves)
        self._index: PathIndex[Leaf] = PathIndex()
        for leaf in self._leaves:
            pattern, below = leaf.indexed()
            self._index.add(pattern, leaf, below=below)
        self._routes: dict[tuple[Leaf, str], tuple[Route, dict[str, Route]]] = {}
        self._answers: dict[tuple[str, str], Route] = {}

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:
        """Return the route of the view that Django would pick; None if none would run."""
        method: str | None = scope.get("REQUEST_METHOD")
        if method is None:
            if scope.get("type") != "http":
                return None
            method = scope["method"]
            # An ASGI server may include the root path; Django takes this one off, and compares nothing.
            script = settings.FORCE_SCRIPT_NAME or scope.get("root_path")
            path = scope["path"].removeprefix(script) if script else scope["path"]
        if get_resolver() is not self._root:
            self._bind()
        answer = self._answers.get((path, method))
        return answer or self._pick(path, method.upper())

    def routes(self) -> Iterator[Route]:
        """Yield the routes of all views, those of marked methods beside them."""
        if get_resolver() is not self._root:
            self._bind()
        for leaf in self._leaves:
            for template in self._templates(leaf):
                route, by_method = self._entry(leaf, template)
                yield route
                yield from by_method.values()

    def views(self) -> Iterator[tuple[Route, object]]:
        """Yield all routes with their views, for listings."""
        for leaf in self._leaves:
            for template in self._templates(leaf):
                route, by_method = self._entry(leaf, template)
                for each in (*by_method.values(), route):
                    yield each, leaf.view

    def _pick(self, path: str, method: str) -> Route | None:
        if not path.startswith("/"):
            return None
        if not self._localized:
            found = self._match(path)
            if found is None:
                return None
            route = self._route(found, found.template(), method)
            if f"{route.template}" == path and method in METHODS:
                self._answers[path, method] = route
            return route
        language = translation.get_language_from_path(path)
        with translation.override(language or settings.LANGUAGE_CODE):
            found = self._match(path)
            return None if found is None else self._route(found, found.template(), method)

    def _match(self, path: str) -> Leaf | None:
        for leaf in self._index.candidates(path):
            if leaf.matches(path[1:]):
                return leaf
        return None

    def _route(self, leaf: Leaf, template: str, method: str) -> Route:
        route, by_method = self._entry(leaf, template)
        return by_method.get(method, route)

    def _templates(self, leaf: Leaf) -> list[str]:
        if not leaf.localized:
            return [leaf.template()]
        found = []
        for language in dict(settings.LANGUAGES):
            with translation.override(language):
                found.append(leaf.template())
        return list(dict.fromkeys(found))

    def _entry(self, leaf: Leaf, template: str) -> tuple[Route, dict[str, Route]]:
        found = self._routes.get((leaf, template))
        if found is None:
            found = self._routes[leaf, template] = self._routes_of(leaf, template)
        return found

    def _routes_of(self, leaf: Leaf, template: str) -> tuple[Route, dict[str, Route]]:
        owners = (*owners_of(leaf.view), *leaf.entries)
        by_method: dict[str, Route] = {}
        for method, functions in handlers(leaf.view):
            if merged(functions) is not None:
                by_method[method] = self._known.get(template, (*functions, *owners), frozenset({method}))
        methods = methods_of(leaf.view)
        return self._known.get(template, owners, methods and methods.difference(by_method)), by_method
