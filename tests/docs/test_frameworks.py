"""The pages on ASGI frameworks keep their word: their code runs, refuses, and draws pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient as LitestarClient
from starlette.testclient import TestClient

from resilient_mw.core.ports import snapshots
from tests.docs.pages import ROOT, code_blocks
from tests.integrations.conftest import entry_points, own_marks, patient_pages

__all__ = ["entry_points", "own_marks", "patient_pages"]

EXPIRED = {"X-Request-Timeout-Ms": "0"}
PAGED = ("starlette", "litestar")


def run(page: str, block: int) -> Any:
    namespace: dict[str, Any] = {"__name__": page}
    exec(compile(code_blocks(ROOT / "docs" / f"{page}.md")[block], f"{page}.md", "exec"), namespace)
    return namespace["app"]


def client_of(page: str, app: Any) -> Any:
    return LitestarClient(app) if page == "litestar" else TestClient(app)


def classes() -> dict[str, str]:
    return {each.route: each.priority for one in snapshots() for each in one.routes if each.arrived}


@pytest.mark.parametrize("page", ["starlette", "fastapi", "litestar"])
def test_the_example_serves_and_its_marks_count(page: str, entry_points: Path) -> None:
    with client_of(page, run(page, 0)) as client:
        assert (
            0 < client.get("/checkout", headers={"X-Request-Timeout-Ms": "5000"}).json()["seconds_left"] <= 5
        )
        refused = client.get("/checkout", headers=EXPIRED)
        assert (refused.status_code, refused.headers["x-refusal-reason"]) == (504, "expired_on_arrival")
        if page == "litestar":
            assert client.post("/archive").text == "made"
            assert client.get("/inner/prices").json() == {"apple": 1.5}
            wanted = {"/checkout": "critical", "/archive": "sheddable", "/inner/prices": "critical"}
        else:
            assert client.get("/reports/2024").json() == {"year": 2024}
            wanted = {"/checkout": "critical", "/reports/{year}": "sheddable"}
        if page == "fastapi":
            responses = client.get("/openapi.json").json()["paths"]["/checkout"]["get"]["responses"]
            assert {"503", "504"} <= set(responses)
        assert wanted.items() <= classes().items()


def test_the_example_of_plain_asgi() -> None:
    client = TestClient(run("asgi", 0))
    assert client.get("/checkout", headers={"X-Request-Timeout-Ms": "5000"}).text.endswith(" s left\n")
    assert client.get("/reports/a", headers=EXPIRED).status_code == 504
    assert {"/checkout": "critical", "/reports/*": "sheddable"}.items() <= classes().items()


@pytest.mark.parametrize("page", PAGED)
def test_the_example_of_a_page(page: str, entry_points: Path) -> None:
    with client_of(page, run(page, 1)) as client:
        answer = client.get("/", headers=EXPIRED)
        assert (answer.status_code, answer.text) == (504, "<h1>The deadline had passed on arrival</h1>")
        assert answer.headers["x-refusal-reason"] == "expired_on_arrival"
