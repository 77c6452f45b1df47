"""The faults of what bounds how much a dependency is sent: the throttle, the adaptive limit and the pools."""

from __future__ import annotations

from fault_table import Fault

THROTTLE = "resilient_mw/calls/throttle.py"
ADAPTIVE = "resilient_mw/calls/adaptive.py"
STATE = "resilient_mw/calls/state.py"
ATTEMPTS = "resilient_mw/calls/attempts.py"
INNER = "integrations/resilient_mw_integrations/_httpx_inner.py"
PARTED = "integrations/resilient_mw_integrations/_httpx_parted.py"

ONE = "tests/calls/test_throttle.py::test_"
CALLS = "tests/calls/test_throttled_calls.py::test_"
LIMIT = "tests/calls/test_adaptive.py::test_"
POOLS = "tests/integrations/test_httpx_parted.py::test_"

FAULTS = (
    # -- the throttle
    Fault("throttle_local_refusals_not_counted", THROTTLE,
        "        self.refused += 1\n        self._requests += 1\n        self._seen[self._newest % BUCKETS] += 1\n",
        "        self.refused += 1\n",
        (ONE + "what_is_refused_here_counts_as_a_request", ONE + "the_load_of_the_dependency_is_bounded_whatever_is_offered")),
    Fault("throttle_without_probes", THROTTLE,
        "return min(self._most, max(", "return min(1.0, max(",
        (ONE + "probes_always_flow",)),
    Fault("throttle_of_a_trickle", THROTTLE,
        " or self._requests < self._least:", ":",
        (ONE + "little_traffic_is_let_through",)),
    Fault("throttle_without_patience", THROTTLE,
        "self._k * (self._accepts + young)", "self._k * self._accepts",
        (ONE + "the_first_requests_of_all_are_not_taken_for_refusals",)),
    Fault("throttle_of_what_has_ended_alone", THROTTLE,
        "range(newest - self._young, newest + 1)", "range(newest - BUCKETS + 1, newest + 1)",
        (ONE + "a_hang_is_noticed_before_its_timeouts",)),
    Fault("throttle_window_for_ever", THROTTLE,
        "            self._requests -= self._seen[place]\n", "",
        (ONE + "its_window_is_what_a_plain_count_finds",)),
    Fault("throttle_late_answer_counted_twice", THROTTLE,
        "        if number <= self._newest - BUCKETS:\n            return  # It has left the window.\n", "",
        (ONE + "a_late_answer_of_a_bucket_that_was_forgotten_changes_nothing",)),
    Fault("throttle_b77_asking_costs", THROTTLE,
        "        if self._random.random() >= self._probability():\n            return False\n        self.refused += 1\n",
        "        self._requests += 1\n        if self._random.random() >= self._probability():\n            return False\n"
        "        self.refused += 1\n",
        (ONE + "b77_a_waiter_that_asked_and_left_has_used_nothing_up",)),
    Fault("throttle_blames_for_quotas", STATE,
        "not (head.refused and head.status >= 500)", "not head.refused",
        (CALLS + "what_an_answer_says",)),
    Fault("throttle_told_of_a_head_twice", STATE,
        "if self.throttle is not None and not attempt.outcome:", "if self.throttle is not None:",
        (CALLS + "a_caller_who_gives_up_says_nothing",)),
    Fault("throttle_blames_for_what_is_ours", STATE,
        "accepted=False if failed else None", "accepted=False",
        (CALLS + "what_a_failure_says", CALLS + "a_caller_who_gives_up_says_nothing")),
    Fault("throttle_of_trials", STATE,
        "closed = breaker is None or breaker.state is CLOSED", "closed = True",
        (CALLS + "trials_of_a_circuit_are_not_throttled",)),
    Fault("throttle_not_asked_for_a_retry", ATTEMPTS,
        "state.throttles(now, breaker):\n            return self._refuse(",
        "not self.attempts and state.throttles(now, breaker):\n            return self._refuse(",
        (CALLS + "a_retry_that_it_refuses_ends_the_retries_with_a_counted_reason",)),
    # -- the adaptive limit
    Fault("adaptive_never_shrinks", ADAPTIVE,
        "GAIN * (TARGET - self._elasticity)", "GAIN * abs(TARGET - self._elasticity)",
        (LIMIT + "the_limit_comes_to_rest_near_the_knee",)),
    Fault("adaptive_never_grows", ADAPTIVE,
        "self._high * (1.0 + step)", "self._high * (1.0 + min(0.0, step))",
        (LIMIT + "the_limit_comes_to_rest_near_the_knee",)),
    Fault("adaptive_where_nothing_binds", ADAPTIVE,
        "binds = self._bound >= BINDING * self._began", "binds = True",
        (LIMIT + "little_traffic_changes_nothing_and_is_not_limited",)),
    Fault("adaptive_deaf_to_losses", ADAPTIVE,
        "        if self._losses >= LOSSES * self._seen:\n            self._cut()\n        elif", "        if",
        (LIMIT + "floor_and_cap_always_hold", CALLS + "losses_of_calls_cut_the_limit")),
    Fault("adaptive_hears_the_limit_before", ADAPTIVE,
        "if lost is None or began_at < self._settled_at:", "if lost is None:",
        (LIMIT + "only_what_began_under_a_limit_speaks_of_it",)),
    Fault("adaptive_without_a_cap", ADAPTIVE,
        "return min(float(self._cap), max(float(self._floor), limit))", "return max(float(self._floor), limit)",
        (LIMIT + "floor_and_cap_always_hold",)),
    Fault("adaptive_without_a_floor", ADAPTIVE,
        "return min(float(self._cap), max(float(self._floor), limit))", "return min(float(self._cap), max(1.0, limit))",
        (LIMIT + "floor_and_cap_always_hold",)),
    Fault("adaptive_cut_by_what_says_nothing", STATE,
        '        return True if failed else None\n    if outcome == "5xx"', '        return True\n    if outcome == "5xx"',
        (CALLS + "what_says_nothing_about_load_does_not",)),
    # -- the pools
    Fault("pools_not_parted", PARTED,
        "self._rest if owner is None else self._own[owner]", "self._rest",
        (POOLS + "with_a_pool_for_each_nobody_else_waits_for_it",)),
    Fault("pools_b53_first_error_leaves_the_rest_open", PARTED,
        "        with ExitStack() as stack:\n            for each in self.all():\n                stack.callback(each.close)\n",
        "        for each in self.all():\n            each.close()\n",
        (POOLS + "b53_one_that_cannot_be_closed_does_not_keep_the_others_open",)),
    Fault("pools_b53_async_first_error_leaves_the_rest_open", PARTED,
        "        async with AsyncExitStack() as stack:\n            for each in self.all():\n"
        "                stack.push_async_callback(each.aclose)\n",
        "        for each in self.all():\n            await each.aclose()\n",
        (POOLS + "b53_the_same_for_async_ones",)),
    Fault("pools_b53_the_rest_stays_open", PARTED,
        "return [*self._own.values(), self._rest]", "return [*self._own.values()]",
        (POOLS + "b53_one_that_cannot_be_closed_does_not_keep_the_others_open",)),
    Fault("pools_too_small_without_a_word", INNER,
        "        if total > connections:\n", "        if total > 2 * connections:\n",
        (POOLS + "a_pool_that_is_smaller_than_the_bulkheads_is_warned_of",)),
)  # fmt: skip
