"""What the tests of the command share: run `resilient-mw explain` on an application written for one test."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple
from weakref import WeakSet

import pytest

from resilient_mw.cli.main import main
from resilient_mw.core import marks, ports
from resilient_mw.runtime import protection
from tests.integrations.conftest import write_entry_points

FASTAPI = """
from fastapi import FastAPI
from resilient_mw import *
from resilient_mw.asgi import ResilienceMiddleware
app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from resilient_mw import *
from resilient_mw.asgi import ResilienceMiddleware
async def answer(request):
    return PlainTextResponse("")
"""
FLASK = """
from flask import Flask
from resilient_mw import *
from resilient_mw.wsgi import ResilienceMiddleware
app = Flask(__name__, static_folder=None)
"""


class Said(NamedTuple):
    """What the command said."""

    status: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Return the report that was printed as JSON."""
        content: dict[str, Any] = json.loads(self.out)
        return content

    def app(self) -> dict[str, Any]:
        """Return the one application in it."""
        (app,) = self.json()["applications"]
        assert isinstance(app, dict)
        return app

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return how requests are treated, by methods and template; `any` and HEAD, OPTIONS as in the text."""
        found = {}
        for row in self.app()["routes"]:
            methods = row["methods"] or ["any"]
            shown = " ".join(method for method in methods if method not in {"HEAD", "OPTIONS"})
            found[shown or " ".join(methods), row["template"]] = row
        return found

    def codes(self) -> list[str]:
        """Return the codes of the warnings."""
        return [warning["code"] for warning in self.json()["warnings"]]


Explain = Callable[..., Said]


@pytest.fixture
def explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Explain]:
    """A function that writes a module, runs the command on it as in a process of its own, and returns what was said."""
    folder = tmp_path / "service"
    folder.mkdir()
    monkeypatch.chdir(folder)
    installed = str(write_entry_points(tmp_path))
    loaded = set(sys.modules)

    def run(source: str, *arguments: str, target: str = "shop:app") -> Said:
        (folder / "shop.py").write_text(dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        with monkeypatch.context() as own:
            own.setattr(sys, "path", [installed, *sys.path])
            own.setattr(sys, "dont_write_bytecode", True)
            own.setattr(marks, "_marked", [])
            own.setattr(protection, "_waiting_for_start", WeakSet())
            own.setattr(ports, "_sources", WeakSet())
            own.setattr(ports, "_dependencies", WeakSet())
            own.delitem(sys.modules, "shop", raising=False)
            capsys.readouterr()
            status = main(["explain", target, *arguments])
            sys.modules.pop("shop", None)
        return Said(status, *capsys.readouterr())

    yield run
    for name in set(sys.modules) - loaded:
        if getattr(sys.modules[name], "__file__", None) and str(folder) in str(sys.modules[name].__file__):
            del sys.modules[name]
