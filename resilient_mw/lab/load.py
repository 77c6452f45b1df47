"""The open-loop load generator, as a process of its own.

Requests are due at the rates of the plan whether or not the last ones have finished, and latency counts from when
a request was due: a generator that waits for answers would stop asking just when the service is slow, and so
hide it.

Its plan comes as JSON on the command line, from the lab; it writes progress and then all records to standard
output.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from resilient_mw.lab.processes import allow_many_connections, announce, exit_with_parent
from resilient_mw.lab.records import OUTCOMES, Record
from resilient_mw.lab.step import Load
from resilient_mw.lab.wire import WIRE_ERRORS, exchange, request_bytes

HEAD_START = 0.2
"""Seconds between the announced start and the first request."""

PROGRESS_EVERY = 0.25


def due_times(stretches: Iterable[tuple[float, float]]) -> list[float]:
    """Return when the requests of a load are due, in seconds from its start.

    Args:
        stretches: one after the other, as (seconds, requests per second).
    """
    due: list[float] = []
    start = 0.0
    for length, rate in stretches:
        due += [start + number / rate for number in range(round(rate * length))]
        start += length
    return due


@dataclass(slots=True)
class Crowd:
    """All users of one run.

    Attributes:
        port: where the application listens.
        start: monotonic instant at which the first request is due.
        records: what became of those who have finished.
        sent: requests begun, by kind.
    """

    port: int
    start: float
    records: list[Record]
    sent: dict[str, int]

    async def user(self, load: Load, request: bytes, due: float) -> None:
        """Send one request, and wait for the answer until the user gives up."""
        at = self.start + due
        late = time.monotonic() - at
        status, retry_after, reason, gave_up = 0, None, None, False
        try:
            async with asyncio.timeout(at + load.give_up - time.monotonic()):
                reply = await exchange(self.port, request)
            status = reply.status
            retry_after = reply.fields.get("retry-after")
            reason = reply.fields.get("x-refusal-reason")
        except TimeoutError:
            gave_up = True
        except WIRE_ERRORS:
            pass  # no answer: the record has status 0, and counts as failed
        latency = time.monotonic() - at
        self.records.append(Record(load.kind, due, late, latency, status, retry_after, reason, gave_up))

    async def arrive(self, load: Load, stretches: Iterable[tuple[float, float]]) -> None:
        """Let the users of one load arrive as `due_times` says, and wait until the last one has gone."""
        request = request_bytes("GET", load.path, load.headers)
        async with asyncio.TaskGroup() as users:
            for due in due_times(stretches):
                await asyncio.sleep(self.start + due - time.monotonic())
                self.sent[load.kind] += 1
                users.create_task(self.user(load, request, due))

    def progress(self) -> dict[str, dict[str, int]]:
        """Return counts by kind: sent, and one for each outcome."""
        counts = {kind: {"sent": sent, **dict.fromkeys(OUTCOMES, 0)} for kind, sent in self.sent.items()}
        for record in self.records:
            counts[record.kind][record.outcome] += 1
        return counts


async def run(plan: dict[str, Any]) -> None:
    """Run a plan: `port`, `loads` with the fields of `step.Load`, and the `stretches` of each, by kind."""
    loads = [Load(**{**each, "headers": tuple(map(tuple, each["headers"]))}) for each in plan["loads"]]
    crowd = Crowd(plan["port"], time.monotonic() + HEAD_START, [], {load.kind: 0 for load in loads})
    announce({"start": crowd.start})

    async def report() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            announce({"progress": crowd.progress()})

    reporter = asyncio.create_task(report())
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(crowd.arrive(load, plan["stretches"][load.kind]))
    reporter.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reporter
    announce({"progress": crowd.progress()})
    for record in sorted(crowd.records, key=lambda record: record.due):
        announce({"record": record})
    announce({"done": len(crowd.records)})


def main(argv: list[str] | None = None) -> None:
    """Run the load generator."""
    parser = argparse.ArgumentParser(prog="python -m resilient_mw.lab.load", description=__doc__)
    parser.add_argument("--plan", required=True, type=json.loads)
    options = parser.parse_args(argv)
    exit_with_parent()
    allow_many_connections()
    asyncio.run(run(options.plan))


if __name__ == "__main__":
    main()
