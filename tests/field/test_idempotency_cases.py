"""Field cases of idempotency keys that need processes: several over one store, and one that is killed in the handler."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.source_tree import ROOT

WITHIN = 60.0
APP = ROOT / "tests" / "field" / "paying_app.py"


class Reply(NamedTuple):
    status: int
    replayed: bool
    body: bytes


class Service:
    """One process of the service."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process

    def pay(self, key: str, takes: float = 0.0) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN)
        try:
            headers = {"Idempotency-Key": f'"{key}"', "X-Client-Id": "me"}
            connection.request("POST", f"/payments?takes={takes}", b"{}", headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.getheader("Idempotency-Replayed") == "true", answer.read())
        finally:
            connection.close()


@contextmanager
def service(protocol: str, folder: Path, lease: float) -> Iterator[Service]:
    """Run one process; it takes connections from the start, since its socket listens already."""
    ledger = folder / "ledger"
    ledger.touch()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        process = subprocess.Popen(
            [sys.executable, APP, protocol, str(listening.fileno()), folder / "keys.db", ledger, str(lease)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations")))},
            pass_fds=(listening.fileno(),),
        )
        port = listening.getsockname()[1]
    try:
        yield Service(port, process)
    finally:
        process.kill()
        process.wait(10)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def lines(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().splitlines()


@pytest.mark.parametrize("protocol", ["asgi", "wsgi"])
def test_b85_four_processes_over_one_store_run_once(protocol: str, tmp_path: Path) -> None:
    """A hundred of the same at one time, twenty-five to each: one line in the ledger, one answer for all."""
    with ExitStack() as stack:
        services = [stack.enter_context(service(protocol, tmp_path, 30)) for _ in range(4)]
        with ThreadPoolExecutor(100) as pool:
            replies = list(pool.map(lambda number: services[number % 4].pay("k-1", 0.3), range(100)))
    assert len(lines(tmp_path)) == 1
    assert {(reply.status, reply.body.strip().replace(b" ", b"")) for reply in replies} == {
        (201, b'{"payment":1}')
    }
    assert sum(reply.replayed for reply in replies) == 99


@pytest.mark.parametrize("protocol", ["asgi", "wsgi"])
def test_b86_a_process_that_is_killed_in_the_handler(protocol: str, tmp_path: Path) -> None:
    """The policy says that the work may run again: after the lease a repeat does, in another process, and is recorded."""
    with ExitStack() as stack:
        one, other = (stack.enter_context(service(protocol, tmp_path, 1.5)) for _ in range(2))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(one.pay, "k-1", 50)
            until(lambda: lines(tmp_path))
            one.process.send_signal(signal.SIGKILL)
            with pytest.raises((http.client.HTTPException, OSError)):
                first.result(WITHIN)
        # The lease is not over: it waits for that, and runs then.
        assert other.pay("k-1", 50)[:2] == (201, False)
        assert other.pay("k-1", 50)[:2] == (201, True)
    made = lines(tmp_path)
    assert [line.split()[0] for line in made] == ['"k-1"'] * 2
    assert len(set(made)) == 2, "by two processes"
