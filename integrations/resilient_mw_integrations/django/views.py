"""Views: the functions and classes behind a callback of the URLconf, whose marks count.

Django REST framework is not imported, its views are known by their attributes: `cls` and `actions` of a view set.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from resilient_mw.core.marks import layers
from resilient_mw_integrations._endpoints import METHODS, handler, parts


def owners_of(view: object) -> tuple[object, ...]:
    """Return the objects whose marks count for a view, the innermost first."""
    if view is None:
        return ()
    kind = class_of(view)
    if kind is None:
        return parts(view)
    return (*parts(view), getattr(kind, "dispatch", None), *parts(kind))


def class_of(view: object) -> type | None:
    """Return the class of a view that `as_view()` made, also below decorators; None if a function is all there is."""
    kind, _ = _made_of(view)
    return kind


def handlers(view: object) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the methods that a view class serves, and the functions that do."""
    kind, actions = _made_of(view)
    if kind is None:
        return
    allowed = {name.upper() for name in getattr(kind, "http_method_names", ())}
    for method in METHODS:
        if method not in allowed:
            continue
        if actions is None:
            function = handler(kind, method)
        else:
            name = actions.get(method.lower()) or (actions.get("get") if method == "HEAD" else None)
            function = getattr(kind, name or method.lower(), None)
        if function is not None:
            yield method, (function, *_hidden(function))


def methods_of(view: object) -> frozenset[str] | None:
    """Return the methods that a view serves; None: any, or unknown."""
    return None if class_of(view) is None else frozenset(method for method, _ in handlers(view))


def name_of(view: object) -> str:
    """Return the name of a view, for people."""
    if view is None:
        return "(includes itself)"
    named: Any = class_of(view) or list(layers(view))[-1]
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', type(named).__module__)}.{name}"


def _made_of(view: object) -> tuple[type | None, dict[str, str] | None]:
    for layer in layers(view):
        said = getattr(layer, "__dict__", {})
        kind = said.get("view_class") or said.get("cls")
        if isinstance(kind, type):
            actions = said.get("actions")
            return kind, actions if isinstance(actions, dict) else None
    return None, None


def _hidden(function: object) -> Iterator[object]:
    """Yield the function that `@api_view` keeps in the closure of the handler that it makes."""
    if isinstance(function, FunctionType) and function.__qualname__.startswith("api_view."):
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "func":
                yield cell.cell_contents
