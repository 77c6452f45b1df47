"""Marks of endpoints and of what surrounds them, for the integrations that know the routes of a framework."""

from __future__ import annotations

from collections.abc import Iterable

from resilient_mw.core.marks import Mark, mark_of
from resilient_mw.core.routes import Route

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY")
"""Methods for which the route of a fixed path is remembered: an open set would let callers fill the memory."""


class KnownRoutes:
    """The routes of one application: the same object for the same endpoint for as long as nothing about it changes.

    Args:
        before: the routes of the application as it was before it changed.
    """

    __slots__ = ("_before", "routes")

    def __init__(self, before: KnownRoutes | None = None) -> None:
        self.routes: dict[tuple[object, ...], Route] = {}
        self._before = {} if before is None else before.routes

    def get(self, template: str, owners: tuple[object, ...], methods: frozenset[str] | None = None) -> Route:
        """Return the route of an endpoint.

        Args:
            template: the path template.
            owners: the objects whose marks count for it, the innermost first.
            methods: what it serves, see `Route`.
        """
        mark = merged(owners)
        # The route keeps its owners alive, so their ids stay theirs.
        key = (template, methods, *map(id, owners))
        route = self.routes.get(key) or self._before.get(key)
        if route is None or route.mark != mark:
            route = Route(template, mark, owners, methods)
        self.routes[key] = route
        return route

    def forget(self) -> None:
        """Let go of the routes that have gone."""
        self._before = {}


def merged(owners: Iterable[object]) -> Mark | None:
    """Return what several objects say together, the first one before the others; None if nobody says anything."""
    found: Mark | None = None
    for owner in owners:
        mark = mark_of(owner)
        if mark is not None:
            found = mark if found is None else found.over(mark)
    return found


def parts(endpoint: object) -> tuple[object, ...]:
    """Return an endpoint and the classes whose marks it inherits."""
    if isinstance(endpoint, type):
        return _bases(endpoint)
    return (endpoint, *_bases(type(endpoint)))


def handler(view: type, method: str) -> object:
    """Return the function of a view class that serves a method, `get` for HEAD as well; None if it has none."""
    found: object = getattr(view, method.lower(), None)
    if found is None and method == "HEAD":
        found = getattr(view, "get", None)
    return found


def served(view: type) -> frozenset[str]:
    """Return the methods for which a view class has a function."""
    return frozenset(method for method in METHODS if handler(view, method) is not None)


def _bases(kind: type) -> tuple[object, ...]:
    return tuple(base for base in kind.__mro__ if base.__module__ not in {"builtins", "functools"})
