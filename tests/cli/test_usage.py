"""Bad usage of `resilient-mw explain` is status 2, and says what to change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI

from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.cli.locate import find
from tests.cli.conftest import FASTAPI, FLASK, STARLETTE, Explain
from tests.docs.pages import ROOT

PACKAGES = [str(ROOT), str(ROOT / "integrations")]
PLAIN = "app = ResilienceMiddleware(app)\n"


@pytest.mark.parametrize(
    ("source", "target", "arguments", "complaint"),
    [
        (PLAIN, "shop", [], "'shop' is not like package.module:app"),
        (PLAIN, ":app", [], "':app' is not like package.module:app"),
        (PLAIN, "shop.py:app", [], "'shop.py' is a file: name the module, shop:app"),
        (PLAIN, "nowhere:app", [], "there is no module 'nowhere' in "),
        (PLAIN, "shop.inner:app", [], "there is no module 'shop.inner' in "),
        (PLAIN, "shop:ap", [], "'shop' has no attribute 'ap': did you mean 'app'?"),
        (PLAIN, "shop:app.zzz", [], "'shop' has no attribute 'app.zzz'"),
        (PLAIN, "shop:app()", [], "write shop:app --factory"),
        (PLAIN + "thing = 1", "shop:thing", ["--factory"], "'shop:thing' is no function: leave out --factory"),
        ("", "shop:app", [], "no ResilienceMiddleware of resilient_mw was found on 'shop:app', a FastAPI. Add it"),
        ("def make(): return app", "shop:make", [], "is it a factory? Then add --factory"),
        ("def make(): return app", "shop:make", ["--factory"], "was found on 'shop:make', a FastAPI"),
        ("def make(): raise KeyError('DSN')", "shop:make", ["--factory"], "calling 'shop:make' failed: KeyError: 'DSN' ("),
        ("import nowhere", "shop:app", [], "importing 'shop' failed: ModuleNotFoundError: No module named 'nowhere'"),
        ("1 / 0", "shop:app", [], "importing 'shop' failed: ZeroDivisionError: division by zero ("),
        ("raise SystemExit(0)", "shop:app", [], "importing 'shop' failed: SystemExit: 0"),
        (
            "app.add_middleware(ResilienceMiddleware, limit=0)", "shop:app", [],
            "building the middlewares of the application failed: ValueError: limit=0 is not allowed",
        ),
        (
            PLAIN + "@app.app.get('/x')\n@priority('nonsense')\nasync def x(): ...", "shop:app", [],
            "the application will not start: the mark of route '/x' names the priority class 'nonsense'",
        ),
        (PLAIN, "shop:app", ["--service-time", "0"], "--service-time: '0' must be a number above 0"),
        (PLAIN, "shop:app", ["--service-time", "nan"], "--service-time: 'nan' must be a number above 0"),
        (PLAIN, "shop:app", ["--rate", "fast"], "--rate: invalid"),
        (PLAIN, "shop:app", ["--workers", "0"], "--workers: '0' must be a whole number of at least 1"),
        (PLAIN, "shop:app", ["--threads", "1.5"], "--threads: invalid"),
        (PLAIN, "shop:app", ["--sideways"], "unrecognized arguments: --sideways"),
    ],
)  # fmt: skip
def test_bad_usage(source: str, target: str, arguments: list[str], complaint: str, explain: Explain) -> None:
    said = explain(FASTAPI + source, *arguments, target=target)
    assert said.status == 2
    assert said.out == ""
    assert complaint in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "source",
    [STARLETTE + "app = Starlette(routes=[Route('/', answer)])", FLASK, "import math\napp = math"],
    ids=["starlette", "flask", "a module"],
)
def test_what_is_not_protected(source: str, explain: Explain) -> None:
    assert explain(source).status == 2


def test_an_error_in_the_application_names_the_line(explain: Explain) -> None:
    assert "shop.py, line 2)" in explain("x = 1\n1 / 0\n").err


def test_a_value_that_is_not_allowed_names_the_line_of_the_application(explain: Explain) -> None:
    source = "from resilient_mw import ServerPolicy\npolicy = ServerPolicy(limit=0)\n"
    assert "a whole number of at least 1 (" in (said := explain(source).err)
    assert said.rstrip().endswith("shop.py, line 2)")


@pytest.mark.parametrize(
    ("made", "how"),
    [
        ("from flask import Flask\napp = Flask('shop')", "(resilient_mw_integrations.flask.Resilience(app, "),
        ("from quart import Quart\napp = Quart('shop')", "(resilient_mw_integrations.quart.Resilience(app, "),
        (
            "from litestar import Litestar\napp = Litestar(logging_config=None)",
            "(Litestar(plugins=[resilient_mw_integrations.litestar.Resil",
        ),
        (
            "from django.core.handlers.wsgi import WSGIHandler\napp = WSGIHandler.__new__(WSGIHandler)",
            "(application = resilient_mw_integrations.django.protect(application))",
        ),
        (
            "from starlette.applications import Starlette\napp = Starlette()",
            "(app.add_middleware(ResilienceMiddleware, ",
        ),
    ],
    ids=["flask", "quart", "litestar", "django", "starlette"],
)
def test_it_says_how_this_framework_is_protected(made: str, how: str, explain: Explain) -> None:
    assert f"Add it {how}" in explain(made).err


def test_the_application_itself_is_left_as_it_was() -> None:
    app = FastAPI()
    app.add_middleware(ResilienceMiddleware)
    assert len(find(app, "app")) == 1
    assert app.middleware_stack is None  # the first request still builds it, with what is added until then


def test_a_reader_who_has_seen_enough_gets_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FASTAPI + "app = ResilienceMiddleware(app)", encoding="utf-8")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        finished = subprocess.run(
            [sys.executable, "-m", "resilient_mw.cli", "explain", "shop:app"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(PACKAGES)},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_help_is_status_0(explain: Explain) -> None:
    said = explain("", "--help")
    assert said.status == 0
    assert "--service-time SECONDS" in said.out


def test_what_the_application_prints_is_no_part_of_the_report(explain: Explain) -> None:
    said = explain(FASTAPI + "print('hello')\napp = ResilienceMiddleware(app)", "--json")
    assert said.app()["name"] == "app"
    assert "hello" in said.err
