"""The torture in its short form: 300 payments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.places import PLACES
from tests.torture.report import table
from tests.torture.run import Plan, Result, run


def silent(_: Result, __: int) -> None:
    """Show nothing."""


@pytest.mark.parametrize("form", ["ask", "refuse"])
async def test_each_payment_is_made_exactly_once(form: str, tmp_path: Path) -> None:
    """B86: two servers, one killed now and then, the store away now and then, clients who leave and ask again."""
    plan = Plan(form=form, payments=300, kill_every=75, stops=1, lease=1.5, within=120.0)
    result = await run(PLACES["sqlite"](tmp_path), plan, tmp_path, silent)
    assert not result.violations, table([result])
    assert result.kills
    assert result.stops
