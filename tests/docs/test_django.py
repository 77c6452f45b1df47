"""The page on Django: its code works, and what it lists is all there is."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

from tests.django_project import ready
from tests.docs.pages import ROOT
from tests.docs.test_code import BLOCK

PAGE = (ROOT / "docs" / "django.md").read_text(encoding="utf-8")
CODE = [textwrap.dedent(block) for block in BLOCK.findall(PAGE) if "pip install" not in block]
FOLDER = ROOT / "integrations" / "resilient_mw_integrations" / "django"

ready()


def test_the_three_lines_and_the_urlconf_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.core.handlers.wsgi import WSGIHandler
    from django.test import override_settings
    from django.urls import path
    from django.views.decorators.http import require_POST

    from resilient_mw.wsgi import ResilienceMiddleware
    from resilient_mw_integrations.django import protect
    from resilient_mw_integrations.django.routes import DjangoRoutes

    def view(request: Any) -> Any: ...

    known = {"INSTALLED_APPS": [], "get_wsgi_application": WSGIHandler, "protect": protect}
    exec(CODE[0], known)
    assert isinstance(known["application"], ResilienceMiddleware)
    assert "resilient_mw_integrations.django" in known["INSTALLED_APPS"]

    for name in ("shop", "shop.reports"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["shop.reports"].urlpatterns = [path("x", view)]  # type: ignore[attr-defined]
    from resilient_mw import priority

    made: Any = types.ModuleType("urls_of_the_page")
    vars(made).update(pay=view, export=view, up=view, require_POST=require_POST, priority=priority)
    (urlconf,) = (code for code in CODE if "urlpatterns" in code)
    exec(urlconf, vars(made))
    with override_settings(ROOT_URLCONF=made):
        found = {route.template: route.mark for route in DjangoRoutes().routes()}
    classes = {template: mark and mark.priority for template, mark in found.items()}
    assert classes == {"/pay/": None, "/reports/x": "sheddable", "/export/": "sheddable", "/up/": "exempt"}
    assert found["/export/"] is not None
    assert found["/export/"].cost == 3


@pytest.mark.parametrize("code", CODE)
def test_all_code_is_python(code: str) -> None:
    ast.parse(code)


def test_the_checks_of_the_page_are_all_there_are() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(FOLDER).glob("*.py"))
    said = re.compile(r"resilient_mw\.[EW]\d{3}")
    assert set(said.findall(PAGE)) == set(said.findall(sources))
