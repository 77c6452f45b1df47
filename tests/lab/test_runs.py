"""Real processes, short loads."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.cli.main import main
from resilient_mw.lab import command
from resilient_mw.lab.expectations import is_time
from resilient_mw.lab.processes import Children, LabError
from resilient_mw.lab.runner import Progress, run_step
from resilient_mw.lab.stacks import ASGI, WSGI, WSGI_STACKS, Stack
from resilient_mw.lab.step import Action, Load, Step
from resilient_mw.lab.steps import STEPS

STACKS = pytest.mark.parametrize("stack", [WSGI, ASGI], ids=["wsgi", "asgi"])
BY_NAME = {step.name: step for step in STEPS}


@STACKS
async def test_step_0(stack: Stack, no_process_left: Callable[[], None]) -> None:
    shown: list[Progress] = []
    result = await run_step(BY_NAME["0"], stack, length=1.5, show=shown.append)
    no_process_left()
    assert result.error is None
    figures = result.figures()
    assert (figures["checkout_sent"], figures["checkout_served"]) == (30, 30)
    assert (figures["health_sent"], figures["health_lost"]) == (8, 0)
    assert figures["prices_received"] == figures["prices_answered"] == 30
    assert figures["prices_peak"] is not None
    assert figures["prices_peak"] < 10
    median = figures["checkout_served_p50"]
    assert median is not None
    assert 0.05 <= median < 0.5  # ten times the noise of a busy machine; the step itself asks for 80 ms
    assert shown[-1].loads["checkout"]["sent"] == 30


@STACKS
async def test_without_a_timeout_ten_slow_calls_stop_the_health_check(
    stack: Stack, no_process_left: Callable[[], None]
) -> None:
    step = dataclasses.replace(
        BY_NAME["1"],
        loads=(Load("checkout", "/checkout", 20, give_up=1.5), Load("health", "/health", 5, give_up=1.5)),
        length=2.0,
        watch=0.0,
    )
    result = await run_step(step, stack)
    no_process_left()
    figures = result.figures()
    assert figures["checkout_served"] == 0  # 3 s of work, 1.5 s of patience
    assert figures["checkout_gave_up"] == 40
    assert figures["health_lost"] is not None
    assert figures["health_lost"] >= 5
    # Waitress and the pool of threads cannot know that the users have gone, and never had more than ten at
    # work.
    assert figures["prices_peak"] == 10
    assert figures["prices_abandoned"] == 0


@STACKS
async def test_a_timeout_of_the_application_ends_the_calls(stack: Stack) -> None:
    step = BY_NAME["1"]
    step = dataclasses.replace(step, app=dataclasses.replace(step.app, timeout=0.1), length=1.0, watch=0.0)
    figures = (await run_step(step, stack)).figures()
    assert figures["checkout_refused"] == figures["checkout_unexplained"] == 20
    assert figures["health_lost"] == 0
    assert figures["prices_abandoned"] == 20


async def test_a_dependency_is_switched_while_the_load_runs() -> None:
    step = dataclasses.replace(
        BY_NAME["0"], actions=(Action(7.5, "prices", 0.05, "error"), Action(12.0, "prices", 0.3))
    )
    result = await run_step(step, WSGI, length=5.0)  # so at 2.5 s and at 4.0 s
    third = {0: [r for r in result.records if r.kind == "checkout" and r.due < 1.5]}
    third[1] = [r for r in result.records if r.kind == "checkout" and 3.4 < r.due < 3.6]
    third[2] = [r for r in result.records if r.kind == "checkout" and r.due > 4.8]
    assert {r.status for r in third[0]} == {200}
    assert {r.status for r in third[1]} == {503}
    assert {r.status for r in third[2]} == {200}
    assert min(r.latency for r in third[2]) >= 0.3


@pytest.mark.parametrize("stack", [*WSGI_STACKS.values(), ASGI], ids=[*WSGI_STACKS, "asgi"])
async def test_step_7b(stack: Stack, no_process_left: Callable[[], None]) -> None:
    # Times with five times their bound: this is no test of speed, and other tests may run beside it.
    lenient = tuple(
        dataclasses.replace(each, bound=each.bound * 5) if is_time(each.figure) else each
        for each in BY_NAME["7b"].expectations
    )
    result = await run_step(dataclasses.replace(BY_NAME["7b"], expectations=lenient), stack, length=3.0)
    no_process_left()
    assert result.error is None
    assert [verdict for verdict in result.verdicts() if not verdict.passed] == []


@STACKS
async def test_step_7b_fails_without_the_middleware(stack: Stack) -> None:
    step = BY_NAME["7b"]
    bare = dataclasses.replace(step, app=dataclasses.replace(step.app, policy=None))
    result = await run_step(bare, stack, length=3.0)
    assert result.error is None
    assert not result.passed
    missed = {verdict.label for verdict in result.verdicts() if not verdict.passed}
    assert {"median time to refuse", "most calls at once at the dependency"} <= missed


def _with_calls(step: Step, **arguments: Any) -> Step:
    """Return a step whose dependency is called in another way."""
    calls = {name: {**given, **arguments} for name, given in step.app.calls.items()}
    return dataclasses.replace(step, app=dataclasses.replace(step.app, calls=calls))


@STACKS
@pytest.mark.parametrize(("name", "length"), [("2", 3.0), ("4", 3.0), ("6", 5.0)])
async def test_steps_of_one_protection(stack: Stack, name: str, length: float) -> None:
    # Lenient with times: this is no test of speed.
    lenient = tuple(
        dataclasses.replace(each, bound=each.bound * 5) if is_time(each.figure) else each
        for each in BY_NAME[name].expectations
    )
    result = await run_step(dataclasses.replace(BY_NAME[name], expectations=lenient), stack, length=length)
    assert result.error is None
    assert [verdict for verdict in result.verdicts() if not verdict.passed] == []


@STACKS
async def test_retries_without_a_bound_multiply_the_calls(stack: Stack) -> None:
    result = await run_step(BY_NAME["3"], stack, length=2.0)
    assert result.figures()["prices_received"] == 160  # four for each checkout


@STACKS
async def test_step_5_with_a_shorter_open_time(stack: Stack, no_process_left: Callable[[], None]) -> None:
    step = BY_NAME["5"]
    step = _with_calls(step, breaker={**step.app.calls["prices"]["breaker"], "open_for": 1.0})
    result = await run_step(step, stack, length=5.0)  # so repaired at 2.5 s
    no_process_left()
    assert result.texts()["prices_breaker"] == "closed, open, half-open, open, half-open, closed"
    assert [change.at for change in result.changes["prices"]] == sorted(
        change.at for change in result.changes["prices"]
    )
    assert result.figures()["checkout_refused_at_rest"] == 0
    assert result.figures()["health_lost"] == 0


@STACKS
async def test_step_6_fails_without_its_bulkhead(stack: Stack) -> None:
    result = await run_step(_with_calls(BY_NAME["6"], bulkhead=None), stack, length=3.0)
    missed = {verdict.label for verdict in result.verdicts() if not verdict.passed}
    assert "most calls at once at the dependency" in missed


@STACKS
async def test_step_8(stack: Stack, no_process_left: Callable[[], None]) -> None:
    step = BY_NAME["8"]
    lenient = tuple(
        dataclasses.replace(each, bound=each.bound * 5) if is_time(each.figure) else each
        for each in step.expectations
    )
    result = await run_step(dataclasses.replace(step, expectations=lenient), stack, length=3.0)
    no_process_left()
    assert result.error is None
    assert [verdict for verdict in result.verdicts() if not verdict.passed] == []


@STACKS
async def test_step_8_fails_without_the_client_half(stack: Stack) -> None:
    step = BY_NAME["8"]
    bare = dataclasses.replace(step, app=dataclasses.replace(step.app, calls={}))
    result = await run_step(bare, stack, length=3.0)
    assert result.error is None
    # Nobody tells the archive when to stop, so its calls outlive their users, and with them the work of a thread.
    assert result.figures()["calls_in_hand"] != 0


async def test_an_application_that_does_not_start_is_an_error_of_the_step(
    no_process_left: Callable[[], None],
) -> None:
    result = await run_step(BY_NAME["0"], Stack("wsgi", "none", "resilient_mw.lab.nothing", ()), length=1.0)
    no_process_left()
    assert result.error is not None
    assert "No module named resilient_mw.lab.nothing" in result.error
    assert not result.passed


async def test_a_process_that_is_not_of_the_lab_is_refused_and_ended(
    no_process_left: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # so that it speaks at once
    # It serves for ever, and does not care about its standard input.
    with pytest.raises(LabError, match="http.server said b'Serving HTTP"):
        async with Children() as started:
            await started.start("http.server", "0", "--bind", "127.0.0.1")
    no_process_left()


async def test_a_policy_that_is_wrong_is_an_error_of_the_step(no_process_left: Callable[[], None]) -> None:
    step = dataclasses.replace(BY_NAME["0"], app=dataclasses.replace(BY_NAME["0"].app, policy={"limit": -1}))
    result = await run_step(step, WSGI, length=1.0)
    no_process_left()
    assert result.error is not None
    assert "limit" in result.error


async def test_nothing_is_left_when_a_run_is_cancelled(no_process_left: Callable[[], None]) -> None:
    begun = asyncio.Event()
    run = asyncio.create_task(run_step(BY_NAME["0"], WSGI, show=lambda progress: begun.set()))
    await asyncio.wait_for(begun.wait(), 30)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    no_process_left()


def test_the_command_writes_what_it_saw_and_tells_it_by_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = dataclasses.replace(BY_NAME["0"], quick=1.0)
    # The same, with a bound that cannot be met.
    bound = dataclasses.replace(good.expectations[1], bound=0.001)
    bad = dataclasses.replace(good, expectations=(bound,))
    chosen: list[Step] = [good]
    monkeypatch.setattr(command, "select", lambda names: tuple(chosen))
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "--quick", "--json", "figures.json"]) == 0
    written = json.loads((tmp_path / "figures.json").read_text())
    (step,) = written["steps"]
    assert (written["passed"], written["stack"], step["figures"]["checkout_served"]) == (True, "wsgi", 20)
    assert len(step["requests"]) == 25
    assert "3 of 3 expectations met" in (tmp_path / "lab-report.html").read_text()

    chosen[:] = [bad]
    assert main(["lab", "--quick", "--report", "other.html"]) == 1
    assert "MISSED" in capsys.readouterr().out
    assert "0 of 1 expectations met" in (tmp_path / "other.html").read_text()


@STACKS
async def test_attempts_multiply_through_five_services(
    stack: Stack, no_process_left: Callable[[], None]
) -> None:
    result = await run_step(BY_NAME["amplification-a"], stack, length=1.0)
    no_process_left()
    assert result.error is None
    figures = result.figures()
    assert (figures["checkout_sent"], figures["prices_received"]) == (1, 3**5)


async def test_each_page_calls_its_dependencies_and_the_application_tells_of_them(
    no_process_left: Callable[[], None],
) -> None:
    step = dataclasses.replace(BY_NAME["six-dependencies-b"], phases=(), actions=(), length=1.0)
    result = await run_step(step, WSGI)
    no_process_left()
    assert result.error is None
    assert result.inside is not None
    received = {name: result.figures()[f"{name}_received"] for name in result.dependencies}
    assert received == {"prices": 20, "reviews": 20, "stock": 10, "images": 10, "offers": 10, "delivery": 10}
    assert result.inside.calls == {
        name: {"calls": count, "errors": 0, "refused": 0} for name, count in received.items()
    }
    assert 0 < result.inside.busy <= 1
    assert result.passed is False  # without its phases there is nothing to compare
