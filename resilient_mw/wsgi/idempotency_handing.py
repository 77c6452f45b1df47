"""Hands the key of a request over to an application that takes it in a transaction of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.idempotency.actions import Refuse
from resilient_mw.runtime.handed import HANDED, Handed

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


def hand_over(
    handed: Handed,
    app: WSGIApplication,
    environ: WSGIEnvironment,
    start_response: StartResponse,
    refuse: Callable[[Refuse, StartResponse], list[bytes]],
) -> Iterable[bytes]:
    """Run the application, and return the body of the response.

    Args:
        handed: what it finds, also while its body is iterated.
        app: the application.
        environ, start_response: of the request.
        refuse: answers where it has refused the key when it was called. What it raises later the server, or the middleware
            around, has to see: a head may have been sent.
    """
    token = HANDED.set(handed)
    try:
        result = app(environ, start_response)
    except IdempotencyRefused as error:

        def start_anew(status: str, headers: list[tuple[str, str]], _: Any = None) -> Any:
            return start_response(status, headers, sys.exc_info())

        return refuse(Refuse(error.reason, error.retry_after), start_anew)
    finally:
        HANDED.reset(token)
    return result if isinstance(result, (list, tuple)) else HandedBody(handed, result)


class HandedBody:
    """A body that finds what was handed over while it makes its chunks.

    Args:
        handed: what was handed over.
        body: the application's.
    """

    __slots__ = ("_body", "_handed", "_iterator")

    def __init__(self, handed: Handed, body: Iterable[bytes]) -> None:
        self._handed = handed
        self._body = body
        self._iterator: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        token = HANDED.set(self._handed)
        try:
            if self._iterator is None:
                self._iterator = iter(self._body)
            return next(self._iterator)
        finally:
            HANDED.reset(token)

    def close(self) -> None:
        """Close the application's body, if it can be closed."""
        close = getattr(self._body, "close", None)
        if close is not None:
            close()
