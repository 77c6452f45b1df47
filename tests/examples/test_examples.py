"""Each example runs with one command and does what it says."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.client import ask

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICES = [
    "protected_asgi.py",
    "protected_django.py",
    "protected_fastapi.py",
    "protected_flask.py",
    "protected_litestar.py",
    "protected_quart.py",
    "protected_starlette.py",
]


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / request.param, str(port)], stderr=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait(10)


async def _ready(port: int) -> None:
    for _ in range(400):
        try:
            if (await ask(port, "/health")).status == 200:
                return
        except OSError:
            await asyncio.sleep(0.1)
    raise AssertionError("the example did not start")


async def test_an_example_serves_refuses_and_ends_on_time(service: int) -> None:
    await _ready(service)
    checkout = await ask(service, "/checkout")
    assert 9.0 < checkout.json["seconds_left"] < 10.0
    answers = await asyncio.gather(*(ask(service, "/report", budget_ms=400) for _ in range(12)))
    reasons = {answer.json["reason"] for answer in answers}
    assert reasons <= {
        "deadline_exceeded",
        "queue_full",
        "queue_timeout",
        "predicted_late",
        "expired_in_queue",
    }
    assert {"deadline_exceeded", "queue_full"} <= reasons
    assert (await ask(service, "/health")).status == 200


def test_every_example_is_run() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == [
        "chain.py",
        "idempotency.py",
        "jobs.py",
        "paid_once.py",
        *SERVICES,
        "six_calls.py",
    ]


def test_the_django_example_is_a_project_with_commands() -> None:
    def manage(command: str) -> str:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "protected_django.py", command],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    assert "no issues" in manage("check")
    assert re.search(r"^sheddable +1 +10 s +any +/report/<int:number> +", manage("resilience"), re.MULTILINE)


def test_the_six_calls_show_retry_fallback_and_circuit_and_end() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "six_calls.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = re.findall(r"^(\d)\. .+? (\d{3})  (\w+) +(\d) asked", done.stdout, re.MULTILINE)
    assert rows == [
        ("1", "200", "fresh", "1"),
        ("2", "200", "fresh", "2"),
        ("3", "200", "stale", "1"),
        ("4", "200", "stale", "0"),
        ("5", "200", "fresh", "1"),
        ("6", "200", "fresh", "1"),
    ]
    assert done.stdout.endswith("circuit: closed -> open -> half_open -> closed\n")
