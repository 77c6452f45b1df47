"""Routes of one application with a Werkzeug routing map: what Flask and Quart have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from werkzeug.exceptions import MethodNotAllowed
from werkzeug.routing import BaseConverter, Map, MapAdapter, Rule

from resilient_mw.core.marks import layers
from resilient_mw.core.routes import WEBSOCKET, Route
from resilient_mw_integrations._endpoints import METHODS, KnownRoutes, handler, merged, parts


class MappedApp(Protocol):
    """An application as both frameworks have it."""

    url_map: Map
    view_functions: dict[str, Any]
    blueprints: dict[str, Any]


class RuleRoutes:
    """The routes of an application's rules.

    Args:
        app: the application.
        prefix: where it is mounted.
        owners: whose marks count for all of it, the innermost first; the application is the first.
        method_view: the framework's class whose methods serve the HTTP methods.
    """

    def __init__(self, app: MappedApp, prefix: str, owners: tuple[object, ...], method_view: type) -> None:
        self._rules_of = app
        self._prefix = prefix
        self._owners = owners
        self._method_view = method_view
        self._known = KnownRoutes()
        self._read_map()

    def _read_map(self) -> None:
        """Take the routing map as it is now."""
        self._map = _without_work(self._rules_of.url_map)
        self._copied = 0 if self._map is self._rules_of.url_map else _count(self._rules_of.url_map)
        self._found: dict[int, tuple[Rule, Route, dict[str, Route]]] = {}

    def _has_grown(self) -> bool:
        """Return whether rules have come that a copy of the map has not."""
        return bool(self._copied) and _count(self._rules_of.url_map) != self._copied

    def routes(self) -> Iterator[Route]:
        """Yield the routes of all rules, those of marked methods beside them."""
        for rule in self._map.iter_rules():
            _, route, by_method = self._entry(rule)
            yield route
            yield from by_method.values()

    def _entry(self, rule: Rule) -> tuple[Rule, Route, dict[str, Route]]:
        found = self._found.get(id(rule))
        if found is None:
            # The rule is kept, so its id stays its own.
            found = self._found[id(rule)] = (rule, *self._routes_of(rule))
        return found

    def _routes_of(self, rule: Rule) -> tuple[Route, dict[str, Route]]:
        template = f"{self._prefix}{rule.rule}"
        view = self._rules_of.view_functions.get(rule.endpoint)
        owners = (*self._blueprints(rule.endpoint), *self._owners)
        kind: object = None
        for layer in layers(view):
            kind = kind or getattr(layer, "__dict__", {}).get("view_class")
        if isinstance(kind, type):
            owners = (getattr(kind, "dispatch_request", None), *parts(kind), *owners)
        owners = (*parts(view), *owners)
        by_method: dict[str, Route] = {}
        if isinstance(kind, type) and issubclass(kind, self._method_view):
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
            if name in self._rules_of.blueprints:
                yield self._rules_of.blueprints[name]


def match(adapter: MapAdapter, path: str, method: str, *, websocket: bool | None = None) -> Rule:
    """Return the rule for a path, also if only the method does not fit.

    Raises:
        HTTPException: there is none, or Werkzeug answers by a redirect.
    """
    try:
        return adapter.match(path, method, return_rule=True, websocket=websocket)[0]
    except MethodNotAllowed as error:
        allowed = sorted(error.valid_methods or ())
        method = "GET" if "GET" in allowed else allowed[0]
        return adapter.match(path, method, return_rule=True, websocket=websocket)[0]


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
        twin = Rule(rule.rule, **Rule.get_empty_kwargs(rule))  # a class of its own may not take what it has
        twin.merge_slashes = rule.merge_slashes
        twin.websocket = rule.websocket
        copy.add(twin)
    return copy


def _as_it_is(converter: BaseConverter, value: str) -> str:  # noqa: ARG001  takes the place of a method
    return value


def _count(map_: Map) -> int:
    return sum(1 for _ in map_.iter_rules())
