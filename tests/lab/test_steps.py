from __future__ import annotations

import dataclasses

import pytest

from resilient_mw.lab.results import StepResult
from resilient_mw.lab.steps import PLANNED, STEPS, select


def names(wanted: list[str]) -> list[str]:
    return [step.name for step in select(wanted)]


def test_all_steps_are_known_and_none_is_hidden() -> None:
    assert sorted(step.name for step in (*STEPS, *PLANNED)) == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7a",
        "7b",
        "8",
    ]


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([], ["0", "1", "7a", "7b"]),
        (["0"], ["0"]),
        (["7"], ["7a", "7b"]),
        (["7b", "0", "0"], ["0", "7b"]),
    ],
)
def test_select(wanted: list[str], got: list[str]) -> None:
    assert names(wanted) == got


@pytest.mark.parametrize("name", ["2", "3", "4", "5", "6", "8"])
def test_a_planned_step_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"step {name} is not in this release yet.*0, 1, 7a, 7b"):
        select(["0", name])


@pytest.mark.parametrize("name", ["9", "", "a", "7c", "-1", "0 "])
def test_an_unknown_step_is_refused_with_those_that_can_run(name: str) -> None:
    with pytest.raises(ValueError, match="there is no step .*0, 1, 7a, 7b"):
        select([name])


def test_every_expectation_and_finding_names_a_figure_that_is_measured(results: list[StepResult]) -> None:
    for result in results:
        figures = result.figures()
        for expectation in result.step.expectations:
            assert expectation.figure in figures
        assert "{" not in result.finding()


def test_steps_are_consistent() -> None:
    for step in STEPS:
        dependencies = {dependency.name for dependency in step.dependencies}
        assert set(step.app.routes.values()) <= dependencies
        assert {action.dependency for action in step.actions} <= dependencies
        assert {load.path for load in step.loads} <= {*step.app.routes, "/health"}
        assert set(step.app.threads) == {"wsgi", "asgi"}
        assert len({load.kind for load in step.loads} | dependencies) == len(step.loads) + len(dependencies)
        assert 0 < step.quick <= step.length


def test_the_verdict_follows_the_figures(good_day: StepResult) -> None:
    assert good_day.passed
    broken = [
        record._replace(status=500) if record.kind == "health" else record for record in good_day.records
    ]
    worse = dataclasses.replace(good_day, records=broken)
    assert not worse.passed
    assert [verdict.label for verdict in worse.verdicts() if not verdict.passed] == ["health checks lost"]


def test_a_step_that_could_not_be_run_has_not_passed() -> None:
    result = StepResult(STEPS[0], 15.0, error="no port")
    assert not result.passed
    assert result.verdicts() == []
    assert "could not be run" in result.finding()
