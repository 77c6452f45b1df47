"""The faults of measured timeouts and of route groups."""

from __future__ import annotations

from fault_table import Fault

LATENCY = "resilient_mw/calls/latency.py"
TIMEOUT = "resilient_mw/calls/timeout.py"
GROUPS = "resilient_mw/calls/groups.py"
MATCH = "resilient_mw/calls/match.py"
STATE = "resilient_mw/calls/state.py"
ATTEMPT = "resilient_mw/calls/attempt.py"
ATTEMPTS = "resilient_mw/calls/attempts.py"
EXCHANGE = "resilient_mw/transport/exchange.py"
STREAMS = "resilient_mw/transport/streams.py"
OF_LATENCY = "tests/calls/test_latency.py::test_"
OF_TIMEOUT = "tests/calls/test_timeout.py::test_"
OF_GROUPS = "tests/calls/test_groups.py::test_"
OF_CALLS = "tests/calls/test_call_groups.py::test_"
OF_PHASES = "tests/integrations/test_httpx_phases.py::test_"

FAULTS = (
    Fault("cut_attempts_taken_for_fast_ones", LATENCY,
        "pane.cut[bucket_of(seconds)] += 1", "pane.ended[bucket_of(seconds)] += 1",
        (OF_LATENCY + "a_cut_attempt_is_not_a_fast_one", OF_LATENCY + "a_quantile_beyond_what_is_seen_is_unknown")),
    Fault("cut_attempts_forgotten", LATENCY, "at_risk -= over + off", "at_risk -= over",
        (OF_LATENCY + "independent_cuts_leave_the_median_where_it_is",)),
    Fault("hung_attempts_hide_the_quantile", LATENCY, "pane.hung += 1", "pane.cut[-1] += 1",
        (OF_LATENCY + "attempts_that_hang_are_left_out",)),
    Fault("nobody_watched_and_all_believed", LATENCY, "    if doubtful > allowed:\n        return None\n", "",
        (OF_LATENCY + "attempts_that_were_cut_off_are_judged_by_those_that_were_watched",)),
    Fault("quantile_from_too_few", LATENCY, "if seen < samples_for(q):", "if not seen:",
        (OF_LATENCY + "no_quantile_from_too_few_times",)),
    Fault("latency_never_forgotten", LATENCY, "self._now = _Pane(now)\n        return", "return",
        (OF_LATENCY + "it_follows_down_within_two_panes",)),
    Fault("silence_not_noticed", LATENCY, "pane if age < 2 * LONGEST else _Pane(now)", "pane",
        (OF_LATENCY + "nothing_is_known_after_a_long_silence",)),
    Fault("timeout_below_its_floor", TIMEOUT, "max(policy.floor, value * policy.factor)", "value * policy.factor",
        (OF_TIMEOUT + "floor_and_caps_bound_it",)),
    Fault("timeout_above_its_cap", TIMEOUT, "fixed if policy.cap is None else min(policy.cap, fixed)", "fixed",
        (OF_TIMEOUT + "floor_and_caps_bound_it",)),
    Fault("timeout_from_too_few", TIMEOUT, "if model.samples(now) < self._samples:", "if False:",
        (OF_TIMEOUT + "the_cap_counts_until_enough_is_known",)),
    Fault("too_few_samples_accepted", TIMEOUT, "if self.minimum_samples < needed:", "if False:",
        (OF_TIMEOUT + "too_few_samples_are_explained",)),
    Fault("failures_teach_the_timeout", TIMEOUT, "elif failed is False:", "else:",
        (OF_CALLS + "what_other_ends_teach",)),
    Fault("connecting_teaches_the_timeout", ATTEMPT, "not (in_time and failure.phase in UNSENT)", "True",
        (OF_CALLS + "what_a_failure_teaches",)),
    Fault("cancelled_attempts_forgotten", STATE, "cut = attempt.cut_off or outcome in CUT", "cut = attempt.cut_off",
        (OF_CALLS + "what_other_ends_teach",)),
    Fault("small_budget_blames_a_measured_timeout", ATTEMPTS, "left < min(state.fair, FAIR * limit)", "left < state.fair",
        (OF_CALLS + "its_own_timeout_blames_the_dependency_and_the_budget_does_not",)),
    Fault("b70_groups_share_a_circuit", STATE, "else self.groups.at(now, group)", "else self.group",
        (OF_CALLS + "b70_failures_of_heavy_do_not_open_light",)),
    Fault("b74_states_without_bound", GROUPS, "full = len(keyed) >= self._most", "full = False",
        (OF_GROUPS + "b74_200_000_hosts_need_bounded_memory",)),
    Fault("b74_open_circuits_forgotten", GROUPS,
        "return now - self.used < IDLE or breaker.closed_for(now) is not None", "return False",
        (OF_GROUPS + "b74_200_000_hosts_need_bounded_memory",)),
    Fault("b74_states_in_use_forgotten", GROUPS, "if self.under_way:\n            return True\n        ", "",
        (OF_GROUPS + "b74_states_in_use_are_not_recreated",)),
    Fault("dead_keys_fill_the_table", GROUPS,
        "return now - self.used < IDLE or breaker.closed_for(now) is not None", "return True",
        (OF_GROUPS + "circuits_that_opened_long_ago_do_not_fill_the_table_for_good",)),
    Fault("keyed_states_in_order_of_birth", GROUPS, "            keyed.move_to_end(group.name)\n", "            pass\n",
        (OF_GROUPS + "the_one_used_longest_ago_goes_first",)),
    Fault("name_without_its_dot", MATCH, "host.endswith(self.host[1:])", "host.endswith(self.host[2:])",
        ("tests/calls/test_match.py::test_many_hosts",)),
    Fault("phase_of_an_attempt_untold", EXCHANGE, "            told.phase = failure.phase", "            _ = failure.phase",
        (OF_PHASES + "a_refused_connection_says_its_phase",)),
    Fault("phase_of_a_body_untold", STREAMS, "        told.phase = Phase.BODY\n", "",
        (OF_PHASES + "a_failed_attempt_says_its_phase",)),
)  # fmt: skip
