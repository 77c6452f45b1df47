"""Route sources: who can tell which endpoint a request will reach.

Integrations register a source in the entry-point group `resilient_mw.routes`, named by the framework's top-level module.
Only the sources of frameworks that this process has already imported are loaded.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator

from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.routes import CorsAware, RouteResolver, RouteSource

GROUP = "resilient_mw.routes"


def find_resolver(apps: Iterable[object]) -> RouteResolver | None:
    """Return a resolver for the first of the given applications that some source knows, or that one of them wraps.

    Args:
        apps: the objects that may be the application, the most likely first.
    """
    sources = list(_sources())
    for app in apps:
        for layer in _unwrapped(app):
            for source in sources:
                resolver = source.resolver(layer)
                if resolver is not None:
                    return resolver
    return None


def has_cors_layer(app: object) -> bool:
    """Return whether some source finds a CORS layer in an application, or in what it wraps."""
    sources = [source for source in _sources(tell=False) if isinstance(source, CorsAware)]
    return any(source.adds_cors(layer) for layer in _unwrapped(app) for source in sources)


def _sources(*, tell: bool = True) -> Iterator[RouteSource]:
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        if point.name not in sys.modules:
            continue
        try:
            yield point.load()
        except ImportError as error:
            if not tell:
                continue
            warnings.warn(
                f"the route source {point.value!r} cannot be loaded ({error}): marks on endpoints of {point.name} have no "
                "effect. Install the versions that resilient-mw asks for",
                ResilienceWarning,
                stacklevel=2,
            )


def _unwrapped(app: object) -> Iterator[object]:
    """Yield an application and what it wraps: other middlewares (`.app`, `.wsgi_app`), bound methods (`Flask.wsgi_app`)."""
    seen: set[int] = set()
    pending = [app]
    while pending and len(seen) < MOST_LAYERS:
        layer = pending.pop(0)
        if layer is None or id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        own = getattr(layer, "__dict__", {})
        pending += [getattr(layer, "__self__", None), own.get("app"), own.get("_app"), own.get("wsgi_app")]


MOST_LAYERS = 64
