"""What a policy means in numbers: builds the report from what is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.cli.explained_calls import DependencyReport, dependency_report
from resilient_mw.cli.explained_keys import KeysReport, keys_reports
from resilient_mw.cli.explained_settings import Setting, settings
from resilient_mw.cli.facts import AppFacts, Facts, Question
from resilient_mw.cli.treatments import Treatment, budget_without_header, longest_wait, mean, treatments
from resilient_mw.cli.words import function_name
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.quotas import Quota
from resilient_mw.core.snapshot import AppSnapshot, Histogram

GIVEN, OBSERVED = "given", "observed"


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """One priority class. Rates are requests of cost 1 per second in one process; None while the service time is unknown.

    Attributes:
        name, weight, reserved: as in the policy.
        shared_slots: slots it gets while all classes wait: its reserved ones, and its weight's share of the rest.
        most_slots: slots it can have at most, when the others are idle.
        queue: most requests of the class that wait at once.
        reserved_rate, shared_rate, most_rate: what these slots mean.
    """

    name: str
    weight: float
    reserved: int
    shared_slots: float
    most_slots: int
    queue: int
    reserved_rate: float | None
    shared_rate: float | None
    most_rate: float | None


@dataclass(frozen=True, slots=True)
class AppReport:
    """One middleware: its policy, its routes, and what the numbers mean.

    Attributes:
        name: the policy's name.
        protocol: `asgi` or `wsgi`.
        shares_state_with: the number, from 0, of an earlier application under the same policy object; None: none.
        slots, queue: the limit and the wait queue of one process.
        queue_asked: the wait queue that was asked for; `fit_queue` may have shortened it.
        max_wait, wait_share, exempt_limit, smallest_budget: as in the policy.
        deadline_default, deadline_minimum, deadline_maximum: seconds.
        exempt_paths: as in the policy.
        longest_wait: seconds in the queue for a caller who sends no budget.
        bound_by: `max_wait` or `wait_share`, whichever ends that wait.
        service_time: seconds; None: unknown.
        service_time_from: `given`, `observed` or None.
        rate: requests per second that the limit means in one process.
        drain: seconds in which a full queue has got its slots.
        slots_of_all, queue_of_all, rate_of_all: of all worker processes together.
        classes: highest rank first.
        routes: how requests are treated.
        routes_known: whether a route source knows the application; if not, `routes` are the rules of the policy.
        tenant: how the tenant of a request is found; None: there are none.
        quotas: what each tenant may send, in the order in which it is asked for.
        quota_store: what counts; None: there are no quotas.
        quota_store_away: who decides while the store is away; None: it is in memory.
        websockets: routes that take websockets.
        websocket_limit: most that are open at once in one process; None: they pass untouched.
        stream_limit: most streams that are open at once in one process.
        shadow: the defences that only report.
        settings: every field of the policy, and where its value comes from.
    """

    name: str
    protocol: str
    shares_state_with: int | None
    slots: int
    queue: int
    queue_asked: int
    max_wait: float
    wait_share: float
    exempt_limit: int
    exempt_paths: tuple[str, ...]
    deadline_default: float
    deadline_minimum: float
    deadline_maximum: float
    smallest_budget: float
    longest_wait: float
    bound_by: str
    service_time: float | None
    service_time_from: str | None
    rate: float | None
    drain: float | None
    slots_of_all: int
    queue_of_all: int
    rate_of_all: float | None
    classes: tuple[ClassFigures, ...]
    routes: tuple[Treatment, ...]
    routes_known: bool
    tenant: str | None
    quotas: tuple[str, ...]
    quota_store: str | None
    quota_store_away: str | None
    websockets: tuple[str, ...]
    websocket_limit: int | None
    stream_limit: int
    shadow: tuple[str, ...]
    settings: tuple[Setting, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything but the warnings.

    Attributes:
        target: what the user asked about.
        workers: server processes.
        rate: requests per second of all processes; None: not given.
        applications: one per middleware, the outermost first.
        dependencies: by name.
        disabled: whether the kill switch lets every request pass.
        keys: one per middleware of idempotency keys, the outermost first.
    """

    target: str
    workers: int
    rate: float | None
    applications: tuple[AppReport, ...]
    dependencies: tuple[DependencyReport, ...]
    disabled: bool = False
    keys: tuple[KeysReport, ...] = ()


