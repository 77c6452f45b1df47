"""How the requests to each route are treated, and which part of the policy says so.

The order is that of the middleware: exempt path, rule of the policy, mark of the endpoint, default. A rule may cover
only some of a route's paths or methods; then the route has several rows, and the first that fits a request decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.admission.routing import READING, RouteEntries
from resilient_mw.cli.facts import AppFacts, RouteFact
from resilient_mw.cli.words import function_name
from resilient_mw.core.deadline import DeadlineRule
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.routes import UNMATCHED, RouteRule, may_overlap
from resilient_mw.core.snapshot import AppSnapshot, Histogram
from resilient_mw.core.streams import BODY, StreamRule

EXEMPT_PATH, MARK, DEFAULT = "exempt path", "mark", "default"


@dataclass(frozen=True, slots=True)
class Sources:
    """What decides: `exempt path`, `rule '/path'`, `mark` or `default`."""

    priority: str
    cost: str
    deadline: str


@dataclass(frozen=True, slots=True)
class Treatment:
    """How some requests are treated.

    Attributes:
        template: the route; `unmatched` for what no route serves.
        methods: HTTP methods, sorted; None: any.
        where: the path of the rule, if it covers only some of the route's paths.
        priority: the class, or `exempt`.
        cost: slots; 1 where a function decides.
        cost_function: the function of the request's head that decides the slots; None: there is none.
        deadline_default, deadline_minimum, deadline_maximum: seconds.
        budget: seconds that a caller gets who sends none.
        longest_wait: seconds in the queue for that caller; None for exempt routes, which never wait.
        observed: seconds that a completed run took on average in this process; None: there was none.
        threaded: whether the endpoint runs in a thread of the framework's pool.
        sources: what decides.
        slot: how long the slot is held: `body` or `head`.
        deadline_covers: what the deadline covers: `body`, `head` or `gaps`.
        idle: seconds that a gap between two chunks may last; None: no gaps are covered.
        problem: why a rule and a mark do not go together; such requests pass unguarded.
        needs: name of the dependency that they cannot do without.
    """

    template: str
    methods: tuple[str, ...] | None
    where: str | None
    priority: str
    cost: int
    cost_function: str | None
    deadline_default: float
    deadline_minimum: float
    deadline_maximum: float
    budget: float
    longest_wait: float | None
    observed: float | None
    threaded: bool
    sources: Sources
    problem: str | None = None
    slot: str = BODY
    deadline_covers: str = BODY
    idle: float | None = None
    needs: str | None = None

    @property
    def exempt(self) -> bool:
        """Whether such requests are never queued or refused for load."""
        return self.priority == EXEMPT


def treatments(facts: AppFacts) -> tuple[Treatment, ...]:
    """Return the rows of all routes in their order, and at the end those of what no route serves."""
    maker = _Maker(facts.policy, facts.snapshot)
    rows: list[Treatment] = []
    for route in facts.routes or ():
        rows += maker.rows(route)
    if facts.routes is None:
        for rule in facts.policy.routes:
            rows.append(maker.row(RouteFact(rule.path), rule.methods or None, rule, None))
    rows.append(maker.row(RouteFact(UNMATCHED), None, None, None))
    return tuple(dict.fromkeys(rows))


def longest_wait(policy: ServerPolicy, budget: float) -> float:
    """Return how long a request with a budget waits for a slot at most."""
    return min(policy.max_wait, policy.wait_share * budget)


def budget_without_header(policy: ServerPolicy) -> float:
    """Return the budget of a caller who sends none to a route that has no rule of its own."""
    return policy.deadline.budget(None, trusted=False)


def mean(histogram: Histogram) -> float | None:
    """Return the mean of a histogram's durations; None if there are none that took any time."""
    count = sum(histogram.counts)
    return histogram.total / count if count and histogram.total > 0 else None


def covers(pattern: str, template: str) -> bool:
    """Return whether every path of a route template matches the path of a rule."""
    ours = pattern.removesuffix("/*").split("/")[1:]
    theirs = comparable(template).split("/")[1:]
    if len(theirs) < len(ours):
        return False
    for mine, other in zip(ours, theirs, strict=False):
        if ":path" in other or other.startswith("<path:"):
            return False
        if mine != other and not (mine.startswith("{") and other):
            return False
    return pattern.endswith("/*") or len(ours) == len(theirs)


