"""Pages of the application's own: what may be one, and who wants HTML."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_mw.core.headers.accept import prefers_html
from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw.core.rejection import Reason


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("application/xhtml+xml", True),
        ("application/json;q=0.5, text/html;q=0.6", True),
        ("*/*", False),
        ("", False),
        ("application/json, text/html", False),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html, nonsense", False),
        ("text/html," + " " * 1100, False),
    ],
)
def test_who_wants_html(accept: str, wanted: bool) -> None:
    assert prefers_html(accept) is wanted


def test_a_page_is_bytes_and_text_in_utf8() -> None:
    page = RefusalPage("Ä", headers=[("Content-Length", "7"), ("X-Mine", "1"), ("connection", "close")])
    assert (page.body, page.headers) == ("Ä".encode(), (("X-Mine", "1"),))
    assert RefusalPage(b"\xff", "image/png").body == b"\xff"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"body": None}, "body"),
        ({"body": "", "media_type": ""}, "media_type"),
        ({"body": "", "media_type": "text/html\r\nX-A: b"}, "media_type"),
        ({"body": "", "headers": [("X A", "b")]}, "headers"),
        ({"body": "", "headers": [("X-A", "b\nc")]}, "headers"),
        ({"body": "", "headers": [("X-A", "\u2603")]}, "headers"),
    ],
)
def test_what_is_no_page_is_said_by_name(arguments: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=rf"^RefusalPage\.{field}=.* is not allowed"):
        RefusalPage(**arguments)


def test_a_refused_request_knows_status_and_title() -> None:
    refused = RefusedRequest(Reason.QUEUE_FULL, False, False, 2, {})
    assert (refused.status, refused.title) == (503, "The wait queue is full")
