"""One request on its way through `ResilienceMiddleware`: between the shells, which speak WSGI and ASGI, and Django."""

from __future__ import annotations

import concurrent.futures
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.http import HttpResponse

Lines = Sequence[tuple[str, str]]


class Passage:
    """What a shell and the project's own chain say about one request.

    Args:
        request: Django's request.

    Attributes:
        response: what the project answered.
        status: of the answer that the shell wants to be sent.
        headers: of that answer.
        body: of that answer, where it is not the project's.
        passed: whether that answer is the project's.
        let_go: gives back the slot that waits for the project's answer to be closed, if one does.
    """

    __slots__ = ("body", "headers", "let_go", "passed", "request", "response", "status")

    def __init__(self, request: Any) -> None:
        self.request: Any = request
        self.response: Any = None
        self.status = 0
        self.headers: Lines = ()
        self.body = b""
        self.passed = False
        self.let_go: Callable[[], object] | None = None

    def answer(self) -> Any:
        """Return the response for Django: the project's, with what the shell has added to it, or the shell's own."""
        if not self.passed:
            self.drop()
            return own_answer(self.status, self.headers, self.body)
        response, self.response = self.response, None  # the shell knows this object to the end of the request
        for name, value in self.headers:
            if response.get(name) != value:
                response[name] = value
        return response

    def drop(self) -> None:
        """Give back what the project's answer holds, if it has one that nobody gets."""
        response, self.response = self.response, None
        if self.let_go is not None:
            self.let_go()  # not left to the garbage collector: a traceback may keep the response alive for long
        for close in getattr(response, "_resource_closers", ()):
            close()  # files and generators; response.close() would end the request


def own_answer(status: int, headers: Lines, body: bytes) -> Any:
    """Return an answer of ours as Django's response."""
    joined: dict[str, str] = {}
    cookies = []
    for name, value in headers:
        if name.lower() == "set-cookie":
            cookies.append(value)  # a page of the user's may have some, which no line can hold together
        else:
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
    response = HttpResponse(body, status=status, headers=joined)
    for cookie in cookies:
        response.cookies.load(cookie)
    # A refusal is no error of the project. Without this, Django would mail each one to the administrators.
    response._has_been_logged = True  # noqa: SLF001  Django looks at it; elsewhere it is an attribute like any other
    return response


class Closing:
    """Stands in for `response.close`, to have something done once when the response has been sent.

    Args:
        response: Django's response.
        then: what is done.
        forgotten: what is done if the garbage collector takes a response that nobody has closed; it must take no lock.
    """

    __slots__ = ("_close", "_forgotten", "_response", "_then")

    def __init__(
        self, response: Any, then: Callable[[], object], forgotten: Callable[[], object] | None = None
    ) -> None:
        self._response = weakref.ref(response)  # no cycle, so that a forgotten response is gone at once
        self._close: Any = vars(response).get("close")
        self._then: Callable[[], object] | None = then
        self._forgotten = forgotten
        response.close = self

    def __call__(self) -> None:
        """Close the response."""
        response, then, self._then = self._response(), self._then, None
        try:
            if self._close is not None:
                self._close()
            elif response is not None:
                type(response).close(response)
        finally:
            if then is not None:
                then()

    def __del__(self) -> None:
        if self._then is not None and self._forgotten is not None:
            self._forgotten()


def hold_until_closed(context: Any, response: Any) -> Callable[[], object]:
    """Keep the slot of a request until its response is closed; return what gives it back before."""
    closed: concurrent.futures.Future[None] = concurrent.futures.Future()

    def let_go() -> None:
        if not closed.done():
            closed.set_result(None)

    context.hold(closed)
    Closing(response, let_go, let_go)
    return let_go


def lines_of(response: Any) -> list[tuple[str, str]]:
    """Return the header lines of a response, without its cookies, which Django adds later."""
    return list(response.items())


def joined(chunks: Iterable[bytes]) -> bytes:
    """Return the body of an answer of ours, and close what it came in."""
    try:
        return b"".join(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
