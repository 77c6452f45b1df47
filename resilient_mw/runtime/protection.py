"""What both middlewares share: one application under one policy.

Finds how a request is treated and until when it is worth working on. The protocol shells read the wire, ask here, and
act.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakMethod, WeakSet

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import Decision
from resilient_mw.admission.edge import Edge, is_too_large
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.head_rule import INVALID, HeadRule
from resilient_mw.admission.policy_checks import DEADLINES
from resilient_mw.admission.routing import RouteEntries, RouteTable, unreached
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.head import RequestHead
from resilient_mw.core.rejection import Reason
from resilient_mw.core.routes import below_root
from resilient_mw.core.trust import PeerTrust
from resilient_mw.runtime.arrivals import admit, ask
from resilient_mw.runtime.clocks import wall_clock_ns
from resilient_mw.runtime.configuration import policy_in_force
from resilient_mw.runtime.forks import after_fork
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.needed import refused_for_need, unknown_names
from resilient_mw.runtime.quotas import Asking
from resilient_mw.runtime.shadow import ShadowGuard
from resilient_mw.runtime.sources import find_resolver, has_cors_layer


class Protection:
    """One application under one policy.

    Args:
        policy: the policy; None: one is loaded, see `runtime.configuration`.
        overrides: fields of the policy that differ.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed.
    """

    def __init__(self, policy: ServerPolicy | None, overrides: Mapping[str, Any]) -> None:
        if policy is not None and not isinstance(policy, ServerPolicy):
            raise ValueError(f"policy={policy!r} is not allowed: it must be a ServerPolicy")
        self.policy = policy_in_force(policy, overrides)
        self.guard = guard_of(self.policy)
        self.shadow = self.guard if isinstance(self.guard, ShadowGuard) else None
        failed = partial(self.guard.listeners.failed, "route look-up")
        self.table = RouteTable(self.policy, self.guard.entries, failed)
        websockets = self.guard.websockets
        self._sockets = (
            None if websockets is None else RouteTable(self.policy, websockets.connections.entries, failed)
        )
        self.started = False
        self._read_policy()
        self.starting = threading.Lock()
        self._prepare: WeakMethod[Callable[[], None]] | None = None
        after_fork(self)
        _waiting_for_start.add(self)
        self.guard.lifecycle.guards(self)

    def _read_policy(self) -> None:
        """Prepare what the policy says of peers."""
        self._trust = PeerTrust(self.policy.trusted_peers)
        self._edge = Edge(self.policy, self._trusts, somebody=bool(self._trust))
        self.fields = self._edge.fields
        # Nobody is told of a deadline that is not kept.
        kept = self.shadow is None or not self.shadow.shadows(DEADLINES)
        self.tells = self.policy.deadline_response_header if kept else None

    def prepared_by(self, prepare: Callable[[], None]) -> None:
        """Have a middleware prepare what it reads of the policy: now, and after each reload."""
        self._prepare = WeakMethod(prepare)
        prepare()

    def check(self, policy: ServerPolicy) -> None:
        """Raise a ValueError if the application's routes do not fit a policy."""
        self.table.under(policy, RouteEntries(policy))

    def change(self, policy: ServerPolicy, entries: RouteEntries) -> None:
        """Take a policy that fits."""
        self.table = self.table.under(policy, entries)
        websockets = self.guard.websockets
        if self._sockets is not None and websockets is not None:
            self._sockets = self._sockets.under(policy, websockets.connections.entries)
        self.policy = policy
        self._read_policy()
        prepare = None if self._prepare is None else self._prepare()
        if prepare is not None:
            prepare()

    def forked(self) -> None:
        """Begin anew in a forked child: a thread that was binding routes is not there."""
        self.starting = threading.Lock()

    def start(self, apps: Iterable[object], inside: object = None) -> None:
        """Bind the application's routes, once, before the first request. Warnings say what has no effect.

        Args:
            apps: the objects that may be the application.
            inside: what the middleware wraps; None: not known.

        Raises:
            ValueError: a mark names a class that does not exist or a cost that can never fit.
        """
        with self.starting:
            if self.started:
                return
            _waiting_for_start.discard(self)
            try:
                resolver = find_resolver(apps)
                complaints = self.table.bind(resolver)
                if self._sockets is not None:
                    self._sockets.bind(resolver)
                without_effect = unreached([self.table])
                complaints += [NOT_KNOWN.format(name) for name in unknown_names(self.table.needs())]
            finally:
                self.started = True  # others wait for the lock until the routes are bound
        for complaint in complaints:
            _warn(complaint)
        if not self.policy.cors_origins and has_cors_layer(inside):
            _warn(HIDDEN_REFUSALS)
        # Marks are global, applications are several: judge when every application has shown its routes.
        for name in [] if _waiting_for_start else without_effect:
            _warn(f"the mark on {name} has no effect: {NO_SOURCE if resolver is None else NO_ROUTE}")

    def entry(self, path: str, root_path: str, method: str, scope: Mapping[str, Any]) -> RouteEntry:
        """Return how a request is treated; as an unmatched, normal one if the route source fails (fail open)."""
        return self.table.entry(below_root(path, root_path) if root_path else path, method, scope)

    def websocket(self, path: str, root_path: str, scope: Mapping[str, Any]) -> RouteEntry:
        """Return how a websocket is treated, where there are any that do not pass untouched.

        Raises:
            RuntimeError: they all do.
        """
        if self._sockets is None:
            raise RuntimeError("the policy has no limit for websockets")
        return self._sockets.websocket(below_root(path, root_path), scope)

    def preflight(self) -> RouteEntry:
        """Return how a CORS preflight is treated."""
        return self.table.preflight()

    def deadline_at(  # noqa: PLR0917  on the way of every request: keywords would cost
        self,
        now: float,
        entry: RouteEntry,
        fields: list[tuple[str, str]],
        peer: str | None,
        forwarded: Sequence[str] = (),
        lag: float = 0.0,
    ) -> float:
        """Return the instant at which a request that has just arrived stops being worth the work.

        Args:
            now: the instant of arrival.
            entry: how it is treated.
            fields: its header lines whose names are in `fields`, as (lower-case name, value).
            peer: the address of the peer, None if the server does not tell.
            forwarded: its `X-Forwarded-For` lines; only looked at behind a stated number of proxies.
            lag: seconds that it has waited for this process already.
        """
        if not fields:  # nothing to read: what Edge.deadline_at() comes to
            return now + entry.budget if not lag or entry.rank < 0 else now - lag + entry.budget
        at, ignored = self._edge.deadline_at(now, wall_clock_ns(), entry, fields, peer, forwarded, lag)
        if ignored:
            self.guard.ignored(ignored)
        return at

    def arrive(
        self, entry: RouteEntry, head: RequestHead, now: float, deadline_at: float
    ) -> tuple[Decision | Asking, int, str | None]:
        """Decide about a request of a route that is not plain; also return the slots that it takes, and its tenant.

        Where a store has to be asked that takes a round trip, what to ask stands for the decision.

        Args:
            entry: how it is treated.
            head: what it says of itself.
            now: the instant of arrival.
            deadline_at: the instant at which it stops being worth the work.
        """
        if entry.max_body is not None and is_too_large(entry, head.values("content-length")):
            return self.guard.refuse(entry, now, Reason.BODY_TOO_LARGE), entry.cost, None
        if entry.needs is not None:
            decision = refused_for_need(self.guard, entry, entry.needs, now, self.shadow)
            if decision is not None:
                return decision, entry.cost, None
        cost, tenant = entry.cost, None
        if entry.head_rule is not None:
            cost, tenant = self._ask_head(entry, entry.head_rule, head)
        desk = self.guard.tenancy.desk
        if tenant is not None and desk is not None and deadline_at - now > self.policy.smallest_budget:
            quotas = desk.quotas_of(head.path)
            if quotas:
                asking = Asking(entry, quotas, tenant, cost, deadline_at)
                return (asking if desk.remote else ask(self.guard, asking)), cost, tenant
        return admit(self.guard, entry, now, deadline_at, cost, tenant), cost, tenant

    def _ask_head(self, entry: RouteEntry, rule: HeadRule, head: RequestHead) -> tuple[int, str | None]:
        """Return slots and tenant of a request; one slot, or no tenant, if the user's function fails (fail open)."""
        listeners = self.guard.listeners
        cost, tenant = entry.cost, None
        try:
            cost = rule.cost(head, entry.cost)
        except Exception as error:  # noqa: BLE001  the user's function
            listeners.failed("cost function", error)
        try:
            tenant = rule.tenant(head)
        except Exception as error:  # noqa: BLE001  the user's function
            listeners.failed("tenant function", error)
        if tenant == INVALID and isinstance(self.policy.tenant, str):
            self.guard.ignored((self.policy.tenant.lower(),))
        return cost, tenant

    def _trusts(self, peer: str | None) -> bool:
        try:
            return bool(self._trust) and self._trust.trusts(peer)
        except Exception as error:  # noqa: BLE001  the user's function; an error means no trust
            self.guard.listeners.failed("trusted_peers", error)
            return False


_waiting_for_start: WeakSet[Protection] = WeakSet()

NO_SOURCE = "no route source knows the application. Install resilient-mw with the extra of your framework, or write a RouteRule"
NOT_KNOWN = (
    "needs={0!r} names no dependency that is known at start, so it refuses nothing: correct the name, or make the client that "
    "calls Dependency({0!r}, ...) before the application starts"
)
NO_ROUTE = (
    "no route of a protected application leads to it. Put the decorator next to the function, use functools.wraps in "
    "the decorators between, or write a RouteRule"
)

HIDDEN_REFUSALS = (
    "CORSMiddleware is inside this middleware, so pages of other origins cannot read refusals: their browsers report a "
    "CORS failure instead. Set cors_origins to the origins that CORSMiddleware allows, or add CORSMiddleware after this "
    "middleware, which puts it outside"
)


def _warn(text: str) -> None:
    warnings.warn(text, ResilienceWarning, stacklevel=2)
