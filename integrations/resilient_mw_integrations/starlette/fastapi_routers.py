"""What FastAPI adds to Starlette's routing: routers kept where they were included, frontends, its own root path.

The route source of `resilient_mw_integrations.starlette` serves FastAPI as well and asks here. FastAPI itself is not
imported, its objects are known by their attributes, so that Starlette alone is enough where nothing else is installed.

A mark may be put on an `APIRouter` before or after it is included, since FastAPI 0.137 and newer keep the router.
Earlier versions copy its routes and forget it: there a mark on a router has no effect, and the warning at start names
it; mark the endpoints, or write a `RouteRule` such as `/reports/*`.
"""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import BaseRoute, Router


def own_root_path(app: object) -> str:
    """Return the root path that an application sets itself, whatever the server says; empty if it sets none."""
    root_path = getattr(app, "root_path", "")
    return root_path if isinstance(root_path, str) else ""


def included_router(route: BaseRoute) -> tuple[Router, str] | None:
    """Return the router that was included here and the prefix of its paths; None if this is a route of its own."""
    router = getattr(route, "original_router", None)
    prefix = getattr(getattr(route, "include_context", None), "prefix", None)
    if isinstance(router, Router) and isinstance(prefix, str):
        return router, prefix
    return None


def frontends(router: Router, prefix: str) -> Iterator[str]:
    """Yield the paths below which one router, without those that it includes, serves files where no route matches.

    Args:
        router: the router.
        prefix: where it was included.
    """
    for group in getattr(router, "_low_priority_routes", ()):
        for route in getattr(group, "routes", ()):
            path = getattr(route, "path", None)
            if isinstance(path, str):
                yield path if not prefix else prefix if path == "/" else prefix + path
