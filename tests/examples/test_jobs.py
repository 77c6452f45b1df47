"""The example of background jobs keeps its word, also when it is stopped meanwhile."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "jobs.py"
WITHIN = 60.0
ORDERS = 24


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@contextmanager
def service(file: Path, log: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, EXAMPLE, str(port), str(file)],
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations")))},
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WITHIN) as client:

            def ready() -> bool:
                try:
                    return client.get("/health").status_code == 200
                except httpx.TransportError:
                    return False

            until(ready)
            yield client, process
    finally:
        process.kill()
        process.wait(10)


def test_every_invoice_is_sent_across_a_restart(tmp_path: Path) -> None:
    file, log = tmp_path / "jobs.db", tmp_path / "log"

    def delivered() -> set[int]:
        lines = log.read_text(encoding="utf-8").splitlines()
        return {int(line.split()[2].rstrip(",")) for line in lines if line.startswith("sent invoice")}

    with service(file, log) as (client, process), ThreadPoolExecutor(ORDERS) as callers:
        answers = list(callers.map(lambda order: client.post(f"/invoices/{order}"), range(ORDERS)))
        assert {answer.status_code for answer in answers} == {202}
        assert [answer.json()["key"] for answer in answers] == [f"invoice-{order}" for order in range(ORDERS)]
        assert any(answer.json()["deferred"] for answer in answers)
        reminders = list(callers.map(lambda _: client.post("/reminders/99"), range(ORDERS)))
        refused = [answer for answer in reminders if answer.status_code != 202]
        assert {answer.json()["reason"] for answer in refused} == {"queue_full"}
        process.terminate()
        process.wait(WITHIN)
    with service(file, log):
        until(lambda: delivered() >= set(range(ORDERS)))
