"""Run the state machines of admission, breaker, retry budget and call, and the fuzz of ASGI, with very many examples.

    python scripts/prove.py                              # 200,000 examples of each: hours
    python scripts/prove.py fuzz                         # 100,000 sequences of requests: some ten minutes
    python scripts/prove.py breaker budget               # some of them
    python scripts/prove.py --examples 20000 --workers 2

The examples come in chunks, each a run of its own with a seed of its own: hypothesis keeps what it has seen of
one run in memory and slows down with it. A chunk is repeated by the command that is printed when it fails.

Exit status 1: a chunk failed.
"""
# ruff: noqa: S603, T201

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHUNK = 5_000
"""Examples of one chunk: those of the profile `long`."""

MACHINES = {
    "admission": "tests/admission/test_controller_machine.py",
    "breaker": "tests/calls/test_breaker_machine.py",
    "budget": "tests/calls/test_budget_machine.py",
    "call": "tests/calls/test_call_machine.py",
    "fuzz": "tests.asgi.fuzz",  # a command of its own: each of its sequences is its seed
}
FUZZ = "fuzz"
EXAMPLES = dict.fromkeys(MACHINES, 200_000) | {FUZZ: 100_000}


@dataclass(frozen=True)
class Chunk:
    """One run of pytest, or of the fuzz."""

    machine: str
    seed: int

    def command(self) -> list[str]:
        """Return the command line that runs it."""
        if self.machine == FUZZ:
            first = str((self.seed - 1) * CHUNK)
            return [sys.executable, "-m", MACHINES[FUZZ], "--first", first, "--count", str(CHUNK)]
        return [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "tests.admission.profiles",
            "--hypothesis-profile=long", f"--hypothesis-seed={self.seed}", "-o", "timeout=0", "-o",
            "faulthandler_timeout=0", MACHINES[self.machine],
        ]  # fmt: skip

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            self.command(), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )


def prove(machines: list[str], examples: int | None, workers: int, first_seed: int) -> bool:
    """Run all chunks, say how far they are, and return whether all have passed."""
    chunks = [
        Chunk(machine, first_seed + number)
        for machine in machines
        for number in range(-(-(examples or EXAMPLES[machine]) // CHUNK))
    ]
    passed = dict.fromkeys(machines, 0)
    begun, failed = time.monotonic(), 0
    with ThreadPoolExecutor(workers) as pool:
        runs = {pool.submit(chunk.run): chunk for chunk in chunks}
        for done, future in enumerate(as_completed(runs), 1):
            chunk, result = runs[future], future.result()
            if result.returncode == 0:
                passed[chunk.machine] += CHUNK
            else:
                failed += 1
                print(f"FAILED: {' '.join(chunk.command()[1:])}\n{result.stdout}{result.stderr}", flush=True)
            so_far = ", ".join(f"{machine} {count:,}" for machine, count in passed.items())
            print(f"{time.monotonic() - begun:7.0f} s  chunk {done} of {len(chunks)}: {so_far}", flush=True)
    print(f"{failed} of {len(chunks)} chunks failed.")
    return failed == 0


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("machines", nargs="*", metavar="machine", help=f"{', '.join(MACHINES)}; default: all")
    parser.add_argument("--examples", type=int, help="of each machine (default 200,000; fuzz 100,000)")
    parser.add_argument("--workers", type=int, default=1, help="chunks at once (default 1)")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first chunk; the next ones count up (default 1)"
    )
    options = parser.parse_args()
    unknown = set(options.machines) - set(MACHINES)
    if unknown:
        parser.error(f"there is no machine {', '.join(sorted(unknown))}; there are: {', '.join(MACHINES)}")
    if (options.examples is not None and options.examples < 1) or options.workers < 1:
        parser.error("--examples and --workers are at least 1")
    machines = options.machines or list(MACHINES)
    sys.exit(not prove(machines, options.examples, options.workers, options.seed))


if __name__ == "__main__":
    main()
