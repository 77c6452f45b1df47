"""Faults of pages of the application's own for `plant_faults.py`."""

from __future__ import annotations

from fault_table import Fault

TESTS = "tests/parity/test_refusal_pages.py::"

FAULTS = (
    Fault(
        "page_decides_our_fields",
        "resilient_mw/core/pages.py",
        " for name, value in headers if name.lower() not in OURS)",
        " for name, value in headers)",
        (f"{TESTS}test_a_browser_sees_the_page_and_a_program_the_document",),
    ),
    Fault(
        "page_splits_the_head",
        "resilient_mw/core/pages.py",
        "if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):",
        "if not _NAME.fullmatch(name):",
        (f"{TESTS}test_a_page_that_fails_leaves_the_document",),
    ),
    Fault(
        "page_kept_for_the_wrong_kind",
        "resilient_mw/core/pages.py",
        "kind = (refused.reason, refused.begun, refused.wants_html)",
        "kind = (refused.reason, refused.begun, True)",
        (f"{TESTS}test_prepared_pages_are_asked_once_for_each_kind_and_told_of_no_request",),
    ),
    Fault(
        "page_awaited_for_ever",
        "resilient_mw/asgi/pages.py",
        "await asyncio.wait({task}, timeout=PAGE_WITHIN)",
        "await asyncio.wait({task})",
        (f"{TESTS}test_a_page_that_does_not_come_holds_no_answer_up[never]",),
    ),
    Fault(
        "page_cancels_the_answer",
        "resilient_mw/asgi/pages.py",
        "        if task.cancelled():\n            raise RuntimeError",
        "        if task.cancelled() and not ended:\n            raise RuntimeError",
        (f"{TESTS}test_a_page_that_does_not_come_holds_no_answer_up[cancelled]",),
    ),
    Fault(
        "pages_without_a_bound",
        "resilient_mw/asgi/pages.py",
        "        if len(self._awaited) >= MOST_PAGES:\n            return None\n",
        "",
        (f"{TESTS}test_no_more_pages_are_awaited_than_there_may_be",),
    ),
    Fault(
        "page_outlives_its_request",
        "resilient_mw/asgi/pages.py",
        "            if not ended:\n                task.cancel()\n",
        "            pass\n",
        (f"{TESTS}test_a_server_that_cancels_the_refusal_ends_the_page",),
    ),
    Fault(
        "page_of_the_old_policy",
        "resilient_mw/wsgi/middleware.py",
        "        cors, page = policy.cors, policy.refusal_page\n",
        '        cors, page = policy.cors, vars(self).setdefault("_page", policy.refusal_page)\n',
        (f"{TESTS}test_a_reload_takes_the_page_away",),
    ),
)
