"""What a policy of idempotency keys means for each route. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from resilient_mw.cli.facts import KeysFacts, RouteFact
from resilient_mw.cli.words import function_name
from resilient_mw.core.idempotent import IdempotencyRule
from resilient_mw.core.routes import UNMATCHED
from resilient_mw.idempotency.policy import READING, IdempotencyPolicy
from resilient_mw.idempotency.treatment import Treatment, Treatments

WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
"""Methods that are looked at where a route takes any."""
OFF, OPTIONAL, REQUIRED = "off", "optional", "required"
RULE, MARK, DEFAULT = "rule", "mark", "default"


@dataclass(frozen=True, slots=True)
class KeysRow:
    """How some requests with a key are treated. All but the first four are None where keys are not looked at.

    Attributes:
        template: the route; `unmatched` for what no route serves.
        methods: sorted.
        use: `required`, `optional` or `off`.
        source: what decides: `rule`, `mark` or `default`.
        wait: `join` or `conflict`.
        on_unknown: `refuse`, `retry`, or the name of the status function.
        lease, heartbeat, keep: seconds.
        max_answer: bytes of the largest body that is kept.
        canonical_json: bytes of body up to which JSON is compared by its meaning; 0: by its bytes.
        store_down: `closed` or `open`.
        budget: seconds that a caller gets who sends none; None: no admission knows the route.
    """

    template: str
    methods: tuple[str, ...]
    use: str
    source: str
    wait: str | None = None
    on_unknown: str | None = None
    lease: float | None = None
    heartbeat: float | None = None
    keep: float | None = None
    max_answer: int | None = None
    canonical_json: int | None = None
    store_down: str | None = None
    budget: float | None = None


SHOWN = tuple(
    each.name for each in fields(Treatment) if each.name in {column.name for column in fields(KeysRow)}
)
"""What a row takes over from the treatment."""


@dataclass(frozen=True, slots=True)
class KeysReport:
    """One middleware of idempotency keys.

    Attributes:
        protocol: `asgi` or `wsgi`.
        header: the field that has the key.
        caller: how it is told whose key it is; None: all callers are one.
        store: the name of the store's class.
        shared: who sees its records: `process`, `machine` or `network`.
        strict: whether only quoted keys are keys.
        max_wait: seconds that a repeat waits for the first answer at most.
        max_waiting: repeats that wait at one time in one process.
        max_records: live records of one caller.
        store_timeout: seconds that one question to the store may take.
        routes: how requests are treated.
        routes_known: whether a route source knows the application; if not, `routes` are the rules of the policy.
    """

    protocol: str
    header: str
    caller: str | None
    store: str
    shared: str
    strict: bool
    max_wait: float
    max_waiting: int
    max_records: int
    store_timeout: float
    routes: tuple[KeysRow, ...]
    routes_known: bool


def keys_reports(facts: Sequence[KeysFacts], budgets: Mapping[str, float]) -> tuple[KeysReport, ...]:
    """Return what the policies mean.

    Args:
        facts: of the middlewares.
        budgets: seconds of callers who send no budget, by route.
    """
    return tuple(_report(each, budgets) for each in facts)


def _report(facts: KeysFacts, budgets: Mapping[str, float]) -> KeysReport:
    policy = facts.policy
    caller = policy.caller
    if caller is not None:
        caller = f"header {caller}" if isinstance(caller, str) else function_name(caller)
    return KeysReport(
        protocol=facts.protocol,
        header=policy.header,
        caller=caller,
        store=facts.store,
        shared=facts.shared,
        strict=policy.strict,
        max_wait=policy.max_wait,
        max_waiting=policy.max_waiting,
        max_records=policy.max_records,
        store_timeout=policy.store_timeout,
        routes=tuple(_rows(facts, budgets)),
        routes_known=facts.routes is not None,
    )


def _rows(facts: KeysFacts, budgets: Mapping[str, float]) -> Iterable[KeysRow]:
    policy = facts.policy
    maker = _Maker(policy, budgets)
    routes = facts.routes
    if routes is None:
        routes = tuple(RouteFact(each.path, frozenset(each.methods) or None) for each in policy.routes)
    for route in routes:
        yield from maker.rows(route)
    yield from maker.rows(RouteFact(UNMATCHED))


class _Maker:
    def __init__(self, policy: IdempotencyPolicy, budgets: Mapping[str, float]) -> None:
        self._budgets = budgets
        self._all = Treatments(policy)
        self._without_rules = Treatments(replace(policy, routes=()))

    def rows(self, route: RouteFact) -> Iterable[KeysRow]:
        """Yield the rows of a route: methods that are treated alike are in one."""
        mark = None if route.mark is None else route.mark.idempotency
        alike: list[tuple[Treatment | None, str, list[str]]] = []
        for method in sorted((route.methods or WRITING) - READING):
            treatment = self._of(self._all, method, route.template, mark)
            below = self._of(self._without_rules, method, route.template, mark)
            source = RULE if treatment != below else DEFAULT
            if source == DEFAULT and below != self._of(self._without_rules, method, route.template, None):
                source = MARK
            known = next(
                (methods for other, of, methods in alike if (other, of) == (treatment, source)), None
            )
            if known is None:
                alike.append((treatment, source, [method]))
            else:
                known.append(method)
        for treatment, source, methods in alike:
            yield self._row(route.template, tuple(methods), treatment, source)

    def _of(
        self, treatments: Treatments, method: str, template: str, mark: IdempotencyRule | None
    ) -> Treatment | None:
        # A parameter of a template is a segment like any other, so it reads as a path.
        return treatments.of(method, "/" if template == UNMATCHED else template, mark)

    def _row(
        self, template: str, methods: tuple[str, ...], treatment: Treatment | None, source: str
    ) -> KeysRow:
        if treatment is None:
            return KeysRow(template, methods, OFF, source)
        shown: dict[str, Any] = {name: getattr(treatment, name) for name in SHOWN}
        if not isinstance(treatment.on_unknown, str):
            shown["on_unknown"] = function_name(treatment.on_unknown)
        use = REQUIRED if treatment.required else OPTIONAL
        return KeysRow(template, methods, use, source, budget=self._budgets.get(template), **shown)
