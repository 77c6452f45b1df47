"""The WSGI middleware: admission before any work, a deadline that is kept as far as a thread can keep it."""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import RouteEntry, Waiter
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.cors import PREFLIGHT
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.core.rejection import OF_KEYS, Reason
from resilient_mw.runtime import switch
from resilient_mw.runtime.arrivals import ask
from resilient_mw.runtime.callers import gone_of
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.kinds import check_no_asgi
from resilient_mw.runtime.protection import Protection
from resilient_mw.runtime.quotas import Asking
from resilient_mw.runtime.thread_context import ThreadContext, guarded_by, has_ended
from resilient_mw.runtime.thread_gate import CallerLeft, wait_in_thread
from resilient_mw.wsgi.answers import (
    Answer,
    Pages,
    environ_key,
    prepare_answers,
    prepare_stopped,
    start_for_nobody,
)
from resilient_mw.wsgi.body import open_body
from resilient_mw.wsgi.head import WsgiHead
from resilient_mw.wsgi.input import CountedInput
from resilient_mw.wsgi.run import Run
from resilient_mw.wsgi.shadow import shadow_run
from resilient_mw.wsgi.stream import StreamRun
from resilient_mw.wsgi.threads import WAITED, ask_server, asks_for_threads
from resilient_mw.wsgi.upload import receive
from resilient_mw.wsgi.whole import WholeRun

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from resilient_mw.admission.overrides import PolicyOverrides

PREFLIGHT_KEYS = frozenset(environ_key(name) for name in PREFLIGHT)
TELLING = frozenset({environ_key("access-control-request-method"), WAITED})
"""Keys of the environ that take a request off the shortest way, beside those of the header fields of deadlines."""
NO_BODY = ("", "0")
"""What servers have for the size of a request body that is not there."""