def comparable(template: str) -> str:
    """Return a template whose open end is written as a parameter, as `may_overlap` reads it."""
    return f"{template.removesuffix('*')}{{path:path}}" if template.endswith("/*") else template


def applies(rule: RouteRule, route: RouteFact) -> bool:
    """Return whether some request that a route serves may match a rule."""
    if rule.methods and route.methods is not None and rule.methods.isdisjoint(route.methods):
        return False
    return may_overlap(rule, comparable(route.template))


class _Maker:
    def __init__(self, policy: ServerPolicy, snapshot: AppSnapshot) -> None:
        self._policy = policy
        self._entries = RouteEntries(policy)
        self._observed = {
            (_label(each.route), each.priority): seconds
            for each in snapshot.routes
            if (seconds := mean(each.run)) is not None
        }

    def rows(self, route: RouteFact) -> list[Treatment]:
        """Return the rows of one route."""
        rows: list[Treatment] = []
        left = route.methods
        if route.template in self._policy.exempt_paths:
            reading = READING if left is None else left & READING
            if reading:
                rows.append(self.row(route, reading, None, None, exempt_path=True))
                left = None if left is None else left - READING
        for rule in self._policy.routes:
            if left is not None and not left:
                return rows
            if not applies(rule, RouteFact(route.template, left)):
                continue
            covered = covers(rule.path, route.template)
            methods = left if not rule.methods else rule.methods if left is None else left & rule.methods
            rows.append(self.row(route, methods, rule, None if covered else rule.path))
            if covered and (not rule.methods or left is not None):
                left = frozenset() if left is None or methods is None else left - methods
        if left is None or left:
            rows.append(self.row(route, left, None, None))
        return rows

    def row(
        self,
        route: RouteFact,
        methods: frozenset[str] | None,
        rule: RouteRule | None,
        where: str | None,
        *,
        exempt_path: bool = False,
    ) -> Treatment:
        """Return one row."""
        mark = Mark(priority=EXEMPT) if exempt_path else route.mark
        problem: str | None = None
        if rule is not None:
            mark = rule.mark.over(mark)
            try:
                self._policy.check_mark(mark, f"{rule!r} over the mark of route {route.template!r}")
            except ValueError as error:
                problem = str(error)
        entry = self._entries.get(route.template, mark or Mark())
        stream = entry.stream or StreamRule()
        budget = entry.deadline.budget(None, trusted=False)
        default, minimum, maximum = _numbers(entry.deadline)
        waits = entry.priority != EXEMPT
        own = EXEMPT_PATH if exempt_path else MARK
        return Treatment(
            template=route.template,
            methods=None if methods is None else tuple(sorted(methods)),
            where=where,
            priority=entry.priority,
            cost=entry.cost,
            cost_function=_cost_function(entry),
            deadline_default=default,
            deadline_minimum=minimum,
            deadline_maximum=maximum,
            budget=budget,
            longest_wait=longest_wait(self._policy, budget) if waits else None,
            observed=self._observed.get((_label(route.template), entry.priority)),
            threaded=route.threaded,
            sources=Sources(*(_source(field, rule, mark, own) for field in ("priority", "cost", "deadline"))),
            problem=problem,
            slot=stream.slot or BODY,
            deadline_covers=stream.covers or BODY,
            idle=stream.idle,
            needs=entry.needs,
        )


def _source(field: str, rule: RouteRule | None, mark: Mark | None, own: str) -> str:
    if rule is not None and getattr(rule.mark, field) is not None:
        return f"rule {rule.path!r}"
    return DEFAULT if getattr(mark, field, None) is None else own


def _cost_function(entry: RouteEntry) -> str | None:
    rule = entry.head_rule
    return None if rule is None or rule.cost_of is None else function_name(rule.cost_of)


def _numbers(rule: DeadlineRule) -> tuple[float, float, float]:
    return rule.default or 0.0, rule.minimum or 0.0, rule.maximum or 0.0


def _label(template: str) -> str:
    """Return the metric label of a template: without the types of its parameters, open ends as `/*`."""
    template = re.sub(r"/\{path(:path)?\}$", "/*", template)
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", template)
