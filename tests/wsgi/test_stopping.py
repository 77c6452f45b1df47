"""SIGTERM under gunicorn's gthread workers, which `drain_on_signal` gives a delay and a bound, and under waitress: a delay."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.wsgi import servers
from tests.wsgi.servers import serve

pytestmark = pytest.mark.slow


def test_readiness_falls_first_and_what_is_too_slow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gunicorn")
    usual = servers.command
    monkeypatch.setattr(
        servers, "command", lambda *of: [*usual(*of)[:-1], "--graceful-timeout", "30", usual(*of)[-1]]
    )
    monkeypatch.setenv("GUNICORN_CMD_ARGS", "--config python:tests.wsgi.stopped_app")
    with ThreadPoolExecutor() as pool, serve("gunicorn", "tests.wsgi.stopped_app:application") as server:
        quick, slow = pool.submit(server.get, "/1"), pool.submit(server.get, "/30")
        time.sleep(0.4)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        assert json.loads(server.get("/readyz").body) == ["draining"]
        assert server.get("/0").status == 200
        assert quick.result(20).status == 200
        told = slow.result(20)
        server.process.wait(20)
    assert (told.status, json.loads(told.body)["reason"]) == (503, "draining")
    assert told.took < 15


def test_waitress_gets_a_delay_in_front_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("waitress")
    armed = "from tests.wsgi.stopped_app import policy; policy.drain_on_signal(); "
    monkeypatch.setattr(
        servers, "WAITRESS", servers.WAITRESS.replace("waitress.serve(", armed + "waitress.serve(")
    )
    with ThreadPoolExecutor() as pool, serve("waitress", "tests.wsgi.stopped_app:application") as server:
        quick = pool.submit(server.get, "/0.6")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert json.loads(server.get("/readyz").body) == ["draining"]
        assert quick.result(20).status == 200
        assert server.process.wait(20) == -signal.SIGTERM
