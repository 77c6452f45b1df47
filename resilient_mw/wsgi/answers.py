"""The middleware's own answers as WSGI responses, prepared once so that saying no costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import iscoroutine
from typing import TYPE_CHECKING

from resilient_mw.core import answer as made
from resilient_mw.core.answer import ASKING_FIELDS, PreparedAnswer
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.cors import Cors
from resilient_mw.core.pages import PageFunction, RefusalPage, RefusedRequest, checked_page
from resilient_mw.core.problem import RefusalFigures, status_line
from resilient_mw.core.rejection import Reason
from resilient_mw.runtime.flush import Listeners

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def environ_key(name: str) -> str:
    """Return the environ key of a request header field, whose name is given in lower case."""
    return "HTTP_" + name.upper().replace("-", "_")


ASKING = tuple((environ_key(name), name) for name in ASKING_FIELDS)


class Answer:
    """The answer for one reason.

    WSGI gives an application no say over the connection (PEP 3333 forbids it hop-by-hop headers), so a reason that
    should close it cannot: the server does when it stops.

    Args:
        answer: what it is made of.
        pages: draws what the application says in its place; None: it says nothing.
    """

    __slots__ = ("_answer", "_pages", "_status")

    def __init__(self, answer: PreparedAnswer[tuple[str, str]], pages: Pages | None = None) -> None:
        self._pages = pages
        self._status = status_line(answer.reason)
        self._answer = answer

    def start(
        self,
        method: str,
        environ: WSGIEnvironment,
        retry_after: int | None,
        start_response: StartResponse,
        figures: RefusalFigures | None,
        *,
        fields: Iterable[tuple[str, str]] = (),
    ) -> list[bytes]:
        """Start the response and return its body, which is empty for HEAD.

        Args:
            method: the request's method, as it came: an application may have changed it in the environ.
            environ: the request.
            retry_after: whole seconds, for the reasons that carry them.
            start_response: the server's.
            figures: what debug mode says.
            fields: more header fields.
        """
        asked = [(name, environ[key]) for key, name in ASKING if key in environ]
        # The list is made anew: the server and outer middlewares may add to it.
        if asked or figures is not None:
            headers, body = self._answer.fitting(asked, figures)
        else:
            headers, body = self._answer.usual()
        if self._pages is not None:
            page = self._pages.draw(self._answer.refused(asked, retry_after, environ))
            if page is not None:
                headers, body = self._answer.around(page, asked), page.body
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        headers += fields
        start_response(self._status, headers)
        return [] if method == "HEAD" else [body]


class Pages:
    """Draws the application's own pages for refusals, in the thread that answers.

    Args:
        function: the application's.
        listeners: told of what goes wrong.
    """

    __slots__ = ("_function", "_listeners")

    def __init__(self, function: PageFunction, listeners: Listeners) -> None:
        self._function = function
        self._listeners = listeners

    def draw(self, refused: RefusedRequest) -> RefusalPage | None:
        """Return the page of a refusal; None if our own answer is to be sent."""
        try:
            page: object = self._function(refused)
            if iscoroutine(page):
                page.close()
            return checked_page(page)
        except Exception as error:  # noqa: BLE001  the user's function: whatever it raises, the caller gets an answer
            self._listeners.guest_failed("refusal_page", error)
            return None


def prepare_answers(cors: Cors, pages: Pages | None = None) -> dict[Reason, Answer]:
    """Return the answer for every reason."""
    return {reason: Answer(answer, pages) for reason, answer in made.prepare(cors, _line).items()}


def prepare_stopped(cors: Cors, pages: Pages | None = None) -> dict[CancelReason, Answer]:
    """Return the answer to a request whose work was stopped, by what stopped it."""
    return {why: Answer(answer, pages) for why, answer in made.prepare_stopped(cors, _line).items()}


def start_for_nobody(start_response: StartResponse) -> list[bytes]:
    """Start the answer to a caller who has gone, and return its body: only the access log sees it."""
    start_response("499 Client Closed Request", [("Content-Type", "text/plain"), ("Content-Length", "0")])
    return []


def _line(name: str, value: str) -> tuple[str, str]:
    return name, value
