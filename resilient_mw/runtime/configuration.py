"""Where the values of a policy come from: code, a TOML file, environment variables.

The order, the later going before the earlier:

    1. the defaults of `ServerPolicy`
    2. what the code gives to `load_policy()`
    3. a TOML file
    4. environment variables, `RESILIENT_MW_LIMIT=20`
    5. what the code gives to a middleware as keywords

So what the code gives to `load_policy()` is a proposal that operators may change, and what it gives to a middleware stands.
A `ServerPolicy` that the code makes itself stands as well. A middleware without a policy loads one. The environment is read
when a policy is loaded, never when a module is imported; a file is read only where code or `RESILIENT_MW_CONFIG` names it.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakKeyDictionary, WeakSet

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides
from resilient_mw.admission.plain import (
    FIELDS,
    WORDS,
    Given,
    check_known,
    from_plain,
    from_text,
    with_given,
)
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.runtime import switch

PREFIX = "RESILIENT_MW_"
DISABLED = "RESILIENT_MW_DISABLED"
CONFIG = "RESILIENT_MW_CONFIG"
KEYS_STORE = "RESILIENT_MW_IDEMPOTENCY_STORE"
"""The store that `resilient-mw idempotency` looks at; a service may have it in its environment, too."""
DEFAULT, CODE, KEYWORD = "default", "code", "keyword of the middleware"
"""Sources that are neither a file nor a variable."""

NOT_OURS = re.compile(
    r"(^|_)SERVICE_(HOST|PORT(_\w+)?)$|(^|_)PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$"
)
"""What Kubernetes adds to the environment for a service whose name begins like ours."""

_sources: WeakKeyDictionary[ServerPolicy, Mapping[str, str]] = WeakKeyDictionary()
_loaded: WeakSet[ServerPolicy] = WeakSet()
"""Policies for which the environment has been read."""


def load_policy(
    file: str | os.PathLike[str] | None = None,
    *,
    policy: ServerPolicy | None = None,
    environ: Mapping[str, str] | None = None,
    **proposed: Unpack[PolicyOverrides],
) -> ServerPolicy:
    """Return a policy made of what the code proposes, a TOML file and the environment; see the module for the order.

    Args:
        file: a TOML file whose keys are the fields of `ServerPolicy`; the table `[tool.resilient_mw]` of one that is called
            `pyproject.toml`. `RESILIENT_MW_CONFIG` names another one in its place. None: no file unless that one is named.
        policy: what the code proposes, as a policy.
        environ: environment variables; None: those of the process.
        **proposed: fields that differ from `policy`.

    Raises:
        TypeError: a keyword is no field.
        ValueError: a value or a name is not allowed, or the file cannot be read. The text begins with the source.
    """
    environ = os.environ if environ is None else environ
    given: dict[str, Given] = {}
    named = environ.get(CONFIG, "").strip()
    if named:
        given |= _from_file(Path(named), CONFIG)
    elif file is not None:
        given |= _from_file(Path(file), "file")
    given |= _from_environment(environ)
    first = policy or ServerPolicy()
    made = with_given(first.with_changes(proposed), given)
    sources = {**dict.fromkeys(proposed, CODE), **{field: each.source for field, each in given.items()}}
    _loaded.add(note_sources(made, sources, first))
    return made


def sources_of(policy: ServerPolicy) -> dict[str, str]:
    """Return for each field where its value comes from: `default`, `code`, a file, a variable, a middleware's keyword."""
    noted = _sources.get(policy, {})
    defaults = {each.name: each.default for each in fields(ServerPolicy) if each.default is not MISSING}
    return {
        name: noted.get(name) or (DEFAULT if getattr(policy, name) == defaults.get(name, MISSING) else CODE)
        for name in FIELDS
    }


def note_sources(policy: ServerPolicy, sources: Mapping[str, str], base: ServerPolicy) -> ServerPolicy:
    """Remember where fields of a policy come from that was made of `base`, and return the policy."""
    _sources[policy] = {**_sources.get(base, {}), **sources}
    return policy


def policy_in_force(policy: ServerPolicy | None, keywords: Mapping[str, Any]) -> ServerPolicy:
    """Return the policy of a middleware; also read the kill switch.

    Args:
        policy: what the code gave it; None: one is loaded.
        keywords: fields that differ.

    Raises:
        TypeError: a keyword is no field.
        ValueError: a value is not allowed.
    """
    read_switch(os.environ)
    base = load_policy() if policy is None else policy
    made = base.with_changes(keywords)
    if keywords:
        note_sources(made, dict.fromkeys(keywords, KEYWORD), base)
        if base in _loaded:
            _loaded.add(made)
    idle = [variable for variable, field in _settings(os.environ) if field in keywords or base not in _loaded]
    if base not in _loaded and os.environ.get(CONFIG, "").strip():
        idle.append(CONFIG)
    if idle:
        warnings.warn(
            f"{', '.join(idle)} {'has' if len(idle) == 1 else 'have'} no effect on the policy {made.name!r}: the code fixes it, as a "
            "ServerPolicy or by keywords of the middleware. Let resilient_mw.runtime.configuration.load_policy() propose the "
            "values instead, or take the variable away",
            ResilienceWarning,
            stacklevel=2,
        )
    return made


def read_switch(environ: Mapping[str, str]) -> None:
    """Let requests pass unguarded from now on if `RESILIENT_MW_DISABLED` says so, and log that, once in a process.

    Raises:
        ValueError: it says neither yes nor no.
    """
    text = environ.get(DISABLED, "").strip()
    disabled = WORDS.get(text.lower()) if text else False
    if disabled is None:
        raise ValueError(f"{DISABLED}={text!r} is not allowed: it must be 1 or 0")
    if disabled and switch.turn_off_for_good():
        import logging  # only loaded when there is something to say

        logging.getLogger("resilient_mw").warning(
            "%s=%s: every request passes unguarded, without limit and deadline", DISABLED, text
        )


def _settings(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that are set for a field of a policy, and the field."""
    for field in FIELDS:
        variable = f"{PREFIX}{field.upper()}"
        if environ.get(variable, "").strip():
            yield variable, field


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    known = [DISABLED, CONFIG, KEYS_STORE, *(f"{PREFIX}{field.upper()}" for field in FIELDS)]
    for variable in environ:
        if variable.startswith(PREFIX) and not NOT_OURS.search(variable.removeprefix(PREFIX)):
            check_known(variable, known, "environment")
    return {field: from_text(field, environ[variable], variable) for variable, field in _settings(environ)}


def _from_file(path: Path, named_by: str) -> dict[str, Given]:
    import tomllib  # only loaded by those who have a file

    try:
        document: Mapping[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{named_by}={str(path)!r} cannot be read: {error}") from error
    source = path.name
    if path.name == "pyproject.toml":
        source = f"{path.name} [tool.resilient_mw]"
        tools = document.get("tool", {})
        check_known("resilient_mw", tools, f"{named_by}={str(path)!r}", "table of [tool]")
        document = tools["resilient_mw"]
    if not isinstance(document, Mapping):
        raise ValueError(f"{source} is not allowed: it must be a table")
    return from_plain(document, lambda _: source)
