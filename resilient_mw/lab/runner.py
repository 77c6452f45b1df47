"""Run one step: start its processes, act while the load runs, collect what they saw, and end them all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from resilient_mw.lab.processes import Child, Children, LabError
from resilient_mw.lab.records import Change, Record
from resilient_mw.lab.results import DependencyLog, Inside, Settled, StepResult
from resilient_mw.lab.settings import STATE_PATH, AppSettings
from resilient_mw.lab.stacks import Stack
from resilient_mw.lab.step import Action, Step
from resilient_mw.lab.wire import WIRE_ERRORS, exchange, request_bytes

SPARE = 60.0
"""Seconds, for starting and collecting, that a step may take beyond load, patience of its users and watch."""

READY_TIME = 10.0
ASK_EVERY = 0.5
ASK_TIME = 5.0
AFTER_WATCH = 4.0
"""Seconds after the watch in which one more call proves that they go on: they come in bursts."""
SILENCE = 1.0
"""Seconds after everything must have ended, in which no call may come."""


@dataclass(slots=True)
class Progress:
    """How far a step is.

    Attributes:
        elapsed: seconds since the first request was due; negative before.
        total: seconds that load and watch take; waiting for the last users comes on top.
        loads: counts by kind: sent, served, refused, failed, gave_up.
        dependencies: counts by name, as the price service gives them.
    """

    step: Step
    total: float
    elapsed: float = -1.0
    loads: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    dependencies: dict[str, Mapping[str, Any]] = field(default_factory=dict)


ShowProgress = Callable[[Progress], None]


def _quiet(progress: Progress) -> None:
    """Show nothing."""


async def run_step(
    step: Step, stack: Stack, *, length: float | None = None, show: ShowProgress = _quiet
) -> StepResult:
    """Run a step on a stack; when it returns or raises, none of its processes is left.

    Args:
        step: what to run.
        stack: on what.
        length: seconds of load; None takes the step's own. Bounds, watch, actions and phases keep in proportion.
        show: called a few times a second with the state of the run.

    Returns:
        The result; if the lab could not run the step, one with `error`.
    """
    length = step.length if length is None else length
    share = length / step.length
    patience = max(load.give_up for load in step.loads)
    progress = Progress(step, length + step.watch * share)
    try:
        async with asyncio.timeout(progress.total + patience + SPARE), Children() as children:
            return await _run(step, stack, children, progress=progress, length=length, show=show)
    except TimeoutError:
        return StepResult(step, length, error="the step did not end in its time")
    except LabError as error:
        return StepResult(step, length, error=str(error))


async def _run(
    step: Step, stack: Stack, children: Children, *, length: float, progress: Progress, show: ShowProgress
) -> StepResult:
    ports: dict[str, int] = {}
    for dependency in step.dependencies:
        behaviour = (f"--delay={dependency.delay}", f"--mode={dependency.mode}")
        _, hello = await children.start("resilient_mw.lab.prices", "--with-parent", *behaviour)
        ports[dependency.name] = hello["port"]
    app_port = await _start_app(step, stack, children, ports)
    plan = {
        "port": app_port,
        "loads": [asdict(load) for load in step.loads],
        "stretches": {load.kind: step.stretches(load, length) for load in step.loads},
    }
    generator, hello = await children.start(
        "resilient_mw.lab.load", f"--plan={json.dumps(plan)}", says_more=True
    )
    start: float = hello["start"]
    share = length / step.length

    watcher = asyncio.create_task(_watch(ports, progress, start, show))
    actions = [asyncio.create_task(_act(action, start + action.at * share, ports)) for action in step.actions]
    try:
        records = await _listen(generator, progress)
        await asyncio.gather(*actions)
        last_due = StepResult(step, length, records).last_due
        settled = None
        if step.settle is not None:
            settled = await _settle(last_due + step.settle, start, app_port, ports)
        if step.watch:
            await _calls_go_on(ports, start + last_due + step.watch * share)
        logs = {name: await _log(port, start) for name, port in ports.items()}
        # Only where there is a circuit: an application that is down does not answer.
        has_circuit = any(arguments.get("breaker", True) is not None for arguments in step.app.calls.values())
        inside = await _inside(app_port, start, threads=step.app.threads[stack.name]) if has_circuit else None
        return StepResult(step, length, records, logs, inside, settled)
    finally:
        tasks = (watcher, *actions)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _start_app(step: Step, stack: Stack, children: Children, ports: Mapping[str, int]) -> int:
    """Start the application, the last of its layers first; return the port of the first one."""
    app_port = 0
    for _ in range(step.app.layers):
        behind = (lambda name: ports[name]) if app_port == 0 else (lambda _, port=app_port: port)
        path_behind = (lambda _: "/price") if app_port == 0 else (lambda path: path)
        settings = AppSettings(
            threads=step.app.threads[stack.name],
            routes={
                path: [f"http://127.0.0.1:{behind(name)}{path_behind(path)}" for name in names]
                for path, names in step.app.routes.items()
            },
            timeout=step.app.timeout,
            policy=step.app.policy,
            calls={
                name: {"match": f"http://127.0.0.1:{behind(name)}/*", **arguments}
                for name, arguments in step.app.calls.items()
            },
            server=stack.server,
        )
        app, hello = await children.start(stack.module, f"--settings={settings.to_argument()}")
        app_port = hello["port"]
        await _answers(app, app_port)
    return app_port


async def _answers(app: Child, port: int) -> None:
    """Wait until the application answers its health check; this also is its warm-up."""
    give_up = time.monotonic() + READY_TIME
    while time.monotonic() < give_up:
        try:
            async with asyncio.timeout(ASK_TIME):
                if (await exchange(port, request_bytes("GET", "/health"))).status == 200:
                    return
        except (*WIRE_ERRORS, TimeoutError):
            pass
        await asyncio.sleep(0.05)
    raise LabError(f"{app.module} did not answer its health check in {READY_TIME:.0f} s: {app.complaint()}")


async def _listen(generator: Child, progress: Progress) -> list[Record]:
    """Follow the load generator to its end and return what became of every request."""
    records = []
    while True:
        message = await generator.hear()
        if "progress" in message:
            progress.loads = message["progress"]
        elif "record" in message:
            records.append(Record(*message["record"]))
        elif message.get("done") == len(records):
            return records
        else:
            raise LabError(f"{generator.module} said {message}, with {len(records)} records before")


async def _ask(port: int, method: str, target: str) -> Any:
    """Ask a dependency's control address, or the application how it is.

    Raises:
        LabError: it did not answer, or refused.
    """
    try:
        async with asyncio.timeout(ASK_TIME):
            reply = await exchange(port, request_bytes(method, target))
    except (*WIRE_ERRORS, TimeoutError) as error:
        raise LabError(f"nothing answered {target}: {error!r}") from error
    if reply.status != 200:
        raise LabError(f"{target} was answered with {reply.status}: {reply.body.decode(errors='replace')}")
    return json.loads(reply.body)


async def _watch(ports: Mapping[str, int], progress: Progress, start: float, show: ShowProgress) -> None:
    """Keep the counts of the dependencies fresh and show the progress, until cancelled."""
    while True:
        for name, port in ports.items():
            progress.dependencies[name] = await _ask(port, "GET", "/control/counts")
        progress.elapsed = time.monotonic() - start
        show(progress)
        await asyncio.sleep(ASK_EVERY)


async def _act(action: Action, at: float, ports: Mapping[str, int]) -> None:
    """Change a dependency when its time has come."""
    await asyncio.sleep(at - time.monotonic())
    await _ask(ports[action.dependency], "POST", f"/control?delay={action.delay}&mode={action.mode}")


async def _calls_go_on(ports: Mapping[str, int], mark: float) -> None:
    """Wait for the first call that a dependency receives after an instant, or for a while."""
    await asyncio.sleep(mark - time.monotonic())
    while time.monotonic() < mark + AFTER_WATCH:
        for port in ports.values():
            arrivals = await _ask(port, "GET", "/control/arrivals")
            if arrivals and arrivals[-1] >= mark:
                return
        await asyncio.sleep(ASK_EVERY)


async def _settle(at: float, start: float, app_port: int, ports: Mapping[str, int]) -> Settled:
    """Look at what is in hand at an instant, and let some time pass in which more calls could come."""
    await asyncio.sleep(start + at - time.monotonic())
    state, *counts = await asyncio.gather(
        _ask(app_port, "GET", STATE_PATH), *(_ask(port, "GET", "/control/counts") for port in ports.values())
    )
    await asyncio.sleep(SILENCE)
    return Settled(at, state["in_hand"], sum(each["in_flight"] for each in counts))


async def _inside(app_port: int, start: float, *, threads: int) -> Inside:
    """Return what the application knows of itself: its circuit breakers, its calls and its worker threads."""
    state = await _ask(app_port, "GET", STATE_PATH)
    changes = {
        name: [
            Change(at - start, before.replace("_", "-"), after.replace("_", "-"))
            for at, before, after in transitions
        ]
        for name, transitions in state["transitions"].items()
    }
    return Inside(changes, state["calls"], state["busy_peak"] / threads)


async def _log(port: int, start: float) -> DependencyLog:
    """Return what a dependency saw, with its instants counted from the first request."""
    arrivals = await _ask(port, "GET", "/control/arrivals")
    counts = await _ask(port, "GET", "/control/counts")
    return DependencyLog(counts, [instant - start for instant in arrivals])
