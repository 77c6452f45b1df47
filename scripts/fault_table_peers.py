"""The faults that real servers show: what a small budget and a connection that has gone stale say about a dependency."""

from __future__ import annotations

from fault_table import Fault

PEERS = "tests/integrations/test_httpx_peers.py::test_"
WAITS = "tests/field/test_waits_cases.py::test_"

FAULTS = (
    Fault("small_budget_blames_by_its_504", "resilient_mw/calls/call.py", "if attempt.cut_short and head.status ==",
        "if False and head.status ==",
        ("tests/calls/test_call.py::test_a_504_of_a_small_budget_says_nothing_about_the_dependency",)),
    Fault("big_budget_excuses_a_504", "resilient_mw/calls/call.py", "if attempt.cut_short and head.status ==",
        "if head.status ==",
        ("tests/calls/test_call.py::test_a_504_of_a_small_budget_says_nothing_about_the_dependency",)),
    Fault("stale_write_blamed", "resilient_mw/transport/facts.py",
        "(scope.received is None and scope.phase is Phase.WRITE)", "False",
        (PEERS + "an_idle_connection_that_http2_has_closed_is_nobodys_fault",
         "tests/transport/test_facts.py::test_b59_a_kept_connection_that_went_stale_is_nobodys_fault")),
    Fault("b76_granted_and_left", "resilient_mw/calls/bulkhead.py", "        return waiter.granted\n", "        return False\n",
        (WAITS + "b76_ten_thousand_races_of_a_grant_a_timeout_and_a_cancellation_lose_no_slot",)),
    Fault("b77_the_dead_stay_in_line", "resilient_mw/calls/bulkhead.py", "if len(self._line) >= 2 * self._places:",
        "if False:", (WAITS + "b77_what_waiters_need_does_not_grow_with_time",)),
    Fault("b77_line_without_end", "resilient_mw/calls/bulkhead.py", "if self.waiting >= self._places:", "if False:",
        (WAITS + "b77_of_five_hundred_waiters_four_hundred_leave_and_the_others_are_served_as_if_they_were_alone",)),
)  # fmt: skip
