"""Starts that must fail, and say why, in the log that a person will look at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.servers.processes import COMMANDS, ROOT, launched

pytestmark = pytest.mark.slow


def _text(server_log: str) -> str:
    return " ".join(server_log.split())


@pytest.mark.parametrize("name", ["uvicorn-h11", "hypercorn", "granian", "gunicorn"])
def test_a_wrong_mark_fails_the_start(name: str, tmp_path: Path) -> None:
    """The class 'vip' does not exist; the log says so and names those that do."""
    with launched(name, tmp_path, environment=[("PROBE_WRONG_MARK", "1")]) as server:
        status = server.ended(within=40)
    assert status != 0 or name == "hypercorn"  # whose parent process does not tell
    assert "'vip', which does not exist: it must be one of ['normal', 'exempt']" in _text(server.logged())


def test_on_trio_the_start_fails(tmp_path: Path) -> None:
    with launched("hypercorn-trio", tmp_path) as server:
        server.ended(within=40)
    assert "resilient_mw runs on asyncio only" in _text(server.logged())


def test_the_versions_of_the_servers_are_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in pins.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9]+==[0-9.]+", line) for line in lines), lines
    modules = {make("app", 1)[0] for make in COMMANDS.values()} | {
        "httptools",
        "uvloop",
        "h11",
        "h2",
        "waitress",
    }
    assert modules <= {line.partition("==")[0] for line in lines}
