"""What both middlewares of idempotency keys share: how a request is treated, who waits, what is counted and told."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core import ports
from resilient_mw.core.cors import Cors
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.events import KeyUsed
from resilient_mw.core.head import RequestHead
from resilient_mw.core.idempotency_snapshot import IdempotencySnapshot
from resilient_mw.core.marks import unreached_marks
from resilient_mw.core.pages import PageFunction
from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import RouteResolver
from resilient_mw.idempotency.actions import Abandon, Complete
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.idempotency.machine import IdempotentRequest
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.idempotency.treatment import Treatment, Treatments
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.context import NO_REQUEST, RequestContext
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.guard import Guard
from resilient_mw.runtime.idempotency_figures import IdempotencyFigures
from resilient_mw.runtime.joins import Joins
from resilient_mw.runtime.sources import find_resolver

PagesT = TypeVar("PagesT")
RefusalT = TypeVar("RefusalT")

NO_EFFECT: Final = (
    "the idempotent_route() mark on {0} has no effect: no route of an application with IdempotencyMiddleware leads to it. "
    "Put the decorator next to the function, install resilient-mw with the extra of your framework, or write an "
    "IdempotencyRoute"
)

UNPROTECTED: Final = "unprotected"

_waiting_for_start: WeakSet[IdempotencyDesk] = WeakSet()


class IdempotencyDesk:
    """One application and its policy of idempotency keys. Safe to use from any thread.

    Args:
        policy: the policy.

    Attributes:
        policy: the policy.
        joins: who waits for the answer of a first request in this process.
        figures: what is counted.
        listeners: told of each outcome.
    """

    def __init__(self, policy: IdempotencyPolicy) -> None:
        if not isinstance(policy, IdempotencyPolicy):
            raise ValueError(f"policy={policy!r} is not allowed: it must be an IdempotencyPolicy")
        self.policy = policy
        self.joins = Joins(policy.max_waiting)
        self.figures = IdempotencyFigures(policy.name)
        self.listeners = Listeners(policy.listeners, MONOTONIC)
        self._field = policy.header.lower()
        self._treatments = Treatments(policy)
        self._resolver: RouteResolver | None = None
        self._starting = threading.Lock()
        self.started = False
        _waiting_for_start.add(self)
        ports.register_idempotency(self)
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child: a thread that was looking for routes is not there."""
        self._starting = threading.Lock()

    def start(self, apps: Iterable[object]) -> None:
        """Find the application's routes, once, and warn of marks that nothing leads to.

        Args:
            apps: the objects that may be the application.
        """
        with self._starting:
            if self.started:
                return
            try:
                self._resolver = find_resolver(apps)
            finally:
                self.started = True
                _waiting_for_start.discard(self)
        routes = [] if self._resolver is None else self._resolver.routes()
        # Marks are global, applications are several: judge when every one of them has shown its routes.
        names = unreached_marks([target for route in routes for target in route.targets], keys=True)
        for name in [] if _waiting_for_start else names:
            warnings.warn(NO_EFFECT.format(name), ResilienceWarning, stacklevel=3)

    def treatment(self, method: str, path: str, scope: Mapping[str, Any]) -> tuple[Treatment | None, str]:
        """Return how a request is treated, None: it passes; and the template of its route.

        Args:
            method: in capitals.
            path: below the root path.
            scope: the ASGI scope or the WSGI environ, for the route source.
        """
        route = None if self._resolver is None else self._resolver.resolve(path, scope)
        mark = None if route is None or route.mark is None else route.mark.idempotency
        return self._treatments.of(method, path, mark), _plain(path) if route is None else route.template

    def keys(self, head: RequestHead) -> Sequence[str]:
        """Return the lines of the key's field."""
        return head.values(self._field)

    def request(
        self, head: RequestHead, treatment: Treatment, route: str, context: RequestContext, *, keyed: bool
    ) -> IdempotentRequest:
        """Return the machine of a request.

        Args:
            head: the request.
            treatment, route: as `treatment` returned them.
            context: of the request, for its deadline.
            keyed: whether it has a key.
        """
        now, scope = MONOTONIC.now(), head.scope
        return IdempotentRequest(
            self.policy,
            treatment,
            method=head.method,
            route=route,
            caller=self.policy.caller_of(head) if keyed else None,
            token=os.urandom(16).hex(),
            now=now,
            deadline=now + context.remaining(),
            typical=self.joins.typical(route),
            # One application that is mounted twice is two, whatever it is told of its paths.
            root=scope.get("root_path") or scope.get("SCRIPT_NAME") or "",
        )

    def fingerprint(self, head: RequestHead, query: str, treatment: Treatment) -> Fingerprint:
        """Return the hash of a request, which its body is still to be added to."""
        return Fingerprint(
            f"{head.path}?{query}", self.policy.fingerprint_headers, head.values, treatment.canonical_json
        )

    def time(self, context: RequestContext) -> float:
        """Return the seconds that a question to the store may take."""
        return min(self.policy.store_timeout, context.remaining())

    def count(self, route: str, outcome: str) -> None:
        """Count what became of a request with a key, and tell who listens."""
        self.figures.count(outcome)
        if self.listeners:
            self.listeners.emit(KeyUsed(route, outcome))

    def snapshot(self) -> IdempotencySnapshot:
        """Return the figures of this instant."""
        return IdempotencySnapshot(
            app=self.policy.name,
            waiting=self.joins.waiting,
            places=self.policy.max_waiting,
            outcomes=self.figures.outcomes(),
            store=self.figures.store(),
        )


