"""How a request is treated: exempt path, policy rule, mark of the endpoint, default, in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.head_rule import HeadRule, tenant_rule
from resilient_mw.core.cors import PREFLIGHT_LABEL
from resilient_mw.core.marks import Mark, unreached_marks
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.routes import UNMATCHED, Route, RouteResolver, RouteRule, may_overlap, rule_index

READING = frozenset({"GET", "HEAD"})
WEBSOCKET_METHOD = "WEBSOCKET"
"""What stands for websockets in `RouteRule.methods`."""


class RouteEntries:
    """All route entries of one policy: the same treatment of the same template is one entry, so labels stay bounded."""

    __slots__ = ("_entries", "_policy", "_ranks", "_tenant_of")

    def __init__(self, policy: ServerPolicy) -> None:
        self._policy = policy
        self._ranks = {each.name: rank for rank, each in enumerate(policy.classes)} | {EXEMPT: -1}
        self._tenant_of = tenant_rule(policy.tenant)
        self._entries: dict[tuple[object, ...], RouteEntry] = {}

    def get(self, template: str, mark: Mark) -> RouteEntry:
        """Return the entry for a template that is treated as `mark` says, the policy filling its gaps."""
        policy = self._policy
        priority = policy.default_class if mark.priority is None else mark.priority
        cost = mark.cost if isinstance(mark.cost, int) else 1
        cost_of = None if mark.cost is None or isinstance(mark.cost, int) else mark.cost
        deadline = policy.deadline if mark.deadline is None else mark.deadline.over(policy.deadline)
        max_body = policy.max_body if mark.max_body is None else mark.max_body
        stream = None if mark.stream is None else mark.stream.effective(exempt=priority == EXEMPT)
        needs = None if priority == EXEMPT else mark.needs  # what is exempt is never refused for load
        # Only what needs something has to know whether it can do without.
        degradable = bool(mark.degradable) and needs is not None
        tenant = policy.tenant
        head: tuple[object, ...] | None = None
        if priority != EXEMPT and (cost_of is not None or tenant is not None):
            # By their identity: functions need not be hashable, and the entry keeps them alive.
            who = tenant if isinstance(tenant, str) else id(tenant)
            head = (who, id(cost_of), policy.most_cost(priority))
        key = (head, template, Mark(priority, cost, deadline, max_body, stream, needs, degradable))
        entry = self._entries.get(key)
        if entry is None:
            rule = None if head is None else HeadRule(self._tenant_of, cost_of, policy.most_cost(priority))
            # setdefault is atomic: two threads that come first at once get the same entry.
            entry = self._entries.setdefault(
                key,
                RouteEntry(
                    template,
                    priority,
                    self._ranks[priority],
                    cost,
                    deadline,
                    max_body,
                    stream,
                    needs,
                    degradable,
                    rule,
                ),
            )
        return entry

    def under(self, policy: ServerPolicy) -> RouteEntries:
        """Return these entries for another policy: what it treats alike goes on counting in the same entry."""
        changed = RouteEntries(policy)
        changed._entries = self._entries
        return changed

    def forget(self) -> None:
        """Forget what was counted and learned."""
        for entry in self.all():
            entry.forget()

    def all(self) -> list[RouteEntry]:
        """Return every entry."""
        return list(self._entries.values())


class RouteTable:
    """Finds the entry of each request to one application.

    Args:
        policy: rules, exempt paths and defaults.
        entries: the policy's entries, shared by all applications under the same policy.
        failed: told what the route source raises; the request is then an unmatched, normal one (fail open). None: it
            is raised.
    """

    __slots__ = ("_entries", "_exempt", "_failed", "_found", "_policy", "_resolver", "_rules", "default")

    def __init__(
        self,
        policy: ServerPolicy,
        entries: RouteEntries,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        self._failed = failed
        self._policy = policy
        self._entries = entries
        self._rules = rule_index(policy.routes)
        self._exempt = {path: entries.get(path, Mark(priority=EXEMPT)) for path in policy.exempt_paths}
        self._found: dict[tuple[Route | None, RouteRule | None], RouteEntry] = {}
        self._resolver: RouteResolver | None = None
        self.default = entries.get(UNMATCHED, Mark())

    def under(self, policy: ServerPolicy, entries: RouteEntries) -> RouteTable:
        """Return this application's table for another policy.

        Raises:
            ValueError: a mark costs more than its class can ever have now.
        """
        changed = RouteTable(policy, entries, self._failed)
        changed.bind(self._resolver)
        return changed

    def bind(self, resolver: RouteResolver | None) -> list[str]:
        """Take the application's routes into account; return what its author should be warned about.

        Raises:
            ValueError: a mark names a class that does not exist or a cost that can never fit.
        """
        self._resolver = resolver
        self._found.clear()
        if resolver is None:
            return []
        routes = list(resolver.routes())
        for route in routes:
            if route.mark is not None:
                self._policy.check_mark(route.mark, f"the mark of route {route.template!r}")
        return [
            f"{rule!r} matches no route of the application: correct its path or remove it"
            for rule in self._policy.routes
            if not any(may_overlap(rule, route.template) for route in routes)
        ]

    def targets(self) -> list[object]:
        """Return the objects that lead to a route, to tell marks that nothing leads to."""
        return (
            []
            if self._resolver is None
            else [target for route in self._resolver.routes() for target in route.targets]
        )

    def needs(self) -> set[str]:
        """Return the names of the dependencies that rules and marks say they cannot do without."""
        marks = [rule.mark for rule in self._policy.routes]
        if self._resolver is not None:
            marks += [route.mark for route in self._resolver.routes() if route.mark is not None]
        return {mark.needs for mark in marks if mark.needs is not None}

    def preflight(self) -> RouteEntry:
        """Return how a CORS preflight is treated: as exempt, whatever its path, for it asks for no work."""
        return self._entries.get(PREFLIGHT_LABEL, Mark(priority=EXEMPT))

    def websocket(self, path: str, scope: Mapping[str, Any]) -> RouteEntry:
        """Return how a websocket is treated; arguments as of `entry`. The method of rules for websockets is `WEBSOCKET`."""
        return self._exempt.get(path) or self.entry(path, WEBSOCKET_METHOD, scope)

    def entry(self, path: str, method: str, scope: Mapping[str, Any]) -> RouteEntry:
        """Return how a request is treated.

        Args:
            path: the path below the root path, as the server decoded it.
            method: the HTTP method.
            scope: the ASGI scope or the WSGI environ, for the route source.

        Raises:
            Exception: whatever the route source raises, unless somebody wants to be told of it.
        """
        if path in self._exempt and method in READING:
            return self._exempt[path]
        try:
            route = None if self._resolver is None else self._resolver.resolve(path, scope)
            rule = self._rule(path, method) if self._policy.routes else None
            if route is None and rule is None:
                return self.default  # what _build() makes of nothing
            entry = self._found.get((route, rule))
            if entry is None:
                entry = self._found[route, rule] = self._build(route, rule)
            return entry
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(error)
            return self.default

    def _rule(self, path: str, method: str) -> RouteRule | None:
        for rule in self._rules.candidates(path):
            if not rule.methods or method in rule.methods:
                return rule
        return None

    def _build(self, route: Route | None, rule: RouteRule | None) -> RouteEntry:
        mark = None if route is None else route.mark
        template = UNMATCHED if rule is None else rule.path
        where = repr(rule)
        if route is not None:
            template = route.template
            where = f"the mark of route {template!r}"
        if rule is not None:
            mark = rule.mark.over(mark)
            where = f"{rule!r} over the mark of route {template!r}"
        if mark is not None:
            # A route added after the start was not checked by bind(), and what a rule and a mark say together by nobody.
            self._policy.check_mark(mark, where)
        return self._entries.get(template, mark or Mark())


def unreached(tables: list[RouteTable]) -> list[str]:
    """Return the names of marked objects that lead to no route of any of the applications."""
    return unreached_marks([target for table in tables for target in table.targets()])
