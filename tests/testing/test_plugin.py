"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT

USERS_TEST = """
from resilient_mw import ServerPolicy
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"x"]


def status():
    middleware = ResilienceMiddleware(app)
    return ScriptedWSGI(middleware, headers=[("X-Request-Timeout-Ms", "0")]).run().status


def test_off(resilience_disabled):
    assert status() == "200 OK"


def test_on():
    assert status() == "504 Gateway Timeout"


def test_clock(manual_clock):
    assert isinstance(manual_clock, ManualClock)
    policy = ServerPolicy(deadline_default=2.0)
    use_clock(policy, manual_clock)

    def slow(environ, start_response):
        manual_clock.advance(3.0)
        return app(environ, start_response)

    assert ScriptedWSGI(ResilienceMiddleware(slow, policy)).run().status == "504 Gateway Timeout"


def test_clock_again(manual_clock):
    assert manual_clock.now() == 0.0
"""


def pytest_with_plugin(folder: Path, *options: str) -> str:
    # The installed package brings the plugin by its entry point. Here it comes by its name, alone and in any case.
    finished = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
            "-p", "resilient_mw.testing.plugin", "-W", "error", "-q", *options,
        ],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations")])},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_the_fixtures_are_there(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_users.py").write_text(USERS_TEST, encoding="utf-8")
    assert "4 passed" in pytest_with_plugin(tmp_path)


def test_the_fixtures_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n", encoding="utf-8")
    listed = pytest_with_plugin(tmp_path, "--fixtures", "-v")
    assert "manual_clock" in listed
    assert "resilience_disabled" in listed
