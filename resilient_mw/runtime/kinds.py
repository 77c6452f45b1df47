"""Tells applications of the one protocol from those of the other, so that a middleware of the wrong package says so.

Both packages have a `ResilienceMiddleware`, and an import is easily taken from the other one. Each request would then fail with an
error about a number of arguments. Only what is certain is refused: nothing is asked of what hides its code.
"""

from __future__ import annotations

from types import CodeType
from typing import Final

_COROUTINE: Final = 0x80  # inspect.CO_COROUTINE; the module itself is slow to load
_TEXT: Final = "app={} is not allowed: it is {}. Import the middleware from {}"


def check_no_wsgi(app: object) -> None:
    """Refuse an application whose arguments are those of WSGI.

    Raises:
        ValueError: it is one.
    """
    code = _code_of(app)
    if code is not None and code.co_varnames[: code.co_argcount][-2:] == ("environ", "start_response"):
        raise ValueError(_TEXT.format(_name(app), "a WSGI application", "resilient_mw.wsgi"))


def check_no_asgi(app: object) -> None:
    """Refuse an application that is a coroutine function, as no WSGI application is.

    Raises:
        ValueError: it is one.
    """
    code = _code_of(app)
    if code is not None and code.co_flags & _COROUTINE:
        raise ValueError(_TEXT.format(_name(app), "an ASGI application", "resilient_mw.asgi"))


def _code_of(app: object) -> CodeType | None:
    calls = (vars(kind)["__call__"] for kind in type(app).__mro__ if "__call__" in vars(kind))
    code = getattr(app if hasattr(app, "__code__") else next(calls, None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _name(app: object) -> str:
    return str(getattr(app, "__qualname__", type(app).__qualname__))
