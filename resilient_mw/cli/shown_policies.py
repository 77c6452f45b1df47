"""The policies of a dependency as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from resilient_mw.cli.explained_calls import LAYERS, DependencyReport
from resilient_mw.cli.explained_policies import BreakerReport, FallbackReport, HedgeReport, PoliciesReport
from resilient_mw.cli.words import counted, number, seconds


def policies(each: DependencyReport) -> Iterator[str]:
    """Yield the lines about what a dependency has beside its timeouts; none about what it has not."""
    told = each.policies
    if each.attempts > 1:
        yield _row("retry owner", _owner(each))
    yield from _keys(told)
    if told.measured is not None:
        measured = told.measured
        after = (
            "" if measured.acts_after is None else f", that is {seconds(measured.acts_after)} at this rate"
        )
        yield _row(
            "measured",
            f"an attempt gets {number(measured.floor)}..{seconds(measured.cap)}, cutting off "
            f"{number(measured.false_timeouts * 100)} % in vain; after {counted(measured.samples, 'attempt')}{after}",
        )
    if told.hedge is not None:
        yield _row("hedge", _hedge(told.hedge))
    yield from _load(told)
    if told.breaker is not None:
        yield from _breaker(told.breaker)
    yield from _groups(told)
    if told.fallback is not None:
        yield _row("fallback", _fallback(told.fallback))


def _owner(each: DependencyReport) -> str:
    layers = f"{LAYERS} layers like this load the last one x{number(each.layered)} at worst"
    if each.owned:
        return f"the dependency is told not to retry: {layers}"
    why = "it retries although a layer above does" if each.policies.insists else "the dependency is not told"
    return f"{why}: {layers}"


def _keys(told: PoliciesReport) -> Iterator[str]:
    if told.key_header is not None:
        yield _row(
            "key", f"{told.key_header} for {', '.join(told.key_methods)}: one for all attempts of a call"
        )
    if told.unsafe_methods:
        yield _row(
            "repeated", f"{', '.join(told.unsafe_methods)} too, although the dependency may have acted"
        )


def _load(told: PoliciesReport) -> Iterator[str]:
    if told.bulkhead_wait is not None:
        yield _row(
            "waits", f"{told.bulkhead_queue} more at once, each attempt {seconds(told.bulkhead_wait)} at most"
        )
    if told.adaptive_floor is not None:
        yield _row("adaptive", f"down to {told.adaptive_floor} at once, as measured")
    if told.most_throttled is not None and told.throttled_from is not None:
        yield _row(
            "throttle",
            f"refuses up to {number(told.most_throttled * 100)} % here, from "
            f"{counted_calls(told.throttled_from)} a second of one process",
        )


def counted_calls(rate: float) -> str:
    """Return a rate of calls, such as `1 call`."""
    return f"{number(rate)} {'call' if rate == 1 else 'calls'}"


def _breaker(told: BreakerReport) -> Iterator[str]:
    looked_at = (
        f"the last {counted(told.window, 'outcome')}"
        if told.window is not None
        else f"the last {seconds(told.window_seconds)}"
    )
    causes = [f"{number(told.failure_ratio * 100)} % of {looked_at} failed"]
    if told.slow_after is not None and told.slow_ratio is not None:
        causes.append(f"{number(told.slow_ratio * 100)} % took {seconds(told.slow_after)}")
    if told.consecutive_failures is not None:
        causes.append(f"{told.consecutive_failures} failed in a row")
    yield _row("opens", f"when {', or '.join(causes)}" + (" (shadow: only counted)" if told.shadow else ""))
    back = f", then back by degrees in {seconds(told.ramp)}" if told.ramp else ""
    yield _row("stays open", f"{seconds(told.longest_open)} at most before it is tried{back}")


def _groups(told: PoliciesReport) -> Iterator[str]:
    kinds = list(told.groups)
    if told.group_key is not None:
        kinds.append(f"one for each {told.group_key}")
    if kinds:
        yield _row("groups", f"{', '.join(kinds)}: at most {counted(told.states, 'state')} in each process")


def _hedge(told: HedgeReport) -> str:
    after = seconds(told.delay)
    if told.quantile is not None and told.samples is not None:
        after = f"the time in which {number(told.quantile * 100)} % answer; from {counted(told.samples, 'answer')} on"
    budget = "" if told.budgeted else "; no budget bounds them"
    return f"{told.hedges} at most beside the attempts of a call, each after {after}{budget}"


def _fallback(told: FallbackReport) -> str:
    kinds = []
    if told.stale_for is not None and told.max_bytes is not None:
        memory = f"{number(told.max_bytes / 1_048_576)} MiB in each process"
        kinds.append(f"the last good answer, up to {seconds(told.stale_for)} old ({memory})")
    kinds += [f"a {kind}" for kind in told.kinds if kind != "stale"]
    return f"{', then '.join(kinds)}; never for writes"


def _row(name: str, text: str) -> str:
    return f"    {name:<15}{text}"
