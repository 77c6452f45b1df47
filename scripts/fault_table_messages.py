"""Faults of what a stranger is told when something is missing or taken from the wrong place, for `plant_faults.py`."""

from __future__ import annotations

from fault_table import Fault

KINDS = "resilient_mw/runtime/kinds.py"
FIGURES = "resilient_mw/runtime/idempotency_figures.py"
LOCATE = "resilient_mw/cli/locate.py"
OF_KINDS = "tests/runtime/test_kinds.py::test_"
LOGGED = "tests/asgi/test_idempotency.py::test_why_the_store_cannot_be_used_is_logged_once_a_minute"

FAULTS = (
    Fault(
        "wsgi_application_under_asgi",
        KINDS,
        '[-2:] == ("environ", "start_response")',
        '[-2:] == ("environ", "answer")',
        (f"{OF_KINDS}a_wsgi_application_is_refused_by_the_middlewares_of_asgi",),
    ),
    Fault(
        "asgi_application_under_wsgi",
        KINDS,
        "_COROUTINE: Final = 0x80",
        "_COROUTINE: Final = 0x200",
        (f"{OF_KINDS}an_asgi_application_is_refused_by_the_middlewares_of_wsgi",),
    ),
    Fault(
        "store_failure_is_silent",
        FIGURES,
        "            if tell:\n                self._logged = now\n",
        "            tell = False\n",
        (LOGGED,),
    ),
    Fault(
        "store_failure_floods_the_log",
        FIGURES,
        "                self._logged = now\n",
        "                pass\n",
        (LOGGED,),
    ),
    Fault(
        "explain_names_our_own_line",
        LOCATE,
        "(his or frames)[-1:]",
        "frames[-1:]",
        ("tests/cli/test_usage.py::test_a_value_that_is_not_allowed_names_the_line_of_the_application",),
    ),
    Fault(
        "store_before_the_command_is_lost",
        "resilient_mw/cli/idempotency.py",
        "default=argparse.SUPPRESS",
        "default=None",
        ("tests/cli/test_idempotency.py::test_the_store_may_be_named_before_the_command",),
    ),
    Fault(
        "missing_folder_is_not_named",
        "resilient_mw/stores/connections.py",
        '"" if folder.is_dir() else',
        '"" if True else',
        ("tests/stores/test_sqlite_idempotency.py::test_a_file_that_cannot_be_opened",),
    ),
)
