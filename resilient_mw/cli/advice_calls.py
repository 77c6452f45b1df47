"""What is likely to be wrong with the policies of a dependency, each with what to change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from resilient_mw.cli.explained_calls import LAYERS, DependencyReport
from resilient_mw.cli.facts import Question
from resilient_mw.cli.warn import Warn
from resilient_mw.cli.words import number, seconds


def dependency_advice(dependency: DependencyReport, question: Question) -> Iterator[Warn]:
    """Yield the warnings about one dependency."""
    yield from _retries(dependency)
    yield from _breaker(dependency)
    yield from _waits(dependency)
    yield from _throttle(dependency, question)


def _retries(dependency: DependencyReport) -> Iterator[Warn]:
    name, told = dependency.name, dependency.policies
    if dependency.attempts > 1 and not dependency.owned and (dependency.trusted or told.insists):
        why = "insist=True has it retry although a layer above does" if told.insists else "ownership=None"
        change = "Leave insist out" if told.insists else "Leave ownership at its default"
        yield Warn(
            "retries_multiply",
            None,
            name,
            f"retries of {name!r} multiply with those of other layers ({why}): {LAYERS} layers like this load the last one "
            f"x{number(dependency.layered)} at worst. {change}, or set retry=None in all layers but one",
        )
    keyless = sorted(set(told.unsafe_methods) - set(told.key_methods))
    if dependency.attempts > 1 and keyless:
        yield Warn(
            "repeated_without_key",
            None,
            name,
            f"unsafe_methods has {', '.join(keyless)} to {name!r} repeated after a lost answer, without a key by which it could "
            "tell: the work may be done twice. Set idempotency_key if the dependency knows such keys",
        )
    if told.hedge is not None and not told.hedge.budgeted:
        yield Warn(
            "hedge_without_budget",
            None,
            name,
            f"no budget bounds the hedges of {name!r}: when all its answers become slow, its load grows to x"
            f"{number(dependency.amplification)}, which makes them slower. Set a RetryPolicy with a budget_ratio",
        )


def _breaker(dependency: DependencyReport) -> Iterator[Warn]:
    name, told = dependency.name, dependency.policies
    breaker, attempt = told.breaker, told.attempt
    if breaker is None:
        return
    if attempt is None and breaker.slow_after is None:
        yield Warn(
            "breaker_blind_to_slowness",
            None,
            name,
            f"the circuit of {name!r} never opens on slow answers: an attempt ends with its caller's budget only, which is "
            "nobody's fault. Set a timeout, or slow_after of the breaker",
        )
    if attempt is not None and breaker.slow_after is not None and breaker.slow_after >= attempt:
        yield Warn(
            "slow_after_timeout",
            None,
            name,
            f"slow_after={number(breaker.slow_after)} of the breaker of {name!r} is never reached: an attempt is cut off after "
            f"{seconds(attempt)}, and counts as failed. Set it below, or leave it out",
        )


def _waits(dependency: DependencyReport) -> Iterator[Warn]:
    wait = dependency.policies.bulkhead_wait
    calls = [each for each in (dependency.longest_in_request, dependency.longest_call) if each is not None]
    if wait is not None and calls and wait >= min(calls):
        yield Warn(
            "bulkhead_wait_too_long",
            None,
            dependency.name,
            f"an attempt at {dependency.name!r} may wait {seconds(wait)} for a slot, but a call is over after "
            f"{seconds(min(calls))}: who waits that long is never sent. Set max_wait well below",
        )


def _throttle(dependency: DependencyReport, question: Question) -> Iterator[Warn]:
    least = dependency.policies.throttled_from
    if least is None or question.rate is None or question.rate / question.workers > least:
        return
    yield Warn(
        "throttle_never",
        None,
        dependency.name,
        f"the throttle of {dependency.name!r} never refuses: one process makes {number(question.rate / question.workers)} calls a "
        f"second at this rate, and per_second={number(least)} are always sent. Lower per_second, or leave the throttle out",
    )
