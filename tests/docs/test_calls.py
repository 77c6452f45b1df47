"""The page on calls keeps its word: its table is the code's, its three lines run."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import httpx
import pytest

from resilient_mw import BreakerPolicy, Dependency, RetryPolicy
from resilient_mw.calls import RetryOwnership
from resilient_mw_integrations.httpx import ResilientTransport
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "calls.md").read_text(encoding="utf-8")


def _as_written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return f"`{value}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"{value:g}" if isinstance(value, (int, float)) else f"`{type(value).__name__}()`"


def test_the_table_has_each_field_of_a_dependency_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
    made = Dependency("prices")
    expected = {each.name: _as_written(getattr(made, each.name)) for each in fields(Dependency) if each.init}
    expected.update(name="", match="none")
    assert {name: default for name, default, _, _ in rows} == expected
    assert len(rows) == len(expected)
    assert all(re.search(r"\]\(\w[\w-]*\.md", page) for _, _, _, page in rows)


def test_the_numbers_in_it_are_the_policies() -> None:
    """What a policy implies is told in words, so its figures are pinned here."""
    retry, breaker = RetryPolicy(), BreakerPolicy()
    assert (retry.attempts, retry.budget_ratio, retry.budget_per_second) == (2, 0.1, 1)
    assert (breaker.open_for, breaker.failure_ratio, breaker.minimum_calls, breaker.window) == (
        5,
        0.5,
        10,
        20,
    )
    made = Dependency("prices")
    assert (made.retry, made.breaker, made.ownership) == (retry, breaker, RetryOwnership())


@pytest.mark.filterwarnings("ignore:.*Set a timeout")
def test_what_can_be_turned_off_is_turned_off_by_none() -> None:
    (line,) = re.findall(r"^(.*) are turned off by `None`", PAGE, re.MULTILINE)
    for name in re.findall(r"`(\w+)`", line):
        off: dict[str, Any] = {name: None}
        assert getattr(Dependency("prices", **off), name) is None


def test_it_is_one_screenful() -> None:
    assert len(PAGE.splitlines()) <= 60


def test_the_three_lines_run() -> None:
    block = "\n".join(line[4:] for line in PAGE.splitlines() if line.startswith("    "))
    inner = httpx.MockTransport(lambda request: httpx.Response(204))
    names: dict[str, Any] = {"Dependency": Dependency, "httpx": httpx}
    names["ResilientTransport"] = lambda dependencies: ResilientTransport(dependencies, inner)
    exec(compile(block, "calls.md", "exec"), names)
    names["client"].close()
    assert names["prices"].snapshot().calls == 1


@pytest.mark.parametrize("name", ["CallRefused", "BudgetTooSmall", "CallExpired", "TransportClosed"])
def test_every_error_is_on_the_page_of_the_clients(name: str) -> None:
    clients = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert len(re.findall(rf"^\| `{name}` \|", clients, re.MULTILINE)) == 3
