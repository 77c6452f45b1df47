"""The page on Kubernetes keeps its word: its code runs, its manifest is one, its numbers add up."""

from __future__ import annotations

import re
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from resilient_mw import ServerPolicy
from resilient_mw.wsgi import ResilienceMiddleware
from tests.docs.pages import ROOT, code_blocks
from tests.servers import test_stopping
from tests.wsgi.helpers import hello

PAGE = ROOT / "docs" / "kubernetes.md"
APPLICATION, HOOK = code_blocks(PAGE)
(MANIFEST,) = code_blocks(PAGE, "yaml")


@pytest.fixture(autouse=True)
def no_handler_stays() -> Iterator[None]:
    from resilient_mw.runtime import drain_signal

    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    drain_signal._installed.clear()


def _run(code: str, name: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(code, "kubernetes.md", "exec"), namespace)
    return namespace


def _pod() -> tuple[dict[str, Any], dict[str, Any]]:
    spec = yaml.safe_load(MANIFEST)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


def test_the_application_answers_the_probes_of_the_manifest() -> None:
    shop = _run(APPLICATION, "shop")
    policy: ServerPolicy = shop["policy"]
    _, container = _pod()
    asked = {
        container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked <= set(policy.exempt_paths)
    client = TestClient(shop["app"])  # without the lifespan, whose signal handler is the main thread's
    assert {path: client.get(path).status_code for path in asked} == dict.fromkeys(asked, 200)
    policy.drain()
    assert client.get("/readyz").status_code == 503
    assert client.get("/readyz").json()["reasons"] == ["draining"]
    assert client.get("/livez").status_code == 200


def test_the_numbers_of_the_manifest_add_up() -> None:
    policy: ServerPolicy = _run(APPLICATION, "shop")["policy"]
    spec, container = _pod()
    ((_, seconds),) = [container["lifecycle"]["preStop"]["exec"]["command"]]
    own = policy.drain_delay + policy.drain_timeout + 1
    command = container["command"]
    servers = int(command[command.index("--timeout-graceful-shutdown") + 1])
    assert own <= servers
    assert int(seconds) + servers < spec["terminationGracePeriodSeconds"]
    assert (
        f"# {seconds} preStop + {policy.drain_delay:g} drain_delay + {policy.drain_timeout:g} drain_timeout"
        in MANIFEST
    )
    assert policy.deadline_default <= policy.drain_timeout
    port = container["ports"][0]["containerPort"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == port
    assert str(port) in command
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < int(seconds)
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 30


def test_the_hook_of_gunicorn_arms_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    policy: ServerPolicy = _run(APPLICATION, "shop")["policy"]
    shop = types.ModuleType("shop")
    shop.__dict__.update(policy=policy, app=ResilienceMiddleware(hello, policy))
    monkeypatch.setitem(sys.modules, "shop", shop)
    hook = _run(HOOK, "gunicorn.conf")
    assert hook["graceful_timeout"] >= policy.drain_delay + policy.drain_timeout + 1
    before = signal.getsignal(signal.SIGTERM)
    hook["post_worker_init"](object())
    assert signal.getsignal(signal.SIGTERM) != before


def test_the_table_has_every_server_that_is_tried() -> None:
    rows = set(re.findall(r"^\| (\w+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert {name.split("-")[0] for name in test_stopping.PATIENT} | {"daphne", "waitress"} <= rows
