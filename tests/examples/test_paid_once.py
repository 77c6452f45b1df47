"""The example of payments in one transaction with their keys keeps its word, also when it is killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "paid_once.py"
WITHIN = 60.0


@contextmanager
def service(file: Path) -> Iterator[httpx.Client]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, EXAMPLE, str(port), str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations")))},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WITHIN) as client:
            ends = time.monotonic() + WITHIN
            while True:
                try:
                    client.get("/payments")
                    break
                except httpx.TransportError:
                    assert process.poll() is None, "it has ended"
                    assert time.monotonic() < ends, "it did not start"
                    time.sleep(0.05)
            yield client
    finally:
        process.kill()
        process.wait()


def pay(client: httpx.Client, key: str = '"order-7"', caller: str = "ann", amount: int = 5) -> httpx.Response:
    headers = {"Idempotency-Key": key, "X-Account": caller}
    return client.post("/payments", json={"amount": amount}, headers=headers)


def test_a_payment_happens_once(tmp_path: Path) -> None:
    file = tmp_path / "payments.db"
    with service(file) as client:
        first, second = pay(client), pay(client)
        assert [first.status_code, second.status_code] == [201, 201]
        assert first.json() == second.json() == {"id": 1}
        assert "idempotency-replayed" not in first.headers
        assert second.headers["idempotency-replayed"] == "true"
        assert pay(client, amount=6).status_code == 422
        assert client.post("/payments", json={"amount": 5}, headers={"X-Account": "ann"}).status_code == 400
        assert pay(client, caller="bob").json() == {"id": 2}
    with service(file) as client:
        assert pay(client).json() == {"id": 1}
        assert client.get("/payments").json() == {"payments": 2}
