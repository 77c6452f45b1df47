"""The faults of the short way of a call: where it may be gone, what it counts, and how it is left."""

from __future__ import annotations

from fault_table import Fault

SHORT = "resilient_mw/calls/short.py"
ATTEMPTS = "resilient_mw/calls/attempts.py"
OWNER = "resilient_mw/runtime/dependency_owner.py"
PASSAGE = "resilient_mw/transport/passage.py"
THROTTLE = "resilient_mw/calls/throttle.py"
STATE = "resilient_mw/calls/state.py"
EQUAL = "tests/parity/test_short_way.py::test_equal_events_give_equal_actions_and_figures"
WIRE = "tests/parity/test_short_wire.py::test_equal_calls_are_equal_on_the_wire"

FAULTS = (
    Fault("short_way_through_an_open_circuit", SHORT,
        "        if not room or now >= until:\n", "        if not room:\n", (EQUAL,)),
    Fault("short_way_past_the_throttle", SHORT, "            room = min(room, free)\n", "", (EQUAL,)),
    Fault("short_way_past_the_bulkhead", SHORT,
        "if left < self._least or state.in_use >= self._most:", "if left < self._least:", (EQUAL,)),
    Fault("short_way_without_a_budget", SHORT,
        "if left < self._least or state.in_use >= self._most:", "if state.in_use >= self._most:", (EQUAL,)),
    Fault("short_way_notices_the_slow_too_early", SHORT,
        " and not breaker.recent.has_slow(now):", ":", (EQUAL,)),
    Fault("short_attempt_is_never_cut_by_its_caller", SHORT, "        attempt.by_budget = True\n", "", (EQUAL,)),
    Fault("short_attempt_blames_for_a_small_budget", SHORT, "        attempt.cut_short = left < self._fair\n", "", (EQUAL,)),
    Fault("short_success_of_an_older_state_counts", SHORT,
        "            attempt.running is breaker.recent.running\n            and now", "            now", (EQUAL,)),
    Fault("short_attempt_stays_under_way", SHORT, "running.pop(permit, None) is not None\n\n", "running.get(permit, None) is not None\n\n", (EQUAL,)),
    Fault("short_way_is_not_counted_before_others_decide", OWNER,
        "            self.short.settle()\n", "            pass\n", (EQUAL,)),
    Fault("short_acceptances_forgotten", SHORT, "                state.throttle.accepted_all(self._accepted + told)\n",
        "                pass\n", (EQUAL,)),
    Fault("short_acceptances_in_the_wrong_bucket", THROTTLE,
        "if int(min(sent_at) / self._width) != number:", "if int(max(sent_at) / self._width) != number:", (EQUAL,)),
    Fault("short_room_one_too_large", THROTTLE,
        "math.floor(self._k * self._accepts - self._requests) + 1", "math.floor(self._k * self._accepts - self._requests) + 2",
        (EQUAL,)),
    Fault("short_calls_are_no_traffic", STATE, "            self.budget.calls(begun)\n", "            pass\n", (EQUAL,)),
    Fault("short_attempt_ends_twice", OWNER, "        if attempt.over:\n            return\n", "", (EQUAL,)),
    Fault("short_attempt_taken_over_after_its_end", ATTEMPTS, "        if attempt.over:\n", "        if False:\n", (EQUAL,)),
    Fault("short_attempt_taken_over_before_its_head", ATTEMPTS, "        elif attempt.outcome:\n", "        elif False:\n", (EQUAL,)),
    Fault("short_way_with_a_field_of_the_caller", PASSAGE,
        "            or not route.named.isdisjoint(map(NAME_OF, lines))\n", "", (WIRE,)),
    Fault("short_way_without_a_key", PASSAGE, "            or request.method in route.key_methods\n", "", (WIRE,)),
    Fault("short_way_outlives_the_request", PASSAGE,
        "None if left == math.inf else now + left", "None", (WIRE,)),
    Fault("short_way_with_a_rule_of_the_user", PASSAGE,
        "library.bytes_stream if fields.retry_if is None else None", "library.bytes_stream",
        ("tests/integrations/test_httpx_ownership.py::test_b79_a_rule_that_is_broken_ends_the_call_and_holds_nothing",)),
    Fault("short_way_ignores_the_callers_timeouts", PASSAGE,
        "            if caller != known:\n", "            if False:\n", (WIRE,)),
    Fault("short_body_is_not_followed", PASSAGE,
        "            response.stream = route.body(\n", "            route.body(\n", (WIRE,)),
    Fault("short_failure_is_the_end", "resilient_mw/transport/exchange.py",
        "        if failure is None:\n            raise self.error or", "        if failure is not None:\n            raise self.error or",
        (WIRE,)),
)  # fmt: skip
