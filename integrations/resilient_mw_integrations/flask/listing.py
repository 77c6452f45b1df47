"""`flask resilience`: how the requests to each route are treated, as `flask routes` lists the routes."""

from __future__ import annotations

import click
from flask import Flask, current_app
from flask.cli import with_appcontext

from resilient_mw.cli.gather import gather
from resilient_mw.cli.locate import Protected, Unusable
from resilient_mw.cli.shown import told_by
from resilient_mw.cli.treatments import Treatment, treatments
from resilient_mw.cli.words import seconds
from resilient_mw.core.routes import UNMATCHED

HEAD = ("endpoint", "methods", "rule", "class", "cost", "deadline", "exempt", "because of")
ADDED = {"HEAD", "OPTIONS"}
"""Methods that Flask adds to others by itself."""


@click.command("resilience", short_help="Show how each route is protected.")
@with_appcontext
def command() -> None:
    """Show class, cost and deadline of each route, and what says so. `resilient-mw explain` says more."""
    app = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001  as Flask's own documentation has it
    protection = app.extensions["resilience"].protection
    try:
        (facts,) = gather(app.import_name, [Protected("wsgi", protection, (app,))]).apps
    except Unusable as error:
        raise click.ClickException(str(error)) from error
    rows = [HEAD, *(cells for row in treatments(facts) if (cells := _cells(app, row)) is not None)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for place, row in enumerate(rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if place == 0:
            click.echo("  ".join("-" * width for width in widths))


def _cells(app: Flask, row: Treatment) -> tuple[str, ...] | None:
    """Return a line of the table; None for methods that Flask has added beside others."""
    methods = None if row.methods is None else set(row.methods)
    if methods is not None and methods <= ADDED and row.template != UNMATCHED:
        served = {
            method
            for rule in app.url_map.iter_rules()
            if rule.rule == row.template
            for method in rule.methods or ()
        }
        if not served <= ADDED:
            return None
    template = "everything else" if row.template == UNMATCHED else row.template
    return (
        ", ".join(_endpoints(app, row.template, methods)),
        "any" if methods is None else ", ".join(sorted(methods - ADDED or methods)),
        template if row.where is None else f"{template} (only {row.where})",
        row.priority,
        "-" if row.exempt else row.cost_function or str(row.cost),
        seconds(row.budget),
        "yes" if row.exempt else "no",
        told_by(row.sources),
    )


def _endpoints(app: Flask, template: str, methods: set[str] | None) -> list[str]:
    found = [
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if rule.rule == template and (methods is None or methods & (rule.methods or methods))
    ]
    return list(dict.fromkeys(found))
