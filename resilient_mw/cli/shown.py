"""The report as text for people, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from resilient_mw.cli.explained import GIVEN, AppReport, Figures
from resilient_mw.cli.explained_calls import DependencyReport
from resilient_mw.cli.explained_settings import shown_settings
from resilient_mw.cli.shown_keys import keys_as_text
from resilient_mw.cli.shown_policies import policies
from resilient_mw.cli.treatments import DEFAULT, Sources, Treatment
from resilient_mw.cli.warn import Warn
from resilient_mw.cli.words import counted, number, seconds, table
from resilient_mw.core.routes import UNMATCHED
from resilient_mw.core.streams import BODY, HEAD

FORMAT = 1
"""The version of the JSON form: fields may be added under the same number, and none changes."""
IMPLIED = {"HEAD", "OPTIONS"}
"""Methods that frameworks add to others by themselves; the text leaves them out."""


def as_json(figures: Figures, warnings: Sequence[Warn]) -> dict[str, Any]:
    """Return the report as plain values, in a stable order."""
    content: dict[str, Any] = {
        "format": FORMAT,
        **_rounded(asdict(figures)),
        "warnings": [asdict(warning) for warning in warnings],
    }
    return content


def as_text(figures: Figures, warnings: Sequence[Warn]) -> Iterator[str]:
    """Yield the lines of the report."""
    if figures.disabled:
        yield "RESILIENT_MW_DISABLED: every request passes unguarded; what follows is what the policies say"
        yield ""
    for app in figures.applications:
        yield from _application(app, figures)
        yield ""
    for keys in figures.keys:
        yield from keys_as_text(keys)
        yield ""
    if figures.dependencies:
        yield from _dependencies(figures)
        yield ""
    if not warnings:
        yield "no warnings"
        return
    yield counted(len(warnings), "warning")
    for warning in warnings:
        about = (
            ""
            if warning.application is None or len(figures.applications) == 1
            else f"{warning.application}: "
        )
        yield f"  {warning.code}: {about}{warning.text}"


def _application(app: AppReport, figures: Figures) -> Iterator[str]:
    yield f"application {app.name} ({app.protocol.upper()})"
    if app.shares_state_with is not None:
        yield "  shares limit and queue with an application above: both have the same policy object"
    yield ""
    if not app.routes_known:
        yield "  no route source knows the application; these are the rules of the policy"
    yield from table(
        ("methods", "route", "class", "cost", "deadline", "min..max", "waits", "from"),
        [_route(row) for row in app.routes if not _is_implied(row, app.routes)],
    )
    yield f"  exempt paths (GET, HEAD): {', '.join(app.exempt_paths) or 'none'}"
    if app.websockets:
        bound = (
            "pass untouched" if app.websocket_limit is None else f"at most {app.websocket_limit} open at once"
        )
        yield f"  websockets ({bound}): {', '.join(app.websockets)}"
    yield from _streams(app)
    yield ""
    yield from _meaning(app, figures)


def _streams(app: AppReport) -> Iterator[str]:
    rows = [
        row
        for row in app.routes
        if (row.slot, row.deadline_covers) != (BODY, BODY) and not _is_implied(row, app.routes)
    ]
    if any(row.slot == HEAD for row in rows):
        yield f"  streams (at most {app.stream_limit} open at once)"
    elif rows:
        yield "  streams"
    for row in rows:
        covered = f"gaps of {seconds(row.idle)}" if row.idle is not None else row.deadline_covers
        methods, template, *_ = _route(row)
        yield f"    {methods} {template}: slot for the {row.slot}, deadline for the {covered}"


def _meaning(app: AppReport, figures: Figures) -> Iterator[str]:
    bound = "max_wait"
    if app.bound_by != bound:
        bound = f"wait_share {number(app.wait_share)} of {seconds(app.deadline_default)}"
    if app.shadow:
        yield f"  shadow         {', '.join(app.shadow)}: counted and told, not enforced"
    yield f"  limit          {counted(app.slots, 'slot')}, {app.exempt_limit} more for exempt requests"
    shortened = "" if app.queue == app.queue_asked else f" of {app.queue_asked} asked for: threads are few"
    yield (
        f"  queue          {counted(app.queue, 'place')}{shortened}, each for {seconds(app.longest_wait)} at most ({bound})"
    )
    if app.tenant is not None:
        yield f"  tenants        by {app.tenant}, in turns"
    if app.quotas:
        away = "" if app.quota_store_away is None else f", while it is away: {app.quota_store_away}"
        yield f"  quotas         {', '.join(app.quotas)} (each tenant; counted in {app.quota_store}{away})"
    if app.service_time is None or app.rate is None or app.drain is None or app.rate_of_all is None:
        yield "  rate           unknown: say --service-time SECONDS, what a request typically takes"
    else:
        source = "as given" if app.service_time_from == GIVEN else "as observed here"
        yield f"  service time   {seconds(app.service_time)} ({source})"
        yield f"  rate           the limit means {number(app.rate)} requests a second of cost 1"
        yield f"  full queue     has got its slots after {seconds(app.drain)}"
    workers = f"{counted(figures.workers, 'process', 'processes')}: {counted(app.slots_of_all, 'slot')}"
    per_second = "" if app.rate_of_all is None else f", {number(app.rate_of_all)} requests a second"
    each = ", because each process has a limit of its own" if figures.workers > 1 else ""
    yield f"  together       {workers}{per_second}{each}"
    yield ""
    yield from table(
        ("class", "weight", "reserved", "while all wait", "alone", "queue"),
        [
            (
                each.name,
                number(each.weight),
                _slots(each.reserved, each.reserved_rate),
                _slots(each.shared_slots, each.shared_rate),
                _slots(each.most_slots, each.most_rate),
                str(each.queue),
            )
            for each in app.classes
        ],
    )
    given = shown_settings(app.settings)
    if given:
        yield ""
        yield from table(("setting", "value", "from"), given)


def _slots(slots: float, rate: float | None) -> str:
    return f"{number(slots)} slots" if rate is None else f"{number(slots)} slots = {number(rate)}/s"


def _route(row: Treatment) -> tuple[str, ...]:
    methods = "any"
    if row.methods is not None:
        methods = " ".join(method for method in row.methods if method not in IMPLIED) or " ".join(row.methods)
    template = "everything else" if row.template == UNMATCHED else row.template
    return (
        methods,
        (template if row.where is None else f"{template} (only {row.where})")
        + ("" if row.needs is None else f" (needs {row.needs})"),
        row.priority,
        _cost(row),
        seconds(row.budget),
        f"{number(row.deadline_minimum)}..{seconds(row.deadline_maximum)}",
        seconds(row.longest_wait, none="-"),
        told_by(row.sources),
    )


def _cost(row: Treatment) -> str:
    if row.exempt:
        return "-"
    return str(row.cost) if row.cost_function is None else row.cost_function


def _is_implied(row: Treatment, rows: Sequence[Treatment]) -> bool:
    """Return whether a row says only how methods are treated that the framework added beside others."""
    if row.methods is None or not IMPLIED.issuperset(row.methods):
        return False
    return any(other.template == row.template and other is not row for other in rows)


def told_by(sources: Sources) -> str:
    """Return what decides class, cost and deadline of some requests: `mark: class, deadline`."""
    said: dict[str, list[str]] = {}
    for field, source in (
        ("class", sources.priority),
        ("cost", sources.cost),
        ("deadline", sources.deadline),
    ):
        if source != DEFAULT:
            said.setdefault(source, []).append(field)
    return "; ".join(f"{source}: {', '.join(fields)}" for source, fields in said.items()) or DEFAULT


def _dependencies(figures: Figures) -> Iterator[str]:
    yield "dependencies of this process"
    yield ""
    for each in figures.dependencies:
        yield f"  {each.name}: {', '.join(each.match) or 'guarded functions'}"
        yield from _dependency(each, figures)
    worst = max(figures.dependencies, key=lambda each: each.amplification)
    yield f"  worst amplification: x{number(worst.amplification)} ({worst.name}); it multiplies with every layer that retries"


def _dependency(each: DependencyReport, figures: Figures) -> Iterator[str]:
    yield f"    attempt        {seconds(each.timeout)}, connecting {seconds(each.connect_timeout)}"
    retries = f"{counted(each.attempts, 'attempt')}, at worst x{number(each.amplification)}"
    if each.attempts > 1 and each.budget_ratio is None:
        retries += ": no retry budget"
    elif each.attempts > 1 and each.budget_per_second is not None:
        retries += f": retries are at most {number((each.budget_ratio or 0) * 100)} % of the calls"
        if each.budget_per_second:
            retries += f" and {number(each.budget_per_second)} a second"
    yield f"    call           {retries}"
    yield f"    takes at most  {seconds(each.longest_in_request)} in a request, {seconds(each.longest_call)} outside"
    if each.bulkhead is not None:
        together = "" if figures.workers == 1 else f", {each.bulkhead_of_all} in {figures.workers} processes"
        yield f"    bulkhead       {each.bulkhead} at once{together}"
    if each.minimum_calls is not None:
        after = "" if each.judges_after is None else f", that is {seconds(each.judges_after)} at this rate"
        yield f"    breaker        judges after {counted(each.minimum_calls, 'outcome')}{after}"
    yield from policies(each)


def _rounded(value: Any) -> Any:
    """Return plain values with times and rates rounded, so that no noise of the last digits is in the output."""
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value
