"""Where each value of a policy comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.cli.words import function_name
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.quotas import Quota
from resilient_mw.core.routes import RouteRule

LONGEST = 60
"""Characters of a value in the text."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One field of a policy.

    Attributes:
        field: its name.
        value: as text for people.
        source: `default`, `code`, the name of a file or of a variable, or `keyword of the middleware`.
    """

    field: str
    value: str
    source: str


def settings(policy: ServerPolicy, sources: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return the fields of a policy in their order."""
    return tuple(Setting(field, _text(getattr(policy, field)), source) for field, source in sources.items())


def shown_settings(told: Iterable[Setting]) -> list[tuple[str, str, str]]:
    """Return the rows of a table: what is not the default."""
    return [
        (
            each.field,
            each.value if len(each.value) <= LONGEST else f"{each.value[: LONGEST - 1]}…",
            each.source,
        )
        for each in told
        if each.source != "default"
    ]


def _text(value: object) -> str:
    if isinstance(value, PriorityClass | Quota):
        return value.name
    if isinstance(value, RouteRule):
        return value.path
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence | frozenset | set):
        each = [_text(one) for one in value]
        return ", ".join(each if isinstance(value, Sequence) else sorted(each)) or "none"
    return function_name(value)
