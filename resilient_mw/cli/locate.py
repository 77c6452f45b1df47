"""Imports an application and finds the middlewares of ours on it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.runtime.protection import Protection
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware

INNER = (
    "app",
    "_app",
    "wsgi_app",
    "asgi_app",
    "application",
    "asgi",
    "wsgi",
    "middleware_stack",
    "__wrapped__",
)
"""Attributes under which middlewares and frameworks keep what they wrap."""
GATHERED = ("router", "_base_app", "original_router")
"""Attributes of frameworks that lead to mounted applications."""
MOST_LAYERS = 10_000
ADDED = "app.add_middleware(ResilienceMiddleware, policy=...), or app.wsgi_app = ResilienceMiddleware(app.wsgi_app, ...)"
ADDED_BY = {
    "quart": "resilient_mw_integrations.quart.Resilience(app, limit=...)",  # before Flask: its classes derive from Flask's
    "flask": "resilient_mw_integrations.flask.Resilience(app, limit=...)",
    "litestar": "Litestar(plugins=[resilient_mw_integrations.litestar.ResiliencePlugin(limit=...)])",
    "django": "application = resilient_mw_integrations.django.protect(application)",
}
"""How the middleware is added to an application, by the package of its class."""
OURS = frozenset({"resilient_mw", "resilient_mw_integrations"})

Result = TypeVar("Result")


class Unusable(Exception):
    """There is nothing to explain; the text says why and what to change."""


class Protected(NamedTuple):
    """One middleware that was found.

    Attributes:
        protocol: `asgi` or `wsgi`.
        protection: what it enforces.
        apps: the objects that may be the application in it, the most likely first.
    """

    protocol: str
    protection: Protection
    apps: tuple[object, ...]


class Keyed(NamedTuple):
    """One middleware of idempotency keys that was found.

    Attributes:
        protocol: `asgi` or `wsgi`.
        policy: its policy.
        store: where its records are.
        apps: as of `Protected`.
        around: whether no `ResilienceMiddleware` was found before it, so that one may be inside it.
    """

    protocol: str
    policy: IdempotencyPolicy
    store: Any
    apps: tuple[object, ...]
    around: bool


def load(target: str, *, factory: bool) -> object:
    """Import an application.

    Args:
        target: `package.module:app`, attributes of attributes included.
        factory: whether it is a function to be called for the application.

    Raises:
        Unusable: there is no such thing, or the application's own code fails.
    """
    name, _, attributes = target.partition(":")
    if not name or not attributes:
        raise Unusable(f"{target!r} is not like package.module:app, such as main:app")
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise Unusable(f"{name!r} is a file: name the module, {dotted}:{attributes}")
    if attributes.endswith("()"):
        raise Unusable(f"{target!r}: write {target.removesuffix('()')} --factory to call a function")
    found: Any = _module(name)
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            close = difflib.get_close_matches(attribute, dir(found), n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise Unusable(f"{name!r} has no attribute {attributes!r}{hint}") from None
    if not factory:
        return found
    if not callable(found):
        raise Unusable(f"{target!r} is no function: leave out --factory")
    made: object = _run(f"calling {target!r}", found)
    return made


def find(app: object, target: str) -> list[Protected]:
    """Return the middlewares of ours on an application that admit requests, the outermost first.

    Args:
        app: the application, or the outermost thing around it.
        target: its name, for messages.

    Raises:
        Unusable: there is none, and none for idempotency keys.
    """
    found: list[Protected] = []
    for layer, host in _layers(app):
        if isinstance(layer, AsgiMiddleware):
            found.append(Protected("asgi", layer.protection, (host, layer.app)))
        elif isinstance(layer, WsgiMiddleware):
            found.append(Protected("wsgi", layer.protection, (layer.app,)))
    if not found and not idempotency_layers(app):
        raise Unusable(_nothing_found(app, target))
    return found


def idempotency_layers(app: object) -> list[Keyed]:
    """Return the middlewares of idempotency keys on an application, the outermost first.

    Args:
        app: the application, or the outermost thing around it.
    """
    found: list[Keyed] = []
    around = True
    for layer, host in _layers(app):
        own = getattr(layer, "__dict__", {})
        around = around and not isinstance(layer, AsgiMiddleware | WsgiMiddleware)
        if isinstance(own.get("policy"), IdempotencyPolicy):
            protocol = "asgi" if inspect.iscoroutinefunction(type(layer).__call__) else "wsgi"
            found.append(Keyed(protocol, own["policy"], own["store"], (host, own["app"]), around))
    return found


def _layers(app: object) -> Iterator[tuple[object, object]]:
    """Yield an application and all that is found in it, the outermost first, each with who put it into the scope."""
    seen: dict[int, object] = {}  # keeps the objects, so their ids stay their own
    pending: list[tuple[object, object]] = [(app, None)]
    while pending and len(seen) < MOST_LAYERS:
        layer, host = pending.pop(0)
        if layer is None or id(layer) in seen:
            continue
        seen[id(layer)] = layer
        yield layer, host
        stack = _stack(layer)
        if stack is not None:
            host = layer  # what Starlette writes into the scope for all that it wraps
        pending += [(inner, host) for inner in (stack, *_inside(layer))]
        pending += [(inner, layer) for inner in _around(layer)]


def _stack(layer: object) -> object:
    """Return the middlewares of a Starlette or FastAPI application, built as for the first request; None for others."""
    own = getattr(layer, "__dict__", {})
    if own.get("middleware_stack") is not None:
        return own["middleware_stack"]
    build = getattr(type(layer), "build_middleware_stack", None)
    if build is None:
        return None
    built: object = _run("building the middlewares of the application", lambda: build(layer))
    return built


def _around(layer: object) -> Iterator[object]:
    """Yield what plugins of an application put around it when it starts (Litestar)."""
    plugins = getattr(layer, "plugins", None)
    for plugin in plugins if isinstance(plugins, Iterable) else ():
        around = getattr(type(plugin), "middleware_around", None)
        if around is not None:
            yield around(plugin, layer)


def _inside(layer: object) -> Iterator[object]:
    own: Mapping[str, Any] = getattr(layer, "__dict__", {})
    if inspect.ismethod(layer):
        yield layer.__self__
    for name in (*INNER, *GATHERED):
        yield own.get(name)
    routes, mounts = own.get("routes"), own.get("mounts")
    if isinstance(routes, Sequence) and not isinstance(routes, str):
        yield from routes
    if isinstance(mounts, Mapping):
        yield from mounts.values()


def _nothing_found(app: object, target: str) -> str:
    if isinstance(app, FunctionType) and not inspect.iscoroutinefunction(app):
        return f"{target!r} is a function without a ResilienceMiddleware in sight: is it a factory? Then add --factory"
    if isinstance(app, ModuleType):
        return f"{target!r} is a module, not an application"
    homes = {kind.__module__.partition(".")[0] for kind in type(app).__mro__}
    how = next((how for name, how in ADDED_BY.items() if name in homes), ADDED)
    return (
        f"no ResilienceMiddleware of resilient_mw was found on {target!r}, a {type(app).__name__}. Add it "
        f"({how}), or name the outermost object, the one that the server is given"
    )


def _module(name: str) -> ModuleType:
    def load_it() -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that it imports itself
            raise Unusable(
                f"there is no module {error.name!r} in {Path.cwd()} or among the installed packages: start the command in "
                "the folder from which the server is started"
            ) from None

    sys.path.insert(0, str(Path.cwd()))
    return _run(f"importing {name!r}", load_it)


def _run(what: str, function: Callable[[], Result]) -> Result:
    """Run code of the application."""
    try:
        return function()
    except Unusable:
        raise
    except (Exception, SystemExit) as error:  # any error of his is one that he has to see
        frames = list(traceback.walk_tb(error.__traceback__))
        his = [each for each in frames if each[0].f_globals.get("__name__", "").partition(".")[0] not in OURS]
        where = "".join(f" ({frame.f_code.co_filename}, line {line})" for frame, line in (his or frames)[-1:])
        raise Unusable(f"{what} failed: {type(error).__name__}: {error}{where}") from error
