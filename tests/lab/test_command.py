from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import resilient_mw
from resilient_mw.cli.main import COMMANDS, main
from resilient_mw.lab.steps import STEPS

ROOT = str(Path(resilient_mw.__path__[0]).parent)


def begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command as a user would, in a folder of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "resilient_mw.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["lab", "--step", "0", "9"], "there is no step '9'"),
        (["lab", "--step"], "expected at least one argument"),
        (["lab", "--fast"], "unrecognized arguments: --fast"),
        (["lab", "0"], "unrecognized arguments: 0"),
        (["lab", "--report", "nowhere/report.html"], "cannot write nowhere/report.html: there is no folder"),
        (["lab", "--json", "."], "cannot write .: it is a folder"),
        (["lab", "--server", "apache"], "--server: invalid choice: 'apache'"),
        (["lab", "--server", "gunicorn", "--asgi"], "--server is for WSGI: leave out --asgi"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)  # fmt: skip
def test_bad_usage_is_status_2_and_says_what_is_wrong(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["lab", "--help"]])
def test_help_and_version_are_status_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert "resilient-mw" in capsys.readouterr().out


def test_help_lists_every_step_those_to_come_too(capsys: pytest.CaptureFixture[str]) -> None:
    main(["lab", "--help"])
    shown = capsys.readouterr().out
    for step in STEPS:
        assert step.title in shown


@pytest.mark.parametrize("flag", [[], ["--asgi"]])
def test_a_missing_package_is_said_in_one_sentence(
    flag: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "httpx" else object())
    assert main(["lab", *flag, "--step", "0"]) == 2
    assert 'this needs httpx: pip install "resilient-mw[lab]"' in capsys.readouterr().err


def test_the_command_imports_nothing_that_is_not_used() -> None:
    code = (
        "import sys; from resilient_mw.cli.main import main; main(['--help'])\n"
        "loaded = {'asyncio', 'flask', 'httpx', 'resilient_mw.lab'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_every_command_is_there() -> None:
    for command in COMMANDS.values():
        module = __import__(command.module, fromlist=["main"])
        assert callable(module.main)


@pytest.mark.parametrize(
    ("sent", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_no_process_is_left_when_the_lab_is_stopped(
    sent: signal.Signals, status: int, children: Callable[[int], set[int]], tmp_path: Path
) -> None:
    lab = begin(tmp_path, "lab", "--step", "0")
    with lab:
        try:
            started: set[int] = set()
            while len(started) < 3 and lab.poll() is None:  # the price service, the application, the load
                time.sleep(0.05)
                started = children(lab.pid)
            assert len(started) == 3
            lab.send_signal(sent)
            assert lab.wait(20) == status
        finally:
            lab.kill()
        give_up = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
        assert lab.stdout is not None
        output = lab.stdout.read()
    assert "Traceback" not in output
    if sent is signal.SIGINT:
        assert "interrupted; all processes of the lab have been ended" in output