def explained(facts: Facts, question: Question) -> Figures:
    """Return what the policies mean."""
    policies = [each.policy for each in facts.apps]
    applications = tuple(
        _application(each, question, _first(policies, each.policy, before=number))
        for number, each in enumerate(facts.apps)
    )
    longest = max((row.deadline_maximum for app in applications for row in app.routes), default=None)
    return Figures(
        facts.target,
        question.workers,
        question.rate,
        applications,
        tuple(dependency_report(each, question, longest) for each in facts.dependencies),
        facts.disabled,
        keys_reports(facts.keys, {row.template: row.budget for app in applications for row in app.routes}),
    )


def _application(facts: AppFacts, question: Question, shares: int | None) -> AppReport:
    policy = with_threads(facts, question)
    service_time, source = _service_time(facts.snapshot, question)
    rate = None if service_time is None else policy.slots / service_time
    budget = budget_without_header(policy)
    return AppReport(
        name=policy.name,
        protocol=facts.protocol,
        shares_state_with=shares,
        slots=policy.slots,
        queue=policy.queue_length,
        queue_asked=policy.queue_asked,
        max_wait=policy.max_wait,
        wait_share=policy.wait_share,
        exempt_limit=policy.exempt_limit,
        exempt_paths=tuple(policy.exempt_paths),
        deadline_default=policy.deadline_default,
        deadline_minimum=policy.deadline_minimum,
        deadline_maximum=policy.deadline_maximum,
        smallest_budget=policy.smallest_budget,
        longest_wait=longest_wait(policy, budget),
        bound_by="max_wait" if policy.max_wait <= policy.wait_share * budget else "wait_share",
        service_time=service_time,
        service_time_from=source,
        rate=rate,
        drain=None if rate is None else policy.queue_length / rate,
        slots_of_all=policy.slots * question.workers,
        queue_of_all=policy.queue_length * question.workers,
        rate_of_all=None if rate is None else rate * question.workers,
        classes=_classes(policy, service_time),
        routes=treatments(facts),
        routes_known=facts.routes is not None,
        tenant=_tenant(policy),
        quotas=tuple(_quota(each) for each in policy.quotas),
        quota_store=_store(policy),
        quota_store_away=policy.quota_store_away if policy.quotas and _is_remote(policy) else None,
        websockets=facts.websockets,
        websocket_limit=policy.websocket_limit if facts.protocol == "asgi" else None,
        stream_limit=policy.stream_limit,
        shadow=tuple(sorted(policy.shadowed)),
        settings=settings(policy, facts.sources),
    )


def with_threads(facts: AppFacts, question: Question) -> ServerPolicy:
    """Return the policy as it will be once a WSGI server has told its number of threads."""
    if facts.protocol != "wsgi" or question.threads is None:
        return facts.policy
    return facts.policy.with_changes({"threads": question.threads})


def _service_time(snapshot: AppSnapshot, question: Question) -> tuple[float | None, str | None]:
    if question.service_time is not None:
        return question.service_time, GIVEN
    runs = Histogram()
    for route in snapshot.routes:
        if route.priority != EXEMPT:
            runs.merge(route.run)
    observed = mean(runs)
    return observed, None if observed is None else OBSERVED


def _tenant(policy: ServerPolicy) -> str | None:
    tenant = policy.tenant
    if tenant is None:
        return None
    return f"header {tenant}" if isinstance(tenant, str) else function_name(tenant)


def _quota(quota: Quota) -> str:
    counted = " by cost" if quota.by_cost else ""
    return f"{quota.name}: {quota.rate}{counted}{'' if quota.path is None else f' of {quota.path}'}"


def _store(policy: ServerPolicy) -> str | None:
    if not policy.quotas:
        return None
    return "memory of each process" if policy.quota_store is None else type(policy.quota_store).__name__


def _is_remote(policy: ServerPolicy) -> bool:
    return policy.quota_store is not None and policy.quota_store.local is not None


def _classes(policy: ServerPolicy, service_time: float | None) -> tuple[ClassFigures, ...]:
    free = policy.slots - sum(each.reserved for each in policy.classes)
    weights = sum(each.weight for each in policy.classes)

    def rate(slots: float) -> float | None:
        return None if service_time is None else slots / service_time

    def one(name: str, weight: float, reserved: int, queue: int | None) -> ClassFigures:
        shared = reserved + free * weight / weights
        most = policy.most_cost(name)
        places = policy.queue_length if queue is None else min(queue, policy.queue_length)
        return ClassFigures(
            name, weight, reserved, shared, most, places, rate(reserved), rate(shared), rate(most)
        )

    return tuple(one(each.name, each.weight, each.reserved, each.queue_length) for each in policy.classes)


def _first(policies: Iterable[ServerPolicy], policy: ServerPolicy, *, before: int) -> int | None:
    number = next(number for number, each in enumerate(policies) if each is policy)
    return number if number < before else None
