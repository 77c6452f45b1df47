"""The steps whose load changes: the timetable of phases, and short runs with real processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from resilient_mw.lab.expectations import Expectation, is_share, is_time
from resilient_mw.lab.load import due_times
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.runner import run_step
from resilient_mw.lab.stacks import ASGI, WSGI, Stack
from resilient_mw.lab.step import Load, Phase, Step
from resilient_mw.lab.steps import STEPS

STACKS = pytest.mark.parametrize("stack", [WSGI, ASGI], ids=["wsgi", "asgi"])
BY_NAME = {step.name: step for step in STEPS}
CHECKOUT = Load("checkout", "/checkout", 20)

PHASES = (
    Phase("before", 4.0),
    Phase("overload", 10.0, {"checkout": 100}),
    Phase("return", 1.0, fixed=True),
    Phase("after", 6.0),
)
PHASED = dataclasses.replace(BY_NAME["0"], phases=PHASES, length=21.0)


def bounds(step: Step, length: float) -> list[tuple[float, float]]:
    return [(span.start, span.end) for span in step.timeline(length)]


def test_phases_follow_one_another() -> None:
    assert bounds(PHASED, 21.0) == [(0, 4), (4, 14), (14, 15), (15, 21)]
    assert BY_NAME["0"].timeline(15.0) == ()


def test_in_a_shorter_run_phases_shrink_but_for_the_fixed_ones() -> None:
    assert bounds(PHASED, 11.0) == [(0, 2), (2, 7), (7, 8), (8, 11)]


@pytest.mark.parametrize("length", [1.0, 0.5])
def test_a_run_must_be_longer_than_the_fixed_phases(length: float) -> None:
    with pytest.raises(ValueError, match="a run of step 0 must be longer than 1 s, the fixed phases"):
        PHASED.timeline(length)


def test_a_load_keeps_its_rate_where_a_phase_does_not_say_another() -> None:
    assert PHASED.stretches(CHECKOUT, 21.0) == [(4, 20), (10, 100), (1, 20), (6, 20)]
    assert PHASED.stretches(Load("health", "/health", 5), 21.0) == [(4, 5), (10, 5), (1, 5), (6, 5)]
    assert BY_NAME["0"].stretches(CHECKOUT, 5.0) == [(5, 20)]


@pytest.mark.parametrize("length", [28.0, 12.0, 11.3, 7.0])
def test_each_request_counts_in_the_phase_in_which_it_is_due(
    length: float, results: list[StepResult]
) -> None:
    """Also those at the very begin of a phase, whatever the length of the run does to its bounds."""
    (result,) = (each for each in results if each.step.name == "recovery-b")
    step = result.step
    (made,) = (each for each in result.records if (each.kind, each.due) == ("checkout", 0.0))
    due = due_times(step.stretches(step.loads[0], length))
    figures = StepResult(step, length, [made._replace(due=instant) for instant in due]).figures()
    for span in step.timeline(length):
        rate = span.phase.rates.get("checkout", 25)
        assert figures[f"checkout_{span.phase.name}_sent"] == round(rate * span.length)


# --- with real processes; lenient, for this is no test of speed and other tests may run beside it ---


def lenient(step: Step) -> Step:
    """Return a step with times five times as long, and a tenth to lose where hardly anything may be lost."""

    def bound(each: Expectation) -> float:
        if is_time(each.figure) and each.relation == "<=":
            return each.bound * 5
        almost_all = is_share(each.figure) and each.of is None and each.bound >= 0.99
        return 0.9 if almost_all else each.bound

    expectations = tuple(dataclasses.replace(each, bound=bound(each)) for each in step.expectations)
    return dataclasses.replace(step, expectations=expectations)


def missed(result: StepResult) -> list[str]:
    assert result.error is None
    return [f"{each.label}: {each.seen}" for each in result.verdicts() if not each.passed]


@STACKS
async def test_priority_while_the_other_classes_grow(
    stack: Stack, no_process_left: Callable[[], None]
) -> None:
    result = await run_step(lenient(BY_NAME["priority-a"]), stack, length=4.2)
    no_process_left()
    assert missed(result) == []


async def test_critical_is_lost_with_the_rest_without_classes() -> None:
    step = lenient(BY_NAME["priority-a"])
    bare = dataclasses.replace(step, app=dataclasses.replace(step.app, policy={"limit": 10, "queue": 20}))
    result = await run_step(bare, ASGI, length=4.2)
    labels = {label.partition(":")[0] for label in missed(result)}
    assert {"critical served", "critical served, 5x", "critical served, 10x"} <= labels
    share = result.figures()["critical_10x_served_share"]
    assert share is not None
    assert share < 0.5


@STACKS
async def test_critical_alone_gets_all_but_what_is_guaranteed_to_others(stack: Stack) -> None:
    assert missed(await run_step(lenient(BY_NAME["priority-b"]), stack, length=5.0)) == []


async def test_without_reserved_slots_critical_alone_gets_everything() -> None:
    step = BY_NAME["priority-b"]
    policy = {
        **(step.app.policy or {}),
        "classes": [{"name": name} for name in ("critical", "normal", "sheddable")],
    }
    result = await run_step(
        dataclasses.replace(step, app=dataclasses.replace(step.app, policy=policy)), ASGI, length=6.0
    )
    assert "and not the two of the others" in {label.partition(":")[0] for label in missed(result)}


@STACKS
async def test_recovery(stack: Stack, no_process_left: Callable[[], None]) -> None:
    result = await run_step(lenient(BY_NAME["recovery-b"]), stack, length=5.0)
    no_process_left()
    assert missed(result) == []


async def test_without_admission_the_outage_goes_on_after_the_overload() -> None:
    step = lenient(BY_NAME["recovery-b"])
    bare = dataclasses.replace(step, app=BY_NAME["recovery-a"].app)
    result = await run_step(bare, ASGI, length=5.0)
    assert any(label.startswith("all checkouts from 1 s after it on, p99") for label in missed(result))
    figures = result.figures()
    before, after = figures["checkout_before_p99"], figures["checkout_after_p50"]
    assert before is not None
    assert after is not None
    assert after > 1.0 > before
