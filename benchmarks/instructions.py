"""Count the instructions that the middleware adds to a request, by callgrind: the same number on a busy machine.

    python benchmarks/instructions.py [--most N]

Needs valgrind. Each case runs in a process of its own, once with few requests and once with more; the difference is what
the requests cost, without start-up and imports. Exit status 1: an admitted ASGI request adds more than `--most`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

FEW, MORE = 100, 600
MOST = 48_000
"""Instructions that an admitted ASGI request may add: what it adds today, and some room for other builds of Python."""
BOUND = 32_000
"""What it is meant to add: twice what the same steps cost when they are written by hand in one function."""

CASES = ("raw", "no-op wrapper", "admitted", "refused")


def application(case: str) -> Any:
    """Return the application of a case."""
    from run import AsgiMiddleware, NoOp, full, raw_asgi

    if case == "raw":
        return raw_asgi
    if case == "no-op wrapper":
        return NoOp(raw_asgi)
    if case == "admitted":
        return AsgiMiddleware(raw_asgi, limit=1000, name="instructions")
    return full(AsgiMiddleware, raw_asgi)


async def serve(case: str, requests: int) -> None:
    """Serve requests in process, one after the other."""
    from run import receive, scope, send

    app = application(case)
    scopes = [scope() for _ in range(requests)]
    gc.disable()  # when it comes round is chance
    for each in scopes:
        await app(each, receive, send)


def count(case: str, requests: int) -> int:
    """Return the instructions of a process that serves so many requests."""
    command = [
        "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, str(Path(__file__)),
        "--serve", case, str(requests),
    ]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise SystemExit(f"callgrind did not count {case!r}:\n{done.stderr}")
    return int(found[1])


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=MOST, help=f"for an admitted request (default {MOST:,})")
    parser.add_argument("--serve", nargs=2, metavar=("CASE", "REQUESTS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve[0], int(options.serve[1])))
        return 0
    if shutil.which("valgrind") is None:
        parser.error("valgrind is not installed")
    print(f"{'instructions per request':<26}{'total':>9}{'added':>9}")
    raw = 0.0
    for case in CASES:
        total = (count(case, MORE) - count(case, FEW)) / (MORE - FEW)
        raw = raw or total
        print(f"{case:<26}{total:9,.0f}{total - raw:9,.0f}", flush=True)
        if case == "admitted" and total - raw > options.most:
            print(f"An admitted request adds more than {options.most:,} instructions.")
            return 1
        if case == "admitted":
            print(f"{'  its bound':<26}{'':9}{BOUND:9,}{'' if total - raw <= BOUND else '  not held'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
