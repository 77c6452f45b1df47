"""Find the subcommand and hand over to it.

A subcommand is named in a table and imported when it is used: each needs other things installed, and none
knows another.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from resilient_mw._version import __version__


class Command(NamedTuple):
    """A subcommand: where its `main(argv) -> int` is, and what it does in a few words."""

    module: str
    help: str


COMMANDS = {
    "explain": Command(
        "resilient_mw.cli.explain",
        "print the effective policy of an application, and what is likely to be wrong",
    ),
    "idempotency": Command(
        "resilient_mw.cli.idempotency", "look at a store of idempotency keys: list, show, release, purge"
    ),
    "lab": Command(
        "resilient_mw.lab.command", "break a real service on purpose and show what the protections change"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `resilient-mw` and return its exit status; 2 for bad usage.

    Args:
        argv: arguments without the program's name; None takes those of the process.
    """
    parser = argparse.ArgumentParser(
        prog="resilient-mw",
        description="Overload protection, deadlines and cancellation for ASGI and WSGI services.",
        epilog="\n".join(
            [
                "commands:",
                *(f"  {name:<12} {command.help}" for name, command in COMMANDS.items()),
                "",
                "resilient-mw COMMAND --help says more about one of them.",
            ]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"resilient-mw {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    try:
        options = parser.parse_args(argv)
        run: Callable[[Sequence[str]], int] = importlib.import_module(COMMANDS[options.command].module).main
        return run(options.arguments)
    except SystemExit as end:  # argparse ends this way after --help and after an error, and has said why
        return end.code if isinstance(end.code, int) else 2