def ended_as(action: Complete | Abandon, ran: str | None, *, written: bool) -> str | None:
    """Return the outcome to be counted for the end of a record.

    Args:
        action: how it was to end.
        ran: what the work counts as if its answer is recorded; None: none ran.
        written: whether the store has done it.
    """
    if ran is None or ran == UNPROTECTED:
        return ran
    if isinstance(action, Abandon):
        return "freed" if action.ending == "forget" else "left_unknown"
    return ran if written else "unrecorded"


def runs_as(fence: int | None, *, unknown: bool) -> str:
    """Return what work counts as that is about to run.

    Args:
        fence: of the attempt; None: the store was away.
        unknown: whether an earlier attempt at it ended in the dark.
    """
    return UNPROTECTED if fence is None else "again" if unknown else "first"


def _plain(path: str) -> str:
    """Return a path that a caller has made up without what a database takes in no text."""
    if path.isascii() and "\0" not in path:
        return path
    return path.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class RefusalsAround(Generic[PagesT, RefusalT]):
    """The refusals of one middleware as the policy of the admission around has them: who may read them, how they look.

    Args:
        prepare: makes those of all reasons.
        pages: makes what draws the application's own pages.
        listeners: told of what goes wrong in that.
    """

    def __init__(
        self,
        prepare: Callable[[Cors, PagesT | None], Mapping[Reason, RefusalT]],
        pages: Callable[[PageFunction, Listeners], PagesT],
        listeners: Listeners,
    ) -> None:
        self._prepare = prepare
        self._pages = pages
        self._listeners = listeners
        self._alone = prepare(Cors(), None)
        self._inside: tuple[ServerPolicy, Mapping[Reason, RefusalT]] | None = None

    def of(self, context: RequestContext) -> Mapping[Reason, RefusalT]:
        """Return them for a request."""
        policy = policy_around(context)
        if policy is None:
            return self._alone
        known = self._inside
        if known is None or known[0] is not policy:
            page = policy.refusal_page
            pages = None if page is None else self._pages(page, self._listeners)
            known = self._inside = (policy, self._prepare(policy.cors, pages))
        return known[1]


def policy_around(context: RequestContext) -> ServerPolicy | None:
    """Return the policy of the admission that a request has passed: its pages may read refusals, and it draws them."""
    if context is NO_REQUEST or getattr(context, "done", False) or getattr(context, "ended", False):
        return None
    guard = getattr(context, "_guard", None) or getattr(context, "owner", None)
    return guard.policy if isinstance(guard, Guard) else None
