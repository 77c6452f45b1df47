"""What is likely to be wrong with a policy of idempotency keys, each with what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from resilient_mw.cli.explained_keys import OFF, REQUIRED, KeysReport, KeysRow
from resilient_mw.cli.facts import KeysFacts, Question
from resilient_mw.cli.treatments import applies
from resilient_mw.cli.warn import Warn
from resilient_mw.cli.words import counted, seconds
from resilient_mw.core.routes import RouteRule

SHORTEST_KEEP = 3_600.0
"""Seconds after which job queues deliver again what nobody acknowledged, such as Celery over Redis."""


def keys_advice(facts: KeysFacts, report: KeysReport, question: Question) -> Iterator[Warn]:
    """Yield the warnings about one middleware of idempotency keys."""
    yield from _store(report, question)
    if facts.around:
        yield Warn(
            "keys_around_admission",
            None,
            report.header,
            "the IdempotencyMiddleware is around the ResilienceMiddleware: the store is asked for requests that are refused "
            "afterwards, and waits for it count against no deadline. Put it inside",
        )
    joined = any(row.wait == "join" for row in report.routes)
    if (
        report.protocol == "wsgi"
        and joined
        and question.threads is not None
        and report.max_waiting >= question.threads
    ):
        yield Warn(
            "repeats_take_threads",
            None,
            "max_waiting",
            f"max_waiting={report.max_waiting} repeats may wait for a first answer, each in a thread, and there are "
            f"--threads {question.threads}: repeats alone can take them all. Set max_waiting to what is left of them beside the "
            "limit and the queue, or wait='conflict'",
        )
    for row in report.routes:
        yield from _row(row)
    for rule in facts.policy.routes:
        like = RouteRule(rule.path, methods=tuple(rule.methods))
        if facts.routes is not None and not any(applies(like, route) for route in facts.routes):
            yield Warn(
                "keys_rule_without_route",
                None,
                rule.path,
                f"IdempotencyRoute({rule.path!r}) matches no route of the application: correct its path or methods, or remove it",
            )


def _store(report: KeysReport, question: Question) -> Iterator[Warn]:
    in_use = any(row.use != OFF for row in report.routes)
    if in_use and report.shared == "process" and max(question.workers, question.machines) > 1:
        there_are = counted(question.workers, "process", "processes")
        if question.machines > 1:
            there_are = counted(question.machines, "machine")
        yield Warn(
            "keys_in_each_process",
            None,
            report.store,
            f"{report.store} keeps records in memory, and there are {there_are}: a repeat that reaches another one runs "
            "again. Use a store that all of them see: PostgreSQL, Redis, or a SQLite file for one machine",
        )
    elif in_use and report.shared == "machine" and question.machines > 1:
        yield Warn(
            "keys_on_each_machine",
            None,
            report.store,
            f"{report.store} is a file of one machine, and there are {question.machines}: a repeat that reaches another one runs "
            "again. Use PostgreSQL or Redis; a file on a network drive is no way out, since its locks do not hold",
        )


def _row(row: KeysRow) -> Iterator[Warn]:
    if row.use == OFF or row.lease is None or row.keep is None:
        return
    what = f"{' '.join(row.methods)} {row.template!r}"
    if row.budget is not None and row.lease < row.budget and row.on_unknown != "refuse":
        yield Warn(
            "lease_below_deadline",
            None,
            row.template,
            f"{what} may run for {seconds(row.budget)}, and counts as dead after lease={row.lease:g} without a heartbeat: a process "
            f"that is held up so long works on while on_unknown ({row.on_unknown}) lets another attempt begin. Set lease above "
            f"{seconds(row.budget)}, or give the fence to whatever can refuse the older attempt",
        )
    if row.keep < SHORTEST_KEEP:
        yield Warn(
            "keep_too_short",
            None,
            row.template,
            f"{what} forgets a key after keep={row.keep:g}: a client that repeats later, such as a job that is delivered again after "
            f"an hour, does the work twice. Set keep to the longest time after which anybody repeats, and not below "
            f"{SHORTEST_KEEP:g}",
        )
    if row.use == REQUIRED and row.store_down == "open":
        yield Warn(
            "required_key_unprotected",
            None,
            row.template,
            f"{what} needs a key, and with store_down='open' the key is not looked at while the store is away: a repeat then does "
            "the work twice. Set store_down='closed' (503), or do not ask for the key",
        )
