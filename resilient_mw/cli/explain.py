"""`resilient-mw explain`: import an application, and say what its policy means and what is likely to be wrong."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from resilient_mw.cli.advice import advice
from resilient_mw.cli.explained import explained
from resilient_mw.cli.facts import Question
from resilient_mw.cli.gather import gather
from resilient_mw.cli.locate import Unusable, find, idempotency_layers, load
from resilient_mw.cli.shown import as_json, as_text

OK, WARNED, USAGE = 0, 1, 2

DESCRIPTION = """\
Import an application and print its effective policy: how each route is treated and why, what the numbers mean, and
what is likely to be wrong. The application is not started: what it makes at its start-up is not seen.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="resilient-mw explain",
        description=DESCRIPTION,
        epilog="exit status: 0 explained, 1 warnings and --strict, 2 bad usage",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("target", metavar="MODULE:APP", help="what you give to the server, such as main:app")
    made.add_argument("--factory", action="store_true", help="APP is a function that returns the application")
    made.add_argument(
        "--service-time", metavar="SECONDS", type=_positive, help="what a request typically takes"
    )
    made.add_argument(
        "--rate",
        metavar="PER_SECOND",
        type=_positive,
        help="requests a second that all processes together get",
    )
    made.add_argument("--workers", metavar="N", type=_count, default=1, help="server processes (default: 1)")
    made.add_argument(
        "--machines", metavar="N", type=_count, default=1, help="machines that they are on (default: 1)"
    )
    made.add_argument(
        "--threads", metavar="N", type=_count, help="worker threads of one process (ASGI: 40 unless changed)"
    )
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--strict", action="store_true", help="exit with status 1 if there are warnings")
    return made


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    arguments = parser()
    options = arguments.parse_args(argv)
    question = Question(
        options.service_time, options.rate, options.workers, options.threads, options.machines
    )
    try:
        with redirect_stdout(sys.stderr):  # what the application prints is no part of the report
            app = load(options.target, factory=options.factory)
            found = find(app, options.target)
            facts = gather(options.target, found, idempotency_layers(app))
    except Unusable as error:
        arguments.error(str(error))
    figures = explained(facts, question)
    warnings = advice(facts, figures, question)
    if options.json:
        _print(json.dumps(as_json(figures, warnings), indent=1))
    else:
        _print("\n".join(as_text(figures, warnings)))
    return WARNED if warnings and options.strict else OK


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except (
        BrokenPipeError
    ):  # The reader, such as `head`, has seen enough; nor may the flush at exit complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value
