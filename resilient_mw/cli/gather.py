"""Collects what is known of the middlewares that were found, and of the dependencies of this process."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial

from resilient_mw.cli.facts import AppFacts, DependencyFacts, Facts, KeysFacts, RouteFact
from resilient_mw.cli.locate import Keyed, Protected, Unusable
from resilient_mw.core import ports
from resilient_mw.core.marks import unreached_marks
from resilient_mw.core.routes import WEBSOCKET, Route
from resilient_mw.runtime import switch
from resilient_mw.runtime.configuration import sources_of
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.protection import NO_ROUTE, NO_SOURCE
from resilient_mw.runtime.sources import find_resolver


def gather(target: str, found: Sequence[Protected], keyed: Sequence[Keyed] = ()) -> Facts:
    """Return everything that is known.

    Args:
        target: what the user asked about.
        found: the middlewares.
        keyed: those of idempotency keys.

    Raises:
        Unusable: an application would refuse to start, because a mark does not fit its policy.
    """
    apps: list[AppFacts] = []
    targets: list[object] = []
    unknown = False
    for each in found:
        routes = _routes(each)
        unknown = unknown or routes is None
        targets += [owner for route in routes or () for owner in route.targets]
        policy = each.protection.policy
        apps.append(
            AppFacts(
                each.protocol,
                policy,
                None if routes is None else tuple(_facts(route) for route in routes if _is_http(route)),
                tuple(route.template for route in routes or () if route.methods == WEBSOCKET),
                policy.snapshot(),
                sources_of(policy),
            )
        )
    keys: list[KeysFacts] = []
    for one in keyed:
        routes = _found(one.apps)
        unknown = unknown or routes is None
        targets += [owner for route in routes or () for owner in route.targets]
        store = one.store
        keys.append(
            KeysFacts(
                one.protocol,
                one.policy,
                type(getattr(store, "blocking_store", store)).__name__,
                store.shared,
                one.around and bool(found),
                None if routes is None else tuple(_facts(route) for route in routes if _is_http(route)),
            )
        )
    lost = dict.fromkeys(unreached_marks(targets), NO_SOURCE if unknown else NO_ROUTE)
    return Facts(target, tuple(apps), _dependencies(), lost, switch.DISABLED, tuple(keys))


def runs_in_thread(route: Route) -> bool:
    """Return whether an ASGI framework runs an endpoint in a thread: a sync function, or a class with a sync method."""
    endpoint = route.targets[0] if route.targets else None
    if isinstance(endpoint, type):
        handlers = [getattr(endpoint, method.lower(), None) for method in route.methods or ()]
        return any(_is_sync(handler) for handler in handlers)
    return _is_sync(endpoint)


def _routes(each: Protected) -> list[Route] | None:
    policy = each.protection.policy
    routes = _found(each.apps)
    for route in routes or ():
        if route.mark is not None:
            try:
                policy.check_mark(route.mark, f"the mark of route {route.template!r}")
            except ValueError as error:
                raise Unusable(f"the application will not start: {error}") from error
    return routes


def _found(apps: tuple[object, ...]) -> list[Route] | None:
    try:
        resolver = find_resolver(apps)
        return None if resolver is None else list(resolver.routes())
    except Exception as error:  # route sources walk through objects of the application
        raise Unusable(f"the routes cannot be read: {type(error).__name__}: {error}") from error


def _is_http(route: Route) -> bool:
    return route.methods is None or (bool(route.methods) and route.methods != WEBSOCKET)


def _facts(route: Route) -> RouteFact:
    return RouteFact(route.template, route.methods, route.mark, runs_in_thread(route))


def _is_sync(function: object) -> bool:
    while isinstance(function, partial):
        function = function.func
    return inspect.isroutine(function) and not inspect.iscoroutinefunction(function)


def _dependencies() -> tuple[DependencyFacts, ...]:
    owners = [source for source in ports.dependency_sources() if isinstance(source, DependencyOwner)]
    owners.sort(key=lambda owner: (owner.dependency.name, [rule.pattern for rule in owner.dependency.rules]))
    return tuple(DependencyFacts(owner.dependency, owner.snapshot()) for owner in owners)
