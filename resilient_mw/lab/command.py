"""`resilient-mw lab`: choose steps, run them, show and write what they gave."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resilient_mw.lab.console import Console
from resilient_mw.lab.report import render
from resilient_mw.lab.results import StepResult
from resilient_mw.lab.runner import run_step
from resilient_mw.lab.stacks import ASGI, WSGI, WSGI_STACKS, Stack
from resilient_mw.lab.step import Load, Step
from resilient_mw.lab.steps import STEPS, select

OK, MISSED, USAGE, INTERRUPTED = 0, 1, 2, 130

DESCRIPTION = """\
Break a real service on purpose and show what the protections change. Starts real processes on 127.0.0.1: a
price service, an application that calls it, and a load generator; takes some twelve minutes for all steps.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    width = max(len(step.name) for step in STEPS)
    steps = [f"  {step.name:<{width}} {step.title}" for step in STEPS]
    made = argparse.ArgumentParser(
        prog="resilient-mw lab",
        description=DESCRIPTION,
        epilog="\n".join(
            [
                "steps:",
                *sorted(steps),
                "",
                "exit status: 0 as expected, 1 a step missed its expectation, 2 bad usage",
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--asgi", action="store_true", help=f"run on {ASGI.title} (default: {WSGI.title})")
    made.add_argument(
        "--server",
        choices=sorted(WSGI_STACKS),
        help=f"the WSGI server (default: {WSGI.server})",
    )
    made.add_argument(
        "--step",
        dest="steps",
        metavar="N",
        nargs="+",
        action="extend",
        default=[],
        help="run these steps only; 7 means 7a and 7b",
    )
    made.add_argument(
        "--quick", action="store_true", help="shorter loads at the same rates; counts scale with length"
    )
    made.add_argument(
        "--json", metavar="FILE", type=Path, help="write every figure and every request to FILE"
    )
    made.add_argument(
        "--report",
        metavar="FILE",
        type=Path,
        default=Path("lab-report.html"),
        help="where to write the report (default ./lab-report.html)",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    try:
        steps = select(options.steps)
    except ValueError as error:
        arguments.error(str(error))
    for file in filter(None, (options.report, options.json)):
        problem = cannot_write(file)
        if problem:
            arguments.error(problem)
    if options.asgi and options.server is not None:
        arguments.error("--server is for WSGI: leave out --asgi")
    stack = ASGI if options.asgi else WSGI_STACKS[options.server or WSGI.server]
    missing = stack.missing()
    if missing:
        arguments.error(f'this needs {", ".join(missing)}: pip install "resilient-mw[lab]"')

    console = Console(sys.stdout)
    try:
        results = run_steps(steps, stack, quick=options.quick, console=console)
    except KeyboardInterrupt:
        console.line()
        console.line("interrupted; all processes of the lab have been ended")
        return INTERRUPTED
    console.summary(results)
    write(results, stack, options, console)
    return OK if all(result.passed for result in results) else MISSED


def cannot_write(file: Path) -> str | None:
    """Return why a file cannot be written, before the steps are run and not after; None if it can."""
    folder = file.absolute().parent
    if not folder.is_dir():
        return f"cannot write {file}: there is no folder {folder}"
    if file.is_dir():
        return f"cannot write {file}: it is a folder"
    if not os.access(file if file.exists() else folder, os.W_OK):
        return f"cannot write {file}: no permission"
    return None


def run_steps(steps: Sequence[Step], stack: Stack, *, quick: bool, console: Console) -> list[StepResult]:
    """Run steps one after the other."""
    console.line(f"{stack.title}, {len(steps)} steps" if len(steps) > 1 else stack.title)
    results = []
    for step in steps:
        length = step.quick if quick else step.length
        note = (
            ", ".join(f"{_rates(step, load)} {load.kind}/s" for load in step.loads) + f" for {length:.0f} s"
        )
        if step.watch:
            note += f", then watched for {step.watch * length / step.length:.0f} s"
        console.step_begins(f"Step {step.name}: {step.title}", note)
        result = asyncio.run(run_step(step, stack, length=length, show=console.progress))
        console.step_ends(result)
        results.append(result)
    return results


def _rates(step: Step, load: Load) -> str:
    """Return the rate of a load, or those of the phases one after the other."""
    rates = [f"{rate:g}" for _, rate in step.stretches(load, step.length)]
    return rates[0] if len(set(rates)) == 1 else ", ".join(rates)


def write(results: Sequence[StepResult], stack: Stack, options: argparse.Namespace, console: Console) -> None:
    """Write the report, and the figures if they were asked for."""
    now = datetime.datetime.now(datetime.UTC)
    when = f"{now:%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}"
    options.report.write_text(render(results, stack=stack.title, when=when), encoding="utf-8")
    console.line()
    console.line(f"report: {options.report}")
    if options.json is not None:
        content: dict[str, Any] = {
            "stack": stack.name,
            "server": stack.server,
            "when": now.isoformat(timespec="seconds"),
            "quick": options.quick,
            "passed": all(result.passed for result in results),
            "steps": [result.to_json() for result in results],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        console.line(f"figures: {options.json}")
