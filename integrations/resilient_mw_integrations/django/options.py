"""The setting `RESILIENT_MW`: the fields of `ServerPolicy`, checked by name, and what only Django has."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.runtime.configuration import load_policy
from resilient_mw.runtime.forks import renew_lock
from resilient_mw_integrations.django.pages import template_pages

SETTING = "RESILIENT_MW"
DATABASES = "databases"
"""A key of the setting that is no field of the policy: aliases of databases whose statements obey the budget."""
TEMPLATE = "refusal_template"
"""Another one: the name of a template that is the page of refusals for callers who want HTML."""

FIELDS = tuple(field.name for field in fields(ServerPolicy) if field.init)

_made: tuple[object, ServerPolicy] | None = None
_lock = threading.Lock()
renew_lock(__name__, "_lock")


def policy() -> ServerPolicy:
    """Return the policy of this project: one object for as long as the setting is the same one.

    For a middleware that is put around the application by hand.

    Raises:
        ImproperlyConfigured: a value of the setting is not allowed; the text names the field, the value and the range.
    """
    global _made
    given = getattr(settings, SETTING, None)
    made = _made
    if made is not None and made[0] is given:
        return made[1]
    with _lock:
        if _made is None or _made[0] is not given:
            _made = (given, policy_of(given))
        return _made[1]


def policy_of(given: object) -> ServerPolicy:
    """Return the policy that a value of the setting says; of a dict, what a file and the environment leave of it.

    Raises:
        ImproperlyConfigured: it is not allowed.
    """
    if isinstance(given, ServerPolicy):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise ImproperlyConfigured(
            f"{SETTING}={given!r} is not allowed: it must be a dict of the fields of ServerPolicy, or a ServerPolicy"
        )
    values: dict[str, Any] = dict(given or {})
    values.pop(DATABASES, None)
    template = values.pop(TEMPLATE, None)
    for name in values:
        if name not in FIELDS:
            close = difflib.get_close_matches(str(name), (*FIELDS, DATABASES, TEMPLATE), n=1)
            hint = f": did you mean {close[0]!r}?" if close else ""
            raise ImproperlyConfigured(f"{SETTING}[{name!r}] is no field of ServerPolicy{hint}")
    try:
        if template is not None:
            values.setdefault("refusal_page", template_pages(template))
        return load_policy(**values)
    except ValueError as error:
        raise ImproperlyConfigured(f"{SETTING}: {error}") from error


def template_name() -> str | None:
    """Return the name of the template that draws refusals, if the setting, which is in order, names one."""
    given = getattr(settings, SETTING, None)
    return given.get(TEMPLATE) if isinstance(given, Mapping) else None


def budgeted_aliases() -> frozenset[str]:
    """Return the aliases of the databases whose statements obey the budget.

    Raises:
        ImproperlyConfigured: the key is no list of aliases of `DATABASES`.
    """
    given = getattr(settings, SETTING, None)
    aliases = given.get(DATABASES, ()) if isinstance(given, Mapping) else ()
    known = sorted(settings.DATABASES)
    if isinstance(aliases, str) or not set(aliases) <= set(known):
        raise ImproperlyConfigured(
            f"{SETTING}[{DATABASES!r}]={aliases!r} is not allowed: it must be a list of aliases of DATABASES, {known}"
        )
    return frozenset(aliases)
