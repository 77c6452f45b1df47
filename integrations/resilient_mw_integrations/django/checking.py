"""System checks: what `manage.py check` says of the setting, the marks, the middleware and the databases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template

from resilient_mw.admission.routing import RouteEntries, RouteTable, unreached
from resilient_mw_integrations.django.options import (
    SETTING,
    TEMPLATE,
    budgeted_aliases,
    policy,
    template_name,
)
from resilient_mw_integrations.django.routes import DjangoRoutes

MIDDLEWARE = frozenset(
    {
        "resilient_mw_integrations.django.ResilienceMiddleware",
        "resilient_mw_integrations.django.middleware.ResilienceMiddleware",
    }
)
POSTGRES = ("django.db.backends.postgresql", "django.contrib.gis.db.backends.postgis")


def check_policy(app_configs: object, **more: object) -> list[Any]:  # noqa: ARG001  Django's signature
    """Check the setting, and that marks and rules fit the policy and the URLconf."""
    try:
        made = policy()
        budgeted_aliases()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="resilient_mw.E001")]
    table = RouteTable(made, RouteEntries(made))
    try:
        complaints = table.bind(DjangoRoutes())
    except ValueError as error:
        return [checks.Error(str(error), id="resilient_mw.E002")]
    found = [checks.Warning(each, id="resilient_mw.W001") for each in complaints]
    found += _check_template(template_name())
    found += [
        checks.Warning(
            f"the mark on {name} has no effect: no route of ROOT_URLCONF leads to it",
            hint="Put the decorator next to the view, use functools.wraps in the decorators between, or write a RouteRule.",
            id="resilient_mw.W002",
        )
        for name in unreached([table])
    ]
    return found


def _check_template(name: str | None) -> list[Any]:
    if name is None:
        return []
    try:
        get_template(name)
    except (TemplateDoesNotExist, TemplateSyntaxError) as error:
        why = f"there is no template {str(error)!r}" if isinstance(error, TemplateDoesNotExist) else error
        return [
            checks.Error(
                f"{SETTING}[{TEMPLATE!r}]={name!r} cannot be drawn: {why}",
                hint="Refusals are problem documents until it can.",
                id="resilient_mw.E003",
            )
        ]
    return []


def check_protection(app_configs: object, **more: object) -> list[Any]:  # noqa: ARG001  Django's signature
    """Check that the middleware is the first one, and that statements on PostgreSQL cannot outlive every deadline."""
    found = []
    places = [place for place, name in enumerate(settings.MIDDLEWARE) if name in MIDDLEWARE]
    if places and places != [0]:
        found.append(
            checks.Warning(
                "ResilienceMiddleware is not the first in MIDDLEWARE: what stands before it works for requests that are "
                "then refused, and after a request's slot was given back",
                hint="Move it to the top, also above SecurityMiddleware and WhiteNoise; name it once.",
                id="resilient_mw.W003",
            )
        )
    for alias, database in settings.DATABASES.items():
        if database.get("ENGINE") in POSTGRES:
            found += _check_postgres(alias, database.get("OPTIONS") or {})
    return found


def _check_postgres(alias: str, options: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    if "service" in options:
        return found  # what the service file says is not ours to read
    if "connect_timeout" not in options:
        found.append(
            checks.Warning(
                f"DATABASES[{alias!r}] has no connect_timeout: a connection to a host that is gone is waited for longer "
                "than any deadline",
                hint='Set OPTIONS["connect_timeout"], in whole seconds.',
                id="resilient_mw.W004",
            )
        )
    try:
        obeys = alias in budgeted_aliases()
    except ImproperlyConfigured:
        return found  # check_policy says so
    if not obeys and "statement_timeout" not in str(options.get("options", "")):
        found.append(
            checks.Warning(
                f"DATABASES[{alias!r}] has no time limit for statements: one that hangs keeps its slot",
                hint=f'Name it in {SETTING}["databases"], or set statement_timeout in OPTIONS["options"].',
                id="resilient_mw.W005",
            )
        )
    return found
