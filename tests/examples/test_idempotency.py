"""The example of idempotency keys makes each payment once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]


def test_a_payment_is_made_once(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "idempotency.py", str(port), str(tmp_path / "keys.db")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations")))},
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            end = time.monotonic() + 60
            while True:
                try:
                    assert client.get("/payments").json() == []
                    break
                except httpx.TransportError:
                    assert time.monotonic() < end, "it does not answer"
                    time.sleep(0.05)

            def pay(_: int) -> httpx.Response:
                headers = {"Idempotency-Key": '"k-1"', "X-Client-Id": "me"}
                return client.post("/payments", json={"amount": 5}, headers=headers)

            with ThreadPoolExecutor(10) as pool:
                answers = list(pool.map(pay, range(10)))
            assert {answer.status_code for answer in answers} == {201}
            assert {answer.text for answer in answers} == {'{"number":1}'}
            assert sum("idempotency-replayed" in answer.headers for answer in answers) == 9
            assert client.get("/payments").json() == [5]
            assert client.post("/payments", json={"amount": 5}).status_code == 400
    finally:
        process.kill()
        process.wait(10)
