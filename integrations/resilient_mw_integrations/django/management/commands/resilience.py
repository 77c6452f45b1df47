"""`manage.py resilience`: how each route is treated."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from resilient_mw.admission.routing import RouteEntries
from resilient_mw.core.marks import Mark
from resilient_mw.core.priority import EXEMPT
from resilient_mw.core.routes import may_overlap
from resilient_mw_integrations.django.options import policy
from resilient_mw_integrations.django.routes import DjangoRoutes
from resilient_mw_integrations.django.views import name_of

HEAD = ("class", "slots", "deadline", "methods", "route", "view")


class Command(BaseCommand):  # type: ignore[misc]  # Django ships no types
    """List the routes of the project with their priority classes, by class."""

    help = "Lists every route with its priority class, its slots and its deadline."

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002  Django's signature
        """Print the list.

        Raises:
            CommandError: the setting or a mark is not allowed.
        """
        try:
            made = policy()
            entries = RouteEntries(made)
            rows = []
            for route, view in DjangoRoutes().views():
                mark = route.mark or Mark()
                made.check_mark(mark, f"the mark of route {route.template!r}")
                entry = entries.get(route.template, mark)
                rule = next((each for each in made.routes if may_overlap(each, route.template)), None)
                name = f"{entry.priority} *" if rule is not None else entry.priority
                slots = (
                    "by request"
                    if mark.cost is not None and not isinstance(mark.cost, int)
                    else str(entry.cost)
                )
                methods = "any" if route.methods is None else ",".join(sorted(route.methods)) or "-"
                rank = -1 if entry.priority == EXEMPT else entry.rank
                rows.append(
                    (rank, (name, slots, f"{entry.budget:g} s", methods, route.template, name_of(view)))
                )
        except (ImproperlyConfigured, ValueError) as error:
            raise CommandError(str(error)) from error
        self._print([HEAD, *(row for _, row in sorted(rows, key=lambda each: each[0]))])
        if made.exempt_paths:
            self.stdout.write(f"exempt as well, for GET and HEAD: {', '.join(made.exempt_paths)}")
        if made.routes:
            self.stdout.write("*: a RouteRule may say otherwise for some paths")

    def _print(self, rows: list[tuple[str, ...]]) -> None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
        for row in rows:
            self.stdout.write(
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            )
