"""The page on configuration: its code runs, its file is read, and what it says of errors is what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from resilient_mw import Band
from resilient_mw.runtime.configuration import load_policy
from tests.docs.pages import ROOT, code_blocks

PAGE = ROOT / "docs" / "configuration.md"


def test_the_code_and_the_file_of_the_page_work_together(tmp_path: Path) -> None:
    (code,) = code_blocks(PAGE)
    (toml,) = code_blocks(PAGE, "toml")
    (tmp_path / "resilient.toml").write_text(toml, encoding="utf-8")
    namespace: dict[str, Any] = {"__file__": str(tmp_path / "main.py"), "__name__": "main"}
    exec(compile(code, "main.py", "exec"), namespace)
    policy = namespace["policy"]
    assert (policy.limit, policy.name, policy.websocket_limit) == (20, "shop", None)
    assert [each.name for each in policy.classes] == ["critical", "normal"]
    assert policy.routes[0].mark.cost == 4
    assert policy.overload.memory is None
    assert policy.overload.queue == Band(0.5, 0.95)


def test_the_same_table_works_in_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[[tool.resilient_mw.routes]]\npath = '/a'\n", encoding="utf-8")
    assert [rule.path for rule in load_policy(path, environ={}).routes] == ["/a"]


def test_the_variables_of_the_page_are_read() -> None:
    lines = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("  ")[0].partition("=") for line in lines if line.startswith("RESILIENT_MW_")]
    environ = {name: text.strip("'") for name, equal, text in pairs if equal and name.isupper()}
    environ.pop("RESILIENT_MW_DISABLED")
    assert len(environ) == 5
    policy = load_policy(environ=environ)
    assert (policy.limit, policy.websocket_limit, policy.debug) == (20, None, True)
    assert policy.trusted_peers == ("10.0.0.0/8", "192.168.0.0/16")
    assert policy.routes[0].mark.priority == "sheddable"


@pytest.mark.parametrize(
    ("environ", "toml"),
    [
        ({"RESILIENT_MW_LIMIT": "x"}, ""),
        ({"RESILIENT_MW_LIMTI": "3"}, ""),
        ({}, "[[routes]]\npath = '/a'\nprioritty = 'x'"),
        ({"RESILIENT_MW_DEADLINE_DEFAULT": "30"}, "deadline_maximum = 5"),
    ],
)
def test_the_errors_of_the_page_are_what_is_said(tmp_path: Path, environ: dict[str, str], toml: str) -> None:
    (tmp_path / "resilient.toml").write_text(toml, encoding="utf-8")
    with pytest.raises(ValueError, match="^[A-Za-z_.]+") as raised:
        load_policy(tmp_path / "resilient.toml", environ=environ)
    assert f"    {raised.value}\n" in PAGE.read_text(encoding="utf-8")
