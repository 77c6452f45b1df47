"""`ResilienceMiddleware` for the setting `MIDDLEWARE`: for those who cannot touch wsgi.py or asgi.py.

It drives the WSGI or the ASGI middleware around the rest of Django's chain, so that the decision, the queue, the deadline
and the answers are theirs. What it cannot do, since Django is at work before it and after it, docs/django.md says.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django.utils.deprecation import MiddlewareMixin

from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.asgi.exchange import HttpExchange
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import DeadlineExceeded, IdempotencyRefused, RequestCancelled
from resilient_mw.core.problem import refusal_answer
from resilient_mw.core.rejection import Reason
from resilient_mw.core.streams import BODY, HEAD
from resilient_mw.runtime.context import CURRENT, current
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.thread_context import guarded_by, has_ended
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.django.options import policy
from resilient_mw_integrations.django.passing import (
    Closing,
    Passage,
    hold_until_closed,
    joined,
    lines_of,
    own_answer,
)
from resilient_mw_integrations.django.routes import DjangoApplication
from resilient_mw_integrations.django.streaming import within_deadline

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

KEY = "resilient_mw.django.passage"
OURS = (b"", b"")
"""A header line that no answer of ours has: it tells the shell's messages from the project's."""

ENDINGS = {
    CancelReason.SHUTDOWN: Reason.DRAINING,
    CancelReason.BODY_TOO_LARGE: Reason.BODY_TOO_LARGE,
}


class ResilienceMiddleware(MiddlewareMixin):  # type: ignore[misc]  # Django ships no types
    """Protects what comes after it in `MIDDLEWARE`, which is best everything: put it first.

    A request that `protect()` has let in passes: both read the one policy of the settings. There it only gives views that
    `check()` has stopped their answer, which Django would log as an error.

    Raises:
        ImproperlyConfigured: a value of the setting `RESILIENT_MW` is not allowed.
    """

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        super().__init__(get_response)
        # Django 5.0 says it only by the mark that it puts on this object.
        self._in_async = bool(
            self.async_mode if hasattr(self, "async_mode") else asyncio.iscoroutinefunction(self)
        )
        self._policy = policy()
        self._guard = guard_of(self._policy)
        self._made: Any = None
        self._making = threading.Lock()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: a thread that was making the shell is not there."""
        self._making = threading.Lock()

    def __call__(self, request: Any) -> Any:
        """Answer one request."""
        if self._in_async:
            return self.__acall__(request)
        if self._is_guarded():
            return self.get_response(request)
        passage = Passage(request)
        environ = request.META if hasattr(request, "environ") else _as_environ(request.META)
        environ[KEY] = passage

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:  # noqa: ARG001
            passage.passed = isinstance(status, ProjectStatus)
            passage.status, passage.headers = int(status[:3]), headers

        try:
            body: Any = self._shell()(environ, start_response)
        finally:
            environ.pop(KEY, None)
        if not passage.passed:
            passage.body = joined(body)
            return passage.answer()
        response = passage.answer()
        if response.streaming:
            response.streaming_content = body  # has it closed with the response
        elif hasattr(body, "close"):
            Closing(response, body.close)
        return response

    async def __acall__(self, request: Any) -> Any:
        """Answer one request of an asynchronous chain."""
        scope = getattr(request, "scope", None)
        if scope is None or self._is_guarded():
            return await self.get_response(request)
        passage = Passage(request)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                passage.passed = OURS in message["headers"]
                passage.status = message["status"]
                lines = (line for line in message["headers"] if line != OURS)
                passage.headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lines]
            else:
                passage.body += message.get("body", b"")

        try:
            await self._shell()({**scope, KEY: passage}, _nothing_comes, send)
        except BaseException:
            passage.drop()
            raise
        return passage.answer()

    def process_exception(self, request: Any, exception: Exception) -> Any:  # noqa: ARG002  Django's signature
        """Answer for a view that `check()` has stopped, since the request is over, or whose idempotency key is refused."""
        if isinstance(exception, IdempotencyRefused):
            return own_answer(*refusal_answer(exception.reason, exception.retry_after))
        if not isinstance(exception, (DeadlineExceeded, RequestCancelled)):
            return None
        over = current().cancel_reason
        if over is None:
            return None  # a smaller budget inside the view: that is the project's own affair
        reason = ENDINGS.get(over, Reason.DEADLINE_EXCEEDED)
        return own_answer(*refusal_answer(reason, None, begun=True))

    def _shell(self) -> Any:
        """Return what guards, made for the first request that nobody else does: one that serves none waits for none."""
        if self._made is None:
            with self._making:
                if self._made is None:
                    chain = self.get_response
                    self._made = (
                        AsgiMiddleware(AsyncChain(chain), self._policy)
                        if self._in_async
                        else WsgiMiddleware(SyncChain(chain), self._policy)
                    )
        return self._made

    def _is_guarded(self) -> bool:
        around = CURRENT.get()
        return not has_ended(around) and guarded_by(around, self._guard)


class ProjectStatus(str):
    """A status line of the project's own answer: the shell hands on the object that it was given."""

    __slots__ = ()


class SyncChain(DjangoApplication):
    """The rest of Django's chain as a WSGI application."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Have the project answer."""
        passage: Passage = environ.pop(KEY)
        response = passage.response = self._get_response(passage.request)
        start_response(ProjectStatus(f"{response.status_code} {response.reason_phrase}"), lines_of(response))
        return iter(response) if response.streaming else [b""]


class AsyncChain(DjangoApplication):
    """The rest of Django's chain as an ASGI application: it says that all has been sent, and Django sends it."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG002  Django has read the request
        """Have the project answer."""
        passage: Passage = scope[KEY]
        exchange = CURRENT.get()
        try:
            response = passage.response = await self._get_response(passage.request)
        except asyncio.CancelledError:
            _note_who_left(exchange)
            raise
        if isinstance(exchange, HttpExchange):
            stream = exchange.entry.stream
            if stream is None or stream.slot != HEAD:
                passage.let_go = hold_until_closed(exchange, response)
            if response.streaming and (stream is None or stream.covers == BODY):
                within_deadline(response, exchange.remaining(), passage.let_go)
        lines = [(name.encode("ascii"), value.encode("latin-1")) for name, value in lines_of(response)]
        await send({"type": "http.response.start", "status": response.status_code, "headers": [OURS, *lines]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _note_who_left(exchange: object) -> None:
    """Count a cancellation that is not ours as what it is: Django cancels the view of a caller who has gone."""
    task = asyncio.current_task()
    if isinstance(exchange, HttpExchange) and exchange.reason is None:
        exchange.left = task is not None and task.cancelling() > exchange.base


def _as_environ(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head of a request that came over ASGI as WSGI writes it."""
    return {**meta, "PATH_INFO": meta["PATH_INFO"].encode("utf-8", "replace").decode("latin-1")}


async def _nothing_comes() -> Any:
    """Stand in for `receive`: Django has read the request, and waits for the disconnect itself."""
    await asyncio.get_running_loop().create_future()
