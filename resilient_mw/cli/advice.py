"""What is likely to be wrong with a policy, each with what to change. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from resilient_mw.admission.routing import WEBSOCKET_METHOD
from resilient_mw.cli.advice_calls import dependency_advice
from resilient_mw.cli.advice_keys import keys_advice
from resilient_mw.cli.explained import GIVEN, AppReport, Figures, with_threads
from resilient_mw.cli.explained_calls import DependencyReport
from resilient_mw.cli.facts import THREADS, AppFacts, Facts, Question, RouteFact
from resilient_mw.cli.treatments import DEFAULT, Treatment, applies, covers
from resilient_mw.cli.warn import Warn
from resilient_mw.cli.words import counted, number, seconds
from resilient_mw.core.routes import RouteRule

HEALTH = frozenset({
    "health", "healthz", "healthy", "healthcheck", "health-check", "health_check", "livez", "liveness", "readyz",
    "readiness", "heartbeat",
})  # fmt: skip
"""Last segments of a path that are asked by load balancers and orchestrators."""
HEALTH_ALONE = frozenset({"ping", "status", "live", "ready", "alive", "up"})
"""The same, for paths of one segment or below a health segment only: `/orders/status` is business."""

OPEN_TIMES = 10
"""A breaker that needs longer than so many of its open times to see `minimum_calls` opens when the fault is over."""


def advice(facts: Facts, figures: Figures, question: Question) -> tuple[Warn, ...]:
    """Return all warnings: by application in the order in which they were found, then keys, marks and dependencies."""
    found: list[Warn] = []
    for app, report in zip(facts.apps, figures.applications, strict=True):
        if report.shares_state_with is None:
            found += _queue(report)
            found += _capacity(report, question)
        found += _threads(app, report, question)
        found += _deadline(report)
        found += _rules(app)
        for row in report.routes:
            found += _row(report, row)
    for keys, keys_report in zip(facts.keys, figures.keys, strict=True):
        found += keys_advice(keys, keys_report, question)
    for name, reason in sorted((facts.lost_marks or {}).items()):
        found.append(Warn("mark_without_route", None, name, f"the mark on {name} has no effect: {reason}"))
    for dependency in figures.dependencies:
        found += _breaker(dependency)
        found += dependency_advice(dependency, question)
    return tuple(found)


def _queue(app: AppReport) -> Iterator[Warn]:
    if app.drain is None or app.rate is None or app.drain <= app.longest_wait:
        return
    places = math.floor(app.longest_wait * app.rate + 1e-9)
    bound = f"max_wait={app.max_wait:g}"
    raised = "max_wait"
    if app.bound_by == "wait_share":
        bound = f"wait_share={app.wait_share:g} of the default deadline of {seconds(app.deadline_default)}"
        raised = "wait_share or deadline_default"
    yield Warn(
        "queue_too_long",
        app.name,
        "queue",
        f"queue={app.queue} takes {seconds(app.drain)} to get its slots, but nobody waits longer than "
        f"{seconds(app.longest_wait)} ({bound}): who stands behind place {places} waits in vain. Set queue={places}, or "
        f"raise {raised}",
    )


def _capacity(app: AppReport, question: Question) -> Iterator[Warn]:
    if question.rate is None or app.rate_of_all is None or question.rate <= app.rate_of_all:
        return
    needed = math.ceil(question.rate / app.rate_of_all * app.slots - 1e-9)
    yield Warn(
        "limit_below_rate",
        app.name,
        "limit",
        f"{number(question.rate)} requests a second are more than the {number(app.rate_of_all)} that limit={app.slots} means "
        f"in {counted(question.workers, 'process', 'processes')}: the rest is refused. Set limit={needed} "
        "if the machine and its dependencies can do that, or add processes",
    )


def _threads(facts: AppFacts, app: AppReport, question: Question) -> Iterator[Warn]:
    if app.protocol == "wsgi":
        policy = with_threads(facts, question)
        needs = policy.thread_sum
        source = "the policy" if question.threads is None else "--threads"
        complaint = None if needs is None else needs.complaint(source, fitted=policy.fit_queue)
        if complaint is not None:
            yield Warn("threads_below_limit", app.name, "limit", complaint)
        return
    sync = [row for row in app.routes if row.threaded and not row.exempt]
    if not sync:
        return
    threads = THREADS if question.threads is None else question.threads
    most = app.slots // min(row.cost for row in sync)
    if most > threads:
        known = "anyio's default" if question.threads is None else "--threads"
        yield Warn(
            "threads_below_limit",
            app.name,
            "limit",
            f"limit={app.slots} admits {counted(most, 'request')} to sync endpoints such as {sync[0].template!r}, but they "
            f"run in {counted(threads, 'thread')} a process ({known}): the rest waits unseen in the pool's own queue. Set "
            f"limit={threads}, raise the pool's number of threads and say --threads, or make the endpoints async",
        )


def _rules(app: AppFacts) -> Iterator[Warn]:
    rules = app.policy.routes
    sockets = [RouteFact(template, frozenset({WEBSOCKET_METHOD})) for template in app.websockets]
    for place, rule in enumerate(rules):
        before = next((each for each in rules[:place] if _hides(each, rule)), None)
        if before is not None:
            yield Warn(
                "rule_without_route",
                app.policy.name,
                repr(rule),
                f"{rule!r} never decides: {before!r} comes first and covers it. Put it before that one, or remove it",
            )
        elif app.routes is not None and not any(applies(rule, route) for route in (*app.routes, *sockets)):
            yield Warn(
                "rule_without_route",
                app.policy.name,
                repr(rule),
                f"{rule!r} matches no route of the application: correct its path or methods, or remove it",
            )


def _hides(earlier: RouteRule, later: RouteRule) -> bool:
    if earlier.methods and not (later.methods and later.methods <= earlier.methods):
        return False
    return earlier.path == later.path or covers(earlier.path, later.path)


def _row(app: AppReport, row: Treatment) -> Iterator[Warn]:
    if row.problem is not None:
        yield Warn(
            "rule_against_mark",
            app.name,
            row.template,
            f"{row.problem}. Until then such requests pass unguarded",
        )
    # Of any method, on an exempt path: those that are not exempt write.
    reading = row.template not in app.exempt_paths if row.methods is None else "GET" in row.methods
    if reading and not row.exempt and row.where is None and is_health_path(row.template):
        yield Warn(
            "health_not_exempt",
            app.name,
            row.template,
            f"{row.template!r} looks like a health check and is {row.priority}: under load it waits and is refused, and a "
            "healthy instance is taken away. Add the path to exempt_paths, or mark the endpoint with @exempt",
        )
    typical = row.observed
    if app.service_time_from == GIVEN and not row.exempt:
        typical = (
            None if row.sources.deadline == DEFAULT else app.service_time
        )  # _deadline speaks of the default
    if typical is not None and row.budget < typical:
        yield _too_short(
            app,
            row.template,
            repr(row.template),
            budget=row.budget,
            typical=typical,
            source=row.sources.deadline,
        )


def _deadline(app: AppReport) -> Iterator[Warn]:
    """Judge the default once, and not for every route that has it."""
    own = [row for row in app.routes if row.sources.deadline == DEFAULT and not row.exempt]
    if own and app.service_time_from == GIVEN and app.service_time is not None:
        budget = own[0].budget
        if budget < app.service_time:
            what = "what has no deadline of its own"
            yield _too_short(
                app,
                "deadline_default",
                what,
                budget=budget,
                typical=app.service_time,
                source="deadline_default",
            )


def _too_short(
    app: AppReport, subject: str, what: str, *, budget: float, typical: float, source: str
) -> Warn:
    return Warn(
        "deadline_too_short",
        app.name,
        subject,
        f"{what} has {seconds(budget)} unless the caller says otherwise, and a request takes {seconds(typical)}: most end "
        f"in 504. Raise the deadline above that (it comes from: {source}), or do less in such requests",
    )


def is_health_path(template: str) -> bool:
    """Return whether a route looks like one that load balancers and orchestrators ask."""
    if "{" in template or "<" in template or "*" in template:
        return False
    segments = [segment.lower() for segment in template.split("/") if segment]
    if not segments:
        return False
    if segments[-1] in HEALTH:
        return True
    return segments[-1] in HEALTH_ALONE and (len(segments) == 1 or segments[-2] in HEALTH)


def _breaker(dependency: DependencyReport) -> Iterator[Warn]:
    judges_after, open_for, calls = dependency.judges_after, dependency.open_for, dependency.minimum_calls
    if judges_after is None or open_for is None or calls is None or judges_after <= OPEN_TIMES * open_for:
        return
    reachable = math.floor(OPEN_TIMES * open_for * calls / judges_after + 1e-9)
    change = (
        f"Set minimum_calls={reachable}" if reachable >= 2 else "Set breaker=None and rely on the timeout"
    )
    yield Warn(
        "breaker_too_quiet",
        None,
        dependency.name,
        f"one process needs {seconds(judges_after)} to see the minimum_calls={calls} of {dependency.name!r}, more than "
        f"{OPEN_TIMES} times its open_for of {seconds(open_for)}: the fault is over before the circuit can open. {change}",
    )
