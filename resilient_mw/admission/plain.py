"""Policies as plain data: what a TOML table, an environment variable or a framework's settings say, as fields.

Conversion is all that happens here: text that is no number stays text, and the check of the policy names the field and
what is allowed. Which fields there are, and of what kind, is read from `ServerPolicy` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any, NamedTuple

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overload_policy import Band, OverloadPolicy, Signal
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.quotas import Quota
from resilient_mw.core.routes import RouteRule

FIELDS = {each.name: frozenset(str(each.type).split(" | ")) for each in fields(ServerPolicy) if each.init}
"""The fields of a policy, each with the kinds of values that it takes, as they are annotated."""

NONE = "none"
"""How plain data says None, which TOML has not: no bound, no such header, nothing measured. For a list: an empty one."""
WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
"""How text says True and False."""

LISTS = frozenset({"Sequence[str]", "Collection[str]"})
TABLES: Mapping[str, Callable[..., object]] = {"classes": PriorityClass, "routes": RouteRule, "quotas": Quota}
"""Fields that hold lists of tables, and what each table becomes."""
EXAMPLES: Mapping[str, str] = {
    "classes": '[{name = "critical", weight = 8}, {name = "normal"}]',
    "routes": '[{path = "/reports/*", priority = "sheddable"}]',
    "quotas": '[{rate = "20/second"}]',
    "overload": '{memory = "none"}',
}
"""What is written as TOML in a variable, and how."""
SIMPLE = frozenset({"int", "float", "bool", "str"}) | LISTS


class Given(NamedTuple):
    """One value, and who gave it.

    Attributes:
        value: as the policy takes it.
        source: a name for people: `RESILIENT_MW_LIMIT`, `resilient.toml`.
    """

    value: object
    source: str


def in_code_only(field: str) -> bool:
    """Return whether a field takes nothing that can be written down as data: functions, stores."""
    return field not in TABLES and field != "overload" and SIMPLE.isdisjoint(FIELDS[field])


def from_plain(values: Mapping[str, object], source_of: Callable[[str], str]) -> dict[str, Given]:
    """Return what a table says.

    Args:
        values: by field; lists of tables for `classes`, `routes` and `quotas`, a table for `overload`. Objects that the
            policy takes may stand in their place.
        source_of: the name of what says it, by field.

    Raises:
        ValueError: naming the source, and the field or the key of a table that does not exist or is wrong.
    """
    found: dict[str, Given] = {}
    for field, value in values.items():
        source = source_of(field)
        check_known(field, FIELDS, source)
        found[field] = Given(_value(field, value, source), source)
    return found


def from_text(field: str, text: str, source: str) -> Given:
    """Return what text says, such as that of an environment variable.

    Args:
        field: of the policy.
        text: numbers and names as they are; `true` and `false`; names separated by commas; TOML where the field holds tables.
        source: the name of what says it.

    Raises:
        ValueError: naming the source and the field.
    """
    text = text.strip()
    if (field in TABLES or field == "overload") and text.lower() != NONE:
        return Given(_value(field, _toml_value(field, text, source), source), source)
    return Given(_value(field, text, source), source)


def check_known(name: str, known: Iterable[str], source: str, what: str = "setting") -> None:
    """Check a name.

    Raises:
        ValueError: there is no such name; the text says which one is like it.
    """
    known = sorted(known)
    if name in known:
        return
    from difflib import get_close_matches  # only loaded when something is wrong

    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    raise ValueError(f"{source}: {name!r} is no {what}: {hint}")


def with_given(policy: ServerPolicy, given: Mapping[str, Given]) -> ServerPolicy:
    """Return a policy that differs in what was given.

    Raises:
        ValueError: a value is not allowed; the text begins with its source.
    """
    try:
        return policy.with_changes({field: each.value for field, each in given.items()})
    except ValueError as error:
        text = str(error)
        named = [each.source for field, each in given.items() if re.search(rf"\b{field}\b", text)]
        sources = dict.fromkeys(named or [each.source for each in given.values()])
        raise ValueError(f"{', '.join(sources)}: {text}") from error


def _value(field: str, value: object, source: str) -> object:
    if in_code_only(field):
        raise ValueError(f"{source}: {field} can be given in code only: it is no plain value")
    if field == "overload":
        return _overload(value, f"{source}: overload")
    if field in TABLES:
        return _tables(field, value, source)
    return _simple(FIELDS[field], value)


def _simple(kinds: frozenset[str], value: object) -> object:
    """Return a value of one of some kinds; what is of none of them as it is, for the policy to refuse."""
    if not isinstance(value, str):
        return value
    if value.lower() == NONE and "None" in kinds:
        return None
    if value.lower() == NONE and kinds & LISTS:
        return ()
    if "bool" in kinds and value.lower() in WORDS:
        return WORDS[value.lower()]
    for kind, convert in (("int", int), ("float", float)):
        if kind in kinds:
            try:
                return convert(value)
            except ValueError:
                pass
    if kinds & LISTS:
        return tuple(part for each in value.split(",") if (part := each.strip()))
    return value


def _tables(field: str, value: object, source: str) -> object:
    if isinstance(value, str) and value.lower() == NONE:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{source}: {field}={value!r} is not allowed: it must be a list of tables")
    return tuple(
        _made(TABLES[field], each, f"{source}: {field}[{place}]") if isinstance(each, Mapping) else each
        for place, each in enumerate(value)
    )


def _overload(value: object, where: str) -> object:
    if isinstance(value, str) and value.lower() == NONE:
        return None
    if not isinstance(value, Mapping):
        return value
    table: dict[str, object] = {}
    for key, each in value.items():
        if key in set(Signal) and isinstance(each, Mapping):
            table[key] = _made(Band, each, f"{where}.{key}")
        else:
            table[key] = None if _says_none(each) else each
    return _made(OverloadPolicy, table, where)


def _made(kind: Callable[..., object], table: Mapping[str, Any], where: str) -> object:
    parameters = signature(kind).parameters
    for key in table:
        check_known(key, parameters, where, "key")
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in table:
            raise ValueError(f"{where}: the key {name!r} is missing")
    values = {
        name: None if parameters[name].default is None and _says_none(value) else value
        for name, value in table.items()
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _says_none(value: object) -> bool:
    return isinstance(value, str) and value.lower() == NONE


def _toml_value(field: str, text: str, source: str) -> object:
    import tomllib  # only loaded by those who write it

    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"{source}: {field}={text!r} is not allowed: it must be TOML, for instance {EXAMPLES[field]} ({error})"
        ) from error
    if document.keys() != {"value"}:
        raise ValueError(f"{source}: {field}={text!r} is not allowed: it must be one TOML value")
    return document["value"]
