"""The pages on Flask and Quart: their code runs, and the table is what the command prints."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from tests.docs.pages import ROOT, code_blocks
from tests.integrations.conftest import entry_points, own_marks

__all__ = ["entry_points", "own_marks"]

FLASK, QUART = ROOT / "docs" / "flask.md", ROOT / "docs" / "quart.md"


def ran(code: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "page", "exec"), namespace)
    return namespace


@pytest.mark.usefixtures("entry_points")
def test_the_code_of_the_page_on_flask_runs_and_the_table_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    three_lines, factory, pages = code_blocks(FLASK)
    assert ran(three_lines)["app"].test_client().get("/", buffered=True).status_code == 404
    monkeypatch.setattr(Flask, "has_static_folder", False)  # its route is of no interest on the page
    app = ran(factory)["create_app"]()
    assert app.test_client().get("/reports/7", buffered=True).get_json() == {"number": 7}
    said = app.test_cli_runner().invoke(args=["resilience"]).output
    page = FLASK.read_text(encoding="utf-8")
    assert all(f"    {line}\n" in page for line in said.splitlines()), said
    drawing = ran(pages)["app"]
    drawing.extensions["resilience"].protection.policy.drain(0)
    refused = drawing.test_client().get("/", headers={"Accept": "text/html"}, buffered=True)
    assert (refused.status_code, refused.text[:4]) == (503, "<h1>")
    refused = drawing.test_client().get("/", headers={"Accept": "application/json"}, buffered=True)
    assert refused.get_json()["status"] == 503


@pytest.mark.usefixtures("entry_points")
async def test_the_code_of_the_page_on_quart_runs() -> None:
    three_lines, marks, pages = code_blocks(QUART)
    assert (await ran(three_lines)["app"].test_client().get("/")).status_code == 404
    app = ran(marks)["app"]
    answer = await (await app.test_client().get("/reports/7")).get_json()
    assert 20 < answer["seconds_left"] <= 30
    async with app.test_client().websocket("/live") as socket:
        await socket.send("hello")
        assert await socket.receive() == "hello"
    drawing = ran(pages)["app"]
    drawing.extensions["resilience"].protection.policy.drain(0)
    refused = await drawing.test_client().get("/")
    assert (refused.status_code, (await refused.get_data())[:4]) == (503, b"<h1>")
