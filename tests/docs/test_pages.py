from __future__ import annotations

import re
from pathlib import Path

import pytest

from resilient_mw.core.rejection import REFUSAL_RULES, RetryAfter
from tests.docs.pages import PAGES, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        file = page if not target else (page.parent / target)
        assert file.exists(), f"{page.name} links to {link}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_docs_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [
        page.name for page in PAGES if page.parent.name == "docs" and f"docs/{page.name}" not in readme
    ] == []


def test_the_page_on_refusals_has_every_reason_as_the_code_has_it() -> None:
    page = (ROOT / "docs" / "refusals.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d{3} \| \w+) \|", page, re.MULTILINE))
    assert rows == {
        reason.value: f"{rule.status} | {'no' if rule.retry_after is RetryAfter.NEVER else 'yes'}"
        for reason, rule in REFUSAL_RULES.items()
    }
