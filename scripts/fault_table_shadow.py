"""The faults of what a route needs, of what dependencies report, and of shadow mode."""

from __future__ import annotations

from fault_table import Fault

NEEDED = "resilient_mw/runtime/needed.py"
PROTECTION = "resilient_mw/runtime/protection.py"
ROUTING = "resilient_mw/admission/routing.py"
BREAKER = "resilient_mw/calls/breaker.py"
DEGRADE = "resilient_mw/runtime/degrade.py"
WITHIN = "resilient_mw/runtime/within.py"

NEEDS = "tests/runtime/test_needed.py::test_"
NEEDS_THROUGH = "tests/integrations/test_needs.py::test_"
BY_VARIANT = NEEDS_THROUGH + "it_is_refused_on_arrival_or_answered_by_the_variant"

NEEDS_FAULTS = (
    Fault("need_never_looked_at", PROTECTION, "if entry.needs is not None:", "if False:", (BY_VARIANT,)),
    Fault("needs_of_plain_routes", "resilient_mw/admission/entry.py",
        "max_body is None and needs is None", "max_body is None", (BY_VARIANT,)),
    Fault("refused_when_it_is_to_be_tried", BREAKER,
        "return self.retry_in(now) or None", "return self.retry_in(now)",
        (NEEDS + "a_trial_is_possible_and_closes_the_circuit",)),
    Fault("all_pass_while_trials_are_under_way", BREAKER,
        "if self.state is BreakerState.HALF_OPEN and not self._has_place(now):", "if False:",
        (NEEDS + "a_trial_is_possible_and_closes_the_circuit",)),
    Fault("need_without_jitter", NEEDED, "JITTER = 0.4", "JITTER = 0.0",
        (NEEDS + "it_is_refused_while_the_circuit_is_open_and_told_when_it_is_tried_again",)),
    Fault("need_sends_away_for_hours", NEEDED, "min(wait, MOST_RETRY_AFTER)", "wait",
        (NEEDS + "nobody_is_sent_away_for_longer_than_a_minute",)),
    Fault("need_hides_that_it_drains", NEEDED, "if guard.controller.draining:", "if False:",
        (NEEDS + "while_draining_that_is_the_reason",)),
    Fault("degradable_refused", NEEDED, "if seconds is None or entry.degradable:", "if seconds is None:",
        (NEEDS + "who_can_do_with_less_passes", BY_VARIANT)),
    Fault("need_of_one_of_two", NEEDED, "if waits and len(waits) == len(known) else None", "if waits else None",
        (NEEDS + "of_two_of_the_same_name_one_is_enough",)),
    Fault("broken_look_up_not_told", NEEDED, "        guard.listeners.failed(WHERE, error)\n", "",
        (NEEDS + "if_the_look_up_breaks_requests_pass_and_it_is_logged_once_a_minute",)),
    Fault("exempt_with_a_need", ROUTING, "None if priority == EXEMPT else mark.needs", "mark.needs",
        (NEEDS + "what_is_exempt_needs_nothing", BY_VARIANT)),
    Fault("unknown_need_not_warned_of", PROTECTION,
        "complaints += [NOT_KNOWN.format(name)", "_ = [NOT_KNOWN.format(name)",
        (NEEDS_THROUGH + "an_unknown_name_is_warned_of_at_start_and_refuses_nothing",)),
    Fault("variant_only_by_level", DEGRADE, "(needs is None or missing_for(needs) is None)", "True", (BY_VARIANT,)),
    Fault("broken_choice_not_told", DEGRADE,
        '                    measured.listeners.failed("choice of a variant", error)\n', "                    pass\n",
        (NEEDS_THROUGH + "if_the_choice_of_a_variant_breaks_the_endpoint_answers",)),
    Fault("section_forgets_the_need", WITHIN, "return self._outer.needs()", "return None",
        ("tests/runtime/test_needed.py::test_a_section_knows_what_its_request_needs",)),
)  # fmt: skip
