"""Faults of how the middleware gets along with the servers. See `fault_table.py`."""

from __future__ import annotations

from fault_table import Fault

EARLY = "resilient_mw/asgi/early.py"
READING_ON = "tests/asgi/test_early.py::"

SERVER_FAULTS = (
    Fault(
        "early_answer_ends_before_its_request",
        EARLY,
        "if not ends or self._whole.is_set():",
        "if True:",
        (READING_ON + "test_the_end_of_an_early_answer_waits_for_the_end_of_its_request",),
    ),
    Fault(
        "early_over_http_2_only",
        EARLY,
        'version != SPEC_OF_HYPERCORN and "http',
        '"http',
        (READING_ON + "test_over_http_1_too",),
    ),
    Fault(
        "early_on_every_server",
        EARLY,
        'if version != SPEC_OF_HYPERCORN and "http.response.push" not in (scope.get("extensions") or ()):',
        "if version == 9:",
        (READING_ON + "test_on_other_servers_early_answers_end_at_once",),
    ),
    Fault(
        "early_end_sent_to_who_has_gone",
        EARLY,
        "            self._gone = True\n",
        "",
        (READING_ON + "test_who_leaves_meanwhile_is_sent_nothing_more",),
    ),
    Fault(
        "early_end_without_a_bound",
        EARLY,
        "asyncio.timeout(END_WITHIN)",
        "asyncio.timeout(None)",
        (READING_ON + "test_the_end_has_a_bound_of_its_own",),
    ),
    Fault(
        "early_rest_without_a_bound",
        EARLY,
        "asyncio.timeout(REST_WITHIN)",
        "asyncio.timeout(None)",
        (READING_ON + "test_nobody_is_waited_for_without_a_bound",),
    ),
    Fault(
        "early_failure_is_not_read_on_for",
        EARLY,
        "        await request.finish()\n        raise\n",
        "        raise\n",
        (READING_ON + "test_an_application_that_fails_is_read_to_its_end_before_the_server_hears_of_it",),
    ),
    Fault(
        "early_ending_outlives_a_cancel",
        EARLY,
        "            self._ending.cancel()",
        "            pass",
        (READING_ON + "test_the_server_may_cancel_it_at_any_step",),
    ),
    Fault(
        "early_waits_for_background_work",
        EARLY,
        "        self._ending = asyncio.get_running_loop().create_task(self._end())",
        "        self._whole.clear()",
        (READING_ON + "test_background_work_does_not_keep_the_end_back",),
    ),
    Fault(
        "early_sends_on_after_the_end",
        EARLY,
        "        if self._ending is not None:\n            return  #",
        "        if False:\n            return  #",
        (READING_ON + "test_what_an_application_sends_after_the_end_goes_nowhere",),
    ),
    Fault(
        "refusal_over_http_2_without_a_bound",
        "resilient_mw/asgi/refusal.py",
        "asyncio.timeout(LAST_WITHIN)",
        "asyncio.timeout(None)",
        (READING_ON + "test_a_refusal_whose_caller_has_gone_has_a_bound",),
    ),
    Fault(
        "survey_blind_before_a_servers_own_future",
        "resilient_mw/runtime/survey.py",
        'not isinstance(future, asyncio.Future) and not hasattr(future, "_callbacks")',
        "False",
        ("tests/runtime/test_survey.py::test_a_wait_for_the_server_itself",),
    ),
)
