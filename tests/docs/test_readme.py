"""The README keeps its word: its examples run, its table of defaults is the code's."""

from __future__ import annotations

import re
import threading
from dataclasses import MISSING, fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest
from starlette.testclient import TestClient

from resilient_mw import OverloadPolicy, ServerPolicy, budget
from resilient_mw.core.ports import snapshots
from tests.docs.pages import ROOT, code_blocks

README = ROOT / "README.md"
FASTAPI, FLASK, HTTPX = code_blocks(README)


def _run(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "readme"}
    exec(compile(code, "README.md", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("code", [FASTAPI, FLASK, HTTPX])
def test_an_example_has_ten_lines_at_most(code: str) -> None:
    assert len(code.splitlines()) <= 10


def test_the_fastapi_example_runs() -> None:
    with TestClient(_run(FASTAPI)["app"]) as client:
        answer = client.get("/checkout", headers={"X-Request-Timeout-Ms": "5000"})
        expired = client.get("/checkout", headers={"X-Request-Timeout-Ms": "0"})
    assert 4.0 < answer.json()["seconds_left"] <= 5.0
    assert (expired.status_code, expired.headers["x-refusal-reason"]) == (504, "expired_on_arrival")


def test_the_flask_example_runs() -> None:
    app = _run(FLASK)["app"]
    answer = app.test_client().get("/reports", buffered=True)
    assert answer.json == {"rows": []}
    (route,) = [each for one in snapshots() for each in one.routes if each.route == "/reports"]
    assert (route.priority, route.outcomes) == ("sheddable", {"completed": 1})


class Prices(BaseHTTPRequestHandler):
    """The price service: notes the budgets that it was told."""

    budgets: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.budgets.append(int(self.headers["X-Request-Timeout-Ms"]))
        body = b'{"price": 9.5}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_the_httpx_example_runs() -> None:
    server = HTTPServer(("127.0.0.1", 0), Prices)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        namespace = _run(HTTPX.replace("http://prices/", f"http://127.0.0.1:{server.server_port}/"))
        with namespace["client"], budget(0.5):
            assert namespace["price"]("tea") == 9.5
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    (told,) = Prices.budgets
    assert 300 < told <= 490  # what was left, less the reserve


def test_the_table_of_defaults_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    section = text.split("## Defaults", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    policy = ServerPolicy()
    classes = list(policy.classes)
    expected = {
        "limit": f'`"{policy.limit}"` = {policy.slots} slots',
        "queue": "`None` = as many as there are slots",
        "threads": "`None` = as the server tells",
        "spare_threads": f"{policy.spare_threads} threads",
        "fit_queue": f"`{policy.fit_queue}`",
        "max_wait": f"{policy.max_wait:g} s",
        "wait_share": f"{policy.wait_share:g} of the budget",
        "classes": ", ".join(f"`{each.name}`" for each in classes)
        + f" with weights {' : '.join(f'{each.weight:g}' for each in classes)}, no reserved slots",
        "default_class": f'`"{policy.default_class}"`',
        "exempt_limit": f"{policy.exempt_limit} requests",
        "exempt_paths": ", ".join(f"`{path}`" for path in policy.exempt_paths),
        "websocket_limit": f"{policy.websocket_limit} connections",
        "stream_limit": f"{policy.stream_limit} streams",
        "deadline_default": f"{policy.deadline_default:g} s",
        "deadline_minimum": f"{policy.deadline_minimum:g} s",
        "deadline_maximum": f"{policy.deadline_maximum:g} s",
        "smallest_budget": f"{policy.smallest_budget:g} s",
        "trusted_peers": "nobody",
        "trusted_hops": f"{policy.trusted_hops} proxies",
        "max_body": "`None` = any size",
        "deadline_response_header": "`None` = no such header",
        "shadow": "none",
        "routes": "none",
        "tenant": "`None` = there are no [tenants](docs/tenants.md)",
        "tenant_labels": "none",
        "quotas": "none",
        "quota_store": "`None` = the memory of the process",
        "quota_store_away": f'`"{policy.quota_store_away}"`',
        "overload": "`OverloadPolicy()`",
        "listeners": "none",
        "name": f'`"{policy.name}"`',
        "cors_origins": "none",
        "cors_credentials": f"`{policy.cors_credentials}`",
        "refusal_page": "`None` = the problem document",
        "debug": f"`{policy.debug}`",
        "ramp": f"{policy.ramp:g} s = at once",
        "drain_delay": f"{policy.drain_delay:g} s",
        "drain_timeout": f"{policy.drain_timeout:g} s",
        "blocked_after": f"{policy.blocked_after:g} s",
    }
    assert {name: default for name, default, _ in rows} == expected
    assert [name for name, _, _ in rows] == [field.name for field in fields(ServerPolicy) if field.init]
    assert all(len(reason) > 20 for _, _, reason in rows)
    assert policy.queue_length == policy.slots
    assert [each.reserved for each in classes] == [0, 0, 0]
    assert policy.overload == OverloadPolicy()
    assert all(
        field.default is not MISSING or not field.init or field.default_factory
        for field in fields(ServerPolicy)
    )
    assert policy.shadowed == frozenset()
    assert (policy.trusted_peers, policy.routes, policy.listeners, policy.cors_origins) == ((), (), (), ())
