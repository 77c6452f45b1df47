from __future__ import annotations

import dataclasses

import pytest

from resilient_mw import Dependency
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.steps import STEPS, select
from resilient_mw.lab.steps_calls import CALL_STEPS

CHANGING = ["priority-a", "priority-b", "recovery-a", "recovery-b"]
CHAINS = ["amplification-a", "amplification-b", "six-dependencies-a", "six-dependencies-b"]


def names(wanted: list[str]) -> list[str]:
    return [step.name for step in select(wanted)]


def test_all_steps_are_known_and_none_is_hidden() -> None:
    assert [step.name for step in STEPS] == [
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
        *CHANGING,
        *CHAINS,
    ]


@pytest.mark.parametrize(
    ("wanted", "got"),
    [
        ([], ["0", "1", "2", "3", "4", "5", "6", "7a", "7b", "8", *CHANGING, *CHAINS]),
        (["0"], ["0"]),
        (["7"], ["7a", "7b"]),
        (["7b", "0", "0"], ["0", "7b"]),
        (["priority"], ["priority-a", "priority-b"]),
        (["recovery-b"], ["recovery-b"]),
        (["six-dependencies"], ["six-dependencies-a", "six-dependencies-b"]),
    ],
)
def test_select(wanted: list[str], got: list[str]) -> None:
    assert names(wanted) == got


@pytest.mark.parametrize("name", ["9", "", "a", "7c", "-1", "0 ", "prio", "priority-", ".*"])
def test_an_unknown_step_is_refused_with_those_that_can_run(name: str) -> None:
    with pytest.raises(ValueError, match="there is no step .*0, 1, 2, 3, 4, 5, 6, 7a, 7b, 8"):
        select([name])


def test_every_expectation_and_finding_names_a_figure_that_is_measured(results: list[StepResult]) -> None:
    for result in results:
        figures = result.figures()
        for expectation in result.step.expectations:
            assert expectation.figure in figures
        assert {each.text for each in result.step.texts} <= set(result.texts())
        assert "{" not in result.finding()


def test_steps_are_consistent() -> None:
    for step in STEPS:
        dependencies = {dependency.name for dependency in step.dependencies}
        assert {name for names in step.app.routes.values() for name in names} <= dependencies
        assert set(step.app.calls) <= dependencies
        assert {action.dependency for action in step.actions} <= dependencies
        assert {load.path for load in step.loads} <= {*step.app.routes, "/health"}
        assert set(step.app.threads) == {"wsgi", "asgi"}
        assert len({load.kind for load in step.loads} | dependencies) == len(step.loads) + len(dependencies)
        assert 0 < step.quick <= step.length
        assert sum(phase.length for phase in step.phases) == (step.length if step.phases else 0)
        assert len({phase.name for phase in step.phases}) == len(step.phases)
        kinds = {load.kind for load in step.loads}
        assert all(set(phase.rates) <= kinds for phase in step.phases)
        assert step.timeline(step.quick) or not step.phases  # a quick run is longer than the fixed phases


def test_a_step_of_one_protection_turns_off_every_other_one() -> None:
    for step in CALL_STEPS:
        (arguments,) = step.app.calls.values()
        dependency = Dependency("prices", "http://prices/*", **{**arguments, "retry": None, "breaker": None})
        fields = {each.name for each in dataclasses.fields(dependency) if each.init} - {"name", "match"}
        assert set(arguments) == fields, "each default is either named or turned off"
        assert step.app.policy is None


def test_what_comes_after_the_last_change_of_a_circuit_is_at_rest(results: list[StepResult]) -> None:
    (result,) = (each for each in results if each.step.name == "5")
    refused = [each for each in result.records if (each.kind, each.outcome) == ("checkout", "refused")]
    late = sum(each.due > 6.0 for each in refused)
    assert late > 0
    assert result.figures()["checkout_refused_at_rest"] == late
    assert result.texts() == {
        "prices_breaker": "closed, open, half-open, closed",
        "prices_breaker_log": "open at 0.9 s, half-open at 5.9 s, closed at 6.0 s",
    }
    labels = [verdict.label for verdict in result.verdicts() if not verdict.passed]
    assert "the circuit: closed, open, half-open, open, half-open, closed" in labels
    assert "refused after the last change" in labels


def test_what_is_still_in_hand_is_counted(results: list[StepResult]) -> None:
    (result,) = (each for each in results if each.step.name == "8")
    figures = result.figures()
    assert (figures["app_in_hand"], figures["calls_in_hand"], figures["calls_late"]) == (1, 2, 2)


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
