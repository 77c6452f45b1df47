"""HTTP/2: many calls over one connection, each with its own deadline. Against hypercorn, without TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from resilient_mw.calls import HedgePolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import DeadlineExceeded, ResilienceWarning
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import KINDS, Wire, every_wire, timed

ROOT = Path(__file__).resolve().parents[2]

async_wires = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind[1] == "async"], ids="-".join)


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    """The URL of a hypercorn in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "hypercorn", "tests.integrations.http2_peer:app"]
        command += [
            "--bind",
            f"fd://{listener.fileno()}",
            "--graceful-timeout",
            "0",
            "--log-level",
            "critical",
        ]
        with subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                # Its worker is a process of its own, which would outlive a parent that is killed alone.
                os.killpg(process.pid, signal.SIGKILL)


def open_wire(wire: Wire, peer: str, **keywords: Any) -> Dependency:
    dependency = Dependency("peer", match=f"{peer}/*", reserve=0.0, retry=None, timeout=9.0, **keywords)
    with (
        nullcontext() if wire.is_async else pytest.warns(ResilienceWarning, match="over HTTP/2 in sync code")
    ):
        wire.open([dependency], http1=False, http2=True)
    return dependency


@every_wire
def test_the_dependency_is_told_what_is_left(wire: Wire, peer: str) -> None:
    open_wire(wire, peer)
    wire.get(peer + "/")  # It may still be starting.
    with current().within(10.0):
        response = wire.get(peer + "/")
    assert response.http_version == "HTTP/2"
    assert 5000 < int(response.content) <= 10_000


@every_wire
@pytest.mark.parametrize(("path", "phase"), [("/after/5", "head"), ("/drip", "body")])
def test_the_deadline_holds(wire: Wire, peer: str, path: str, phase: str) -> None:
    dependency = open_wire(wire, peer)
    with current().within(0.5):
        error, took = timed(lambda: wire.get(peer + path))
    assert isinstance(error, DeadlineExceeded)
    assert getattr(error, "phase", None) == phase
    assert took < 0.5 + 2.0
    owner: Any = dependency.owner[0]
    assert owner.snapshot().in_use == 0
    assert wire.get(peer + "/").status_code == 200


@async_wires
@pytest.mark.parametrize("path", ["/after/5", "/drip"])
def test_a_call_that_runs_out_of_time_leaves_the_others_on_its_connection_alone(
    wire: Wire, peer: str, path: str
) -> None:
    dependency = open_wire(wire, peer)

    async def impatient() -> None:
        with current().within(0.1), pytest.raises(DeadlineExceeded):
            await wire.client.get(peer + path)

    async def scenario() -> None:
        await wire.client.get(peer + "/")
        patient = [asyncio.ensure_future(wire.client.get(peer + "/after/0.3")) for _ in range(3)]
        await asyncio.gather(impatient(), impatient())
        assert [response.status_code for response in await asyncio.gather(*patient)] == [200] * 3
        assert len(wire.pool().connections) == 1

    wire.run(scenario())
    owner: Any = dependency.owner[0]
    assert owner.snapshot().attempts.get("error", 0) == 0


@every_wire
def test_a_hedge_that_loses_leaves_the_others_on_its_connection_alone(wire: Wire, peer: str) -> None:
    dependency = open_wire(wire, peer, hedge=HedgePolicy(delay=0.05))
    assert wire.get(peer + "/").status_code == 200
    if wire.is_async:

        async def scenario() -> None:
            others = [asyncio.ensure_future(wire.client.get(peer + "/after/0.3")) for _ in range(3)]
            assert [response.status_code for response in await asyncio.gather(*others)] == [200] * 3
            await asyncio.sleep(0.1)

        wire.run(scenario())
    else:
        assert wire.get(peer + "/after/0.3").status_code == 200
        sleep(0.2)
    assert wire.get(peer + "/").status_code == 200
    assert len(wire.pool().connections) == 1
    snapshot = dependency.snapshot()
    assert snapshot.in_use == 0
    assert snapshot.attempts.get("error", 0) == 0
    assert snapshot.hedges is not None
    assert snapshot.hedges.made >= 1