class ResilienceMiddleware:
    """Protects a WSGI application: admits, queues or refuses requests, and gives each a deadline.

    A request that waits for a slot waits in its worker thread, so a server needs more threads than `limit` and `queue`
    together, or nobody is left to refuse and to answer health checks.

    The slot is held until the server closes the response body. A thread cannot be stopped, so at the deadline the
    application learns of it by `current().check()` and `on_cancel()`. An answer that comes later is replaced by a 504;
    a body that is still being produced is cut off, and the server closes the connection.

    `start_response` is passed on when the first body bytes are there: see `resilient_mw.wsgi.run`.

    Args:
        app: the application.
        policy: the policy; None: one is loaded, see `runtime.configuration`. The same object given to two middlewares makes them share one
            limit and one queue; a request that passes both is guarded once.
        **overrides: fields of `ServerPolicy` that differ from `policy`.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed; the text names the field, the value and the range.
    """

    def __init__(
        self, app: WSGIApplication, policy: ServerPolicy | None = None, **overrides: Unpack[PolicyOverrides]
    ) -> None:
        check_no_asgi(app)
        self.app = app
        self._protection = Protection(policy, overrides)
        self._guard = self._protection.guard
        self._shadow = self._protection.shadow
        self._protection.prepared_by(self._prepare)
        asks_for_threads(self._protection)
        self._abandoned: deque[Run] = deque()
        self._starting = threading.Lock()
        self._ready = False
        self._wrong: str | None = None
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: what was abandoned was the parent's."""
        self._abandoned = deque()  # the parent's runs still know the older one, which nobody looks at
        self._starting = threading.Lock()

    def _prepare(self) -> None:
        """Prepare what requests read of the policy."""
        policy = self._protection.policy
        cors, page = policy.cors, policy.refusal_page
        pages = None if page is None else Pages(page, self._guard.listeners)
        self._fields = tuple((environ_key(name), name) for name in self._protection.fields)
        # Whether a response can be passed on as it is: no defence only counts what it would do, and no head tells the rest.
        self._short = self._shadow is None and self._protection.tells is None
        self._usual = WholeRun if self._short else Run
        self._telling = frozenset(key for key, _ in self._fields) | TELLING
        self._answers = prepare_answers(cors, pages)
        self._stopped: dict[CancelReason | Reason, Answer] = {why: self._answers[why] for why in OF_KEYS}
        self._stopped.update(prepare_stopped(cors, pages).items())

    @property
    def protection(self) -> Protection:
        """What protects the application: its policy, its guard and its routes."""
        return self._protection

    def __call__(  # noqa: C901, PLR0912  on the way of every request: calls would cost
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Serve one request.

        Raises:
            ValueError: the application's marks do not fit the policy; every request says so until they do.
            BaseException: what the application raises.
        """
        if switch.DISABLED:
            return self.app(environ, start_response)
        if not self._ready:
            self._start(environ, start_response)
        if self._abandoned:
            self._take_back()
        guard = self._guard
        outer = CURRENT.get()
        if outer is not NO_REQUEST:
            if has_ended(outer):
                outer = NO_REQUEST  # a thread that was started in it has inherited it
            elif guarded_by(outer, guard):
                return self.app(environ, start_response)  # it would wait for itself
        method = environ.get("REQUEST_METHOD", "")
        decision: Decision | None = None
        whole = None
        try:
            # Most requests say nothing that a decision depends on but method and path.
            path = environ.get("PATH_INFO") or "/"
            if (
                outer is NO_REQUEST
                and environ.keys().isdisjoint(self._telling)
                and environ.get("CONTENT_LENGTH", "") in NO_BODY
                and path.isascii()
            ):
                entry = self._protection.table.entry(path, method, environ)
                if entry.plain and self._short:
                    now = guard.clock.now()
                    if now >= guard.overload.look_at:
                        guard.look()
                    deadline_at = now + entry.budget
                    decision = guard.arrive(entry, now, deadline_at)
                    if decision.waiter is not None:
                        decision, now = self._wait(environ, decision.waiter)
                    if decision.reason is None:
                        context = ThreadContext(deadline_at, guard.clock, guard, None, entry, environ)
                        whole = WholeRun(
                            guard, entry, entry.cost, context, now, method, start_response, self._abandoned
                        )
            if decision is None:
                decision, entry, cost, tenant, deadline_at, now = self._decide(environ, outer)
        except CallerLeft:
            return start_for_nobody(start_response)
        except Exception as error:  # noqa: BLE001  the application must be served whatever our own code does
            guard.listeners.failed("admission", error)
            decision = None
        if whole is not None:
            return open_body(whole, self.app, environ, self._stopped)
        if decision is None:
            return self.app(environ, start_response)
        if decision.reason is not None:
            figures = guard.figures(entry, deadline_at)
            return self._answers[decision.reason].start(
                method, environ, decision.retry_after, start_response, figures, fields=decision.fields
            )
        make: Any = (
            StreamRun if entry.stream is not None else Run if entry.max_body is not None else self._usual
        )
        if self._shadow is not None:
            make = partial(shadow_run(self._shadow, entry), self._shadow, decision, deadline_at)
            deadline_at = self._shadow.kept(deadline_at, outer, entry.stream)
        around = None if outer is NO_REQUEST else outer
        context = ThreadContext(deadline_at, guard.clock, guard, around, entry, environ)
        run: Run = make(guard, entry, cost, context, now, method, start_response, self._abandoned, tenant)
        if entry.max_body is not None and "wsgi.input" in environ and _is_of_unknown_size(environ):
            environ["wsgi.input"] = CountedInput(environ["wsgi.input"], entry.max_body, context)
        return open_body(run, self.app, environ, self._stopped)

    def _decide(  # noqa: C901, PLR0912  as above
        self, environ: WSGIEnvironment, outer: RequestContext
    ) -> tuple[Decision | None, RouteEntry, int, str | None, float, float]:
        """Let the request arrive, and wait for its slot if it has to; also say its slots, tenant, deadline and start."""
        guard, protection = self._guard, self._protection
        path = environ.get("PATH_INFO") or "/"
        if not path.isascii():
            # Servers hand bytes over as latin-1; routes are written in UTF-8, and so do frameworks read them.
            path = path.encode("latin-1", "replace").decode("utf-8", "replace")
        fields = []
        for key, name in self._fields:
            if key in environ:
                fields.append((name, environ[key]))
        now = guard.clock.now()
        if guard.overload.look_at <= now:
            guard.look()
        method = environ.get("REQUEST_METHOD", "")
        if method == "OPTIONS" and environ.keys() >= PREFLIGHT_KEYS:
            entry = protection.preflight()
        else:
            # The path is below SCRIPT_NAME already: that is how WSGI splits it.
            entry = protection.entry(path, "", method, environ)
        forwarded = environ.get("HTTP_X_FORWARDED_FOR") if fields else None
        deadline_at = protection.deadline_at(
            now, entry, fields, environ.get("REMOTE_ADDR"), () if forwarded is None else (forwarded,),
            environ.get(WAITED, 0.0),
        )  # fmt: skip
        deadline_at = min(deadline_at, outer._fixed_end())  # noqa: SLF001  it never grows from layer to layer
        if "CONTENT_LENGTH" in environ and entry.rank >= 0 and entry.stream is None and now < deadline_at:
            refused = receive(guard, environ, entry, now)
            if refused is not None:
                return refused, entry, entry.cost, None, deadline_at, now
            now = guard.clock.now()
        if entry.plain:
            decision: Decision | Asking = guard.arrive(entry, now, deadline_at)
            cost, tenant = entry.cost, None
        else:
            decision, cost, tenant = protection.arrive(entry, WsgiHead(environ, path), now, deadline_at)
        if isinstance(decision, Asking):
            decision, now = ask(guard, decision), guard.clock.now()
        if decision.waiter is not None:
            decision, now = self._wait(environ, decision.waiter)
        if tenant is not None:
            guard.tenancy.count(tenant, decision)
        return decision, entry, cost, tenant, deadline_at, now

    def _wait(self, environ: WSGIEnvironment, waiter: Waiter) -> tuple[Decision, float]:
        """Wait for a slot; return what came of it, and when."""
        return wait_in_thread(self._guard, waiter, gone_of(environ)), self._guard.clock.now()

    def _start(self, environ: WSGIEnvironment, start_response: StartResponse) -> None:
        """Bind the application's routes before the first request: only then are all of them there. Count the threads."""
        with self._starting:
            if self._wrong is None and not self._ready:
                try:
                    self._protection.start([self.app], inside=self.app)
                    ask_server(self._protection, environ, start_response)
                except ValueError as error:
                    self._wrong = str(error)
                except Warning:  # the user made warnings errors
                    raise
                except Exception as error:  # noqa: BLE001  a route source is a guest: without it, paths decide
                    self._guard.listeners.failed("start", error)
            if self._wrong is not None:
                raise ValueError(self._wrong)
            self._ready = True

    def _take_back(self) -> None:
        """End the runs whose body the server dropped without closing it."""
        while True:
            try:
                run = self._abandoned.popleft()
            except IndexError:
                return
            if run.closed:
                continue  # two finalizers have left it here
            run.give_up()
            if not run.complete:
                _warn_of_dropped_body(self._guard.listeners)


def _is_of_unknown_size(environ: WSGIEnvironment) -> bool:
    """Return whether only reading the request body can tell how large it is."""
    length = environ.get("CONTENT_LENGTH")
    return not length or parse_content_length((length,)) is None


def _warn_of_dropped_body(listeners: Listeners) -> None:
    text = (
        "the server dropped a response body without closing it, which PEP 3333 demands: its slots stayed taken until the "
        "garbage collector found it"
    )
    try:
        warnings.warn(text, ResilienceWarning, stacklevel=2)
    except Warning as error:  # the user made warnings errors, but this request has done nothing
        listeners.failed("closing of the body by the server", error)
