"""The example of the chain: its one command, and its three services one by one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from resilient_mw import Dependency
from tests.contract.client import ask, leave

CHAIN = Path(__file__).parents[2] / "examples" / "chain.py"
RESERVE = Dependency("next", match="http://next/*").reserve


class Ports(NamedTuple):
    gateway: int
    a: int
    b: int


@pytest.fixture(scope="module")
def chain() -> Iterator[Ports]:
    """The three services, each a process of its own."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen([sys.executable, CHAIN, *arguments], stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        return process.stdout.readline().strip()

    try:
        b = start("B")
        a = start("A", "--next", b)
        gateway = start("gateway", "--next", a)
        yield Ports(*(int(url.rpartition(":")[2]) for url in (gateway, a, b)))
    finally:
        for process in running:
            process.kill()
            process.communicate()


async def seen(port: int) -> Any:
    return (await ask(port, "/seen")).json


async def another_order(port: int, than: int) -> None:
    """Wait until a service has seen more orders."""
    async with asyncio.timeout(10):
        while (await seen(port))["orders"] == than:  # noqa: ASYNC110  it is another process that sees them
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("budget_ms", [None, 1500])
async def test_every_hop_receives_less(chain: Ports, budget_ms: int | None) -> None:
    await ask(chain.gateway, "/order")  # the first call of a process also loads modules
    answer = await ask(chain.gateway, "/order", budget_ms=budget_ms)
    assert answer.status == 200
    gateway, a, b = answer.json
    assert [hop["service"] for hop in (gateway, a, b)] == ["gateway", "A", "B"]
    given = 2.0 if budget_ms is None else budget_ms / 1000
    assert gateway["received"] <= given
    assert a["received"] <= min(gateway["left"], given - 0.6) - RESERVE
    assert a["left"] < a["received"] - 0.09  # a sleep of 0.1 s, of which a timer may miss a little
    assert b["received"] <= a["left"] - RESERVE
    slack = 0.9 if budget_ms is None else 0.6  # for a machine that is busy with something else
    # What is missing is the own work, two reserves and the way, and not a share of everything.
    assert a["received"] > given - 0.6 - RESERVE - slack
    assert b["received"] > a["left"] - RESERVE - slack


async def test_a_caller_who_hangs_up_cancels_the_handler_of_the_last_hop(chain: Ports) -> None:
    """B notes the instant of its cancellation; both instants are of this machine's one monotonic clock."""
    before = (await seen(chain.b))["orders"]
    there = asyncio.Event()
    caller = asyncio.create_task(leave(chain.gateway, "/order?slow=B", after=there))
    await another_order(chain.b, before)
    await asyncio.sleep(0.1)
    there.set()
    hung_up = await caller
    for port in chain:
        async with asyncio.timeout(10):
            while (cancelled := (await seen(port))["cancelled"]) is None:  # noqa: ASYNC110  in another process
                await asyncio.sleep(0.02)
        assert cancelled["reason"] == "client_disconnect"
        assert 0.0 < cancelled["at"] - hung_up < 1.5


async def test_what_expires_in_the_queue_of_one_hop_is_unknown_to_the_next(chain: Ports) -> None:
    await ask(chain.gateway, "/order")
    before_a, before_b = (await seen(chain.a))["orders"], (await seen(chain.b))["orders"]
    somebody_else = asyncio.create_task(ask(chain.a, "/order?slow=A"))
    await another_order(chain.a, before_a)
    through = await ask(chain.gateway, "/order")
    direct = await ask(chain.a, "/order", budget_ms=300)
    after_a, after_b = (await seen(chain.a))["orders"], (await seen(chain.b))["orders"]
    assert not somebody_else.done()
    somebody_else.cancel()
    assert through.status == 504
    assert 1.8 < through.seconds < 2.5
    # Where it was when the time was over; on a busy machine the gateway's middleware is quicker than its handler.
    assert "at 'A'" in through.json.get("detail", "") or through.json.get("reason") == "deadline_exceeded"
    assert (direct.status, direct.reason) == (504, "expired_in_queue")
    assert after_a == before_a + 1  # somebody else
    assert after_b == before_b
    # When A is free again, orders reach B and are counted there.
    assert (await ask(chain.gateway, "/order")).status == 200
    assert (await seen(chain.b))["orders"] == before_b + 1


@pytest.mark.slow
def test_the_one_command_shows_all_of_it_and_ends() -> None:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", CHAIN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        account, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, "")
        with pytest.raises(ProcessLookupError):  # nobody of it is left
            os.killpg(process.pid, 0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    rows = re.findall(r"^ +(gateway|A|B) +(\d+) ms +(\d+) ms +(\d+) ms$", account, re.MULTILINE)
    assert [row[0] for row in rows] == ["gateway", "A", "B"]
    received = [int(row[1]) for row in rows]
    assert received == sorted(received, reverse=True)
    assert 1000 < received[1] <= 1390
    (late,) = re.findall(r"cancelled (\d+) ms later: client_disconnect", account)
    assert int(late) < 200
    assert re.search(r"^ +504 after (1[89]|2[0-4])\d\d ms: ", account, re.MULTILINE)
    assert account.endswith("B was asked 0 times.\n")
