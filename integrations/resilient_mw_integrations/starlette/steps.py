"""One step of a router: a route, a mount, a host, and whether a request takes it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from starlette.routing import BaseRoute, Host, Match

from resilient_mw.core.routes import Route


class Walk:
    """One request on its way through the levels of an application.

    Attributes:
        path: the path below the router that is looked at.
        full, root: the whole path and the root path, as that router will see them.
        scope: the ASGI scope.
    """

    __slots__ = ("full", "path", "root", "scope")

    def __init__(self, path: str, full: str, root: str, scope: Mapping[str, Any]) -> None:
        self.path = path
        self.full = full
        self.root = root
        self.scope = scope


class Step(Protocol):
    """What a router may find at one place in its order."""

    def matches(self, walk: Walk) -> Match:
        """Return what the framework's own route would."""
        ...

    def then(self, walk: Walk) -> Route | None:
        """Return the route of a request for which this step was chosen."""
        ...


class Below(Protocol):
    """The router behind a mount or a host.

    Attributes:
        root_path: the root path that its application sets itself; empty if it sets none.
    """

    root_path: str

    def pick(self, walk: Walk) -> Route | None:
        """Return the route that the router would pick."""
        ...


class EndpointStep:
    """A route that leads to an endpoint."""

    __slots__ = ("by_method", "kind", "methods", "regex", "route", "text")

    def __init__(self, route: Route, regex: re.Pattern[str] | None, text: str) -> None:
        self.route = route
        self.regex = regex
        self.text = text
        self.kind = "http"
        self.methods: Collection[str] = ()
        self.by_method: dict[str, Route] = {}

    def matches(self, walk: Walk) -> Match:
        """Match the kind, the path and the method."""
        regex = self.regex
        if regex is None:
            # Made when it is needed first: compiling thousands would delay the start.
            regex = self.regex = re.compile(self.text)
        if walk.scope["type"] != self.kind or regex.match(walk.path) is None:
            return Match.NONE
        return Match.PARTIAL if self.methods and walk.scope["method"] not in self.methods else Match.FULL

    def then(self, walk: Walk) -> Route | None:
        """Return the route, by method where the methods of a class are marked."""
        return self.by_method.get(walk.scope["method"], self.route) if self.by_method else self.route


class MountStep:
    """What is mounted under a path. Once it matches, nothing behind it is tried."""

    __slots__ = ("regex", "target")

    def __init__(self, regex: re.Pattern[str], target: Below | Route) -> None:
        self.regex = regex
        self.target = target

    def matches(self, walk: Walk) -> Match:
        """Match the path."""
        return Match.NONE if self.regex.match(walk.path) is None else Match.FULL

    def then(self, walk: Walk) -> Route | None:
        """Look below the mount, where the path begins behind it."""
        if isinstance(self.target, Route):
            return self.target
        found = self.regex.match(walk.path)
        if found is None:
            return None
        rest = f"/{found['path']}"
        root = self.target.root_path or f"{walk.root}{walk.path[: -len(rest)]}"
        return self.target.pick(Walk(path_below(walk.full, root), walk.full, root, walk.scope))


class HostStep:
    """What is served for some hosts."""

    __slots__ = ("host", "target")

    def __init__(self, host: Host, target: Below | Route) -> None:
        self.host = host
        self.target = target

    def matches(self, walk: Walk) -> Match:
        """Match the `Host` header."""
        return self.host.matches(dict(walk.scope))[0]

    def then(self, walk: Walk) -> Route | None:
        """Look at the same path in the host's application."""
        if isinstance(self.target, Route):
            return self.target
        root = self.target.root_path or walk.root
        return self.target.pick(Walk(path_below(walk.full, root), walk.full, root, walk.scope))


class ForeignStep:
    """A route of a class that decides for itself."""

    __slots__ = ("asked", "route")

    def __init__(self, asked: BaseRoute, route: Route) -> None:
        self.asked = asked
        self.route = route

    def matches(self, walk: Walk) -> Match:
        """Ask the route, with a scope of its own."""
        return self.asked.matches({**walk.scope, "path": walk.full, "root_path": walk.root})[0]

    def then(self, walk: Walk) -> Route | None:  # noqa: ARG002  the same for all requests that it takes
        """Return the route."""
        return self.route


def path_below(full: str, root: str) -> str:
    """Return the path that Starlette's routes see: `below_root`, but empty where the path is the root itself."""
    if not root or not full.startswith(root):
        return full
    rest = full[len(root) :]
    return rest if rest == "" or rest.startswith("/") else full
