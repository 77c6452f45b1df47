"""The faults of hedges."""

from __future__ import annotations

from fault_table import Fault

HEDGE = "resilient_mw/calls/hedge.py"
NEEDS = "resilient_mw/calls/hedge_needs.py"
ATTEMPTS = "resilient_mw/calls/attempts.py"
CALL = "resilient_mw/calls/call.py"
STATE = "resilient_mw/calls/state.py"
RACE_ASYNC = "resilient_mw/runtime/race_async.py"
RACE_SYNC = "resilient_mw/runtime/race_sync.py"
SCOPE = "resilient_mw/transport/scope.py"
SYNC = "resilient_mw/transport/sync.py"
LEAVING = "resilient_mw/transport/leaving.py"
PREPARE = "resilient_mw/transport/prepare.py"
OF = "tests/calls/test_hedge.py::test_"
ON = "tests/integrations/test_httpx_hedging.py::test_"

FAULTS = (
    Fault("hedge_without_a_thread_ends_the_call", SYNC, "except RuntimeError as error:", "except ZeroDivisionError as error:",
        (ON + "a_hedge_for_which_there_is_no_thread_costs_the_call_nothing",)),
    Fault("hedged_a_write", ATTEMPTS, "if not (harmless or keyed):", "if False:",
        (OF + "what_cannot_be_hedged_says_why_once_it_was_due", ON + "what_has_a_side_effect_is_never_hedged")),
    Fault("hedged_a_body_that_is_gone", ATTEMPTS, "        elif not self._replayable:\n            self._unhedged", "        elif False:\n            self._unhedged",
        (OF + "what_cannot_be_hedged_says_why_once_it_was_due",)),
    Fault("hedged_below_who_retries", ATTEMPTS, "elif self._owned and not insist:", "elif False:",
        (OF + "what_cannot_be_hedged_says_why_once_it_was_due",)),
    Fault("hedged_although_it_cannot_finish", NEEDS, "if left < max(state.typical(), state.least):", "if left < state.least:",
        (OF + "a_hedge_waits_for_nothing_and_says_what_it_lacked",)),
    Fault("hedged_as_a_trial", NEEDS, "if breaker.state is not CLOSED:", "if False:",
        (OF + "a_hedge_is_no_trial_of_a_circuit",)),
    Fault("hedged_past_the_throttle", NEEDS, "if state.throttle is not None and state.throttle.refuses(now):", "if False:",
        (OF + "a_hedge_waits_for_nothing_and_says_what_it_lacked",)),
    Fault("hedged_past_the_budget", NEEDS, "not state.budget.reserve(now, now):", "False:",
        (OF + "a_hedge_waits_for_nothing_and_says_what_it_lacked", ON + "hedges_stay_within_the_budget")),
    Fault("slot_kept_without_budget", NEEDS,
        "        state.give_slot()\n        return HedgeRefusal.BUDGET", "        return HedgeRefusal.BUDGET",
        (OF + "a_hedge_waits_for_nothing_and_says_what_it_lacked",)),
    Fault("budget_kept_without_a_permit", NEEDS, "        state.budget.give_back(now)\n", "        pass\n",
        (OF + "a_ramp_that_refuses_gives_everything_back",)),
    Fault("hedges_without_end", ATTEMPTS, "        self._hedges -= 1\n", "",
        (OF + "any_order_of_events_leaves_nothing_and_delivers_once",)),
    Fault("hedge_taken_for_a_retry", STATE, "self.retries += not hedge", "self.retries += 1",
        (OF + "the_winner_is_delivered_and_the_loser_keeps_its_slot_until_it_has_ended",)),
    Fault("hedge_not_in_time", ATTEMPTS, "now < self.next_wakeup() - EARLY", "False",
        (OF + "a_call_says_when_to_look_again_and_starts_a_second_attempt_then",)),
    Fault("hedge_unbounded_without_retries", STATE, "None if dependency.hedge is None else RetryBudget(HEDGES_ALONE, 1.0)", "None",
        (OF + "a_call_without_retries_is_hedged_within_a_budget_of_its_own",)),
    Fault("conflict_with_itself_delivered", CALL, "head.status == CONFLICT and self._collides", "False",
        (OF + "a_conflict_of_a_key_with_itself_is_not_the_answer",)),
    Fault("every_conflict_swallowed", ATTEMPTS, "self._collides = keyed and not harmless", "self._collides = True",
        (OF + "a_conflict_of_a_key_with_itself_is_not_the_answer",)),
    Fault("won_by_whoever", CALL, "if attempt.hedge and ", "if ",
        (OF + "a_first_attempt_that_wins_is_no_hedge_that_won",)),
    Fault("lost_taken_for_fast", STATE, "group.heads.censored(now", "group.heads.add(now",
        (OF + "a_lost_attempt_is_not_taken_for_a_fast_one",)),
    Fault("failures_teach_the_delay", ATTEMPTS, "if heads is not None and failed is False:", "if heads is not None:",
        (OF + "failures_teach_nothing_about_the_delay",)),
    Fault("delay_from_too_few", HEDGE, "if heads.samples(now) < policy.samples:", "if False:",
        (OF + "nothing_is_hedged_before_enough_is_known",)),
    Fault("delay_below_its_minimum", HEDGE, "max(policy.minimum, value)", "value",
        (OF + "no_measured_delay_is_below_the_minimum",)),
    Fault("missed_hedge_of_a_fast_attempt", ATTEMPTS, "due is not None and now >= due and hedging", "due is not None and hedging",
        (OF + "what_cannot_be_hedged_says_why_once_it_was_due",)),
    # -- the drivers
    Fault("loser_forgotten_by_tasks", RACE_ASYNC,
        "racers.leave(flights.pop(action.number), partial(owner.lost, call, action.number))", "flights.pop(action.number)",
        (ON + "a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed",)),
    Fault("loser_forgotten_by_threads", RACE_SYNC,
        "flights.pop(action.number).leave(partial(owner.lost, call, action.number))", "flights.pop(action.number)",
        (ON + "a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed",)),
    Fault("attempts_left_by_a_cancelled_caller", RACE_ASYNC,
        "        for flight in flights.values():\n            racers.leave(flight, _nobody)\n", "",
        (ON + "a_cancelled_caller_leaves_nothing",)),
    Fault("loser_not_cut_off", RACE_SYNC, "                self.scope.cut()\n", "                pass\n",
        (ON + "a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed",)),
    Fault("loser_goes_on_until_its_timeout", SCOPE, "                socket.socket.shutdown(wire, socket.SHUT_RDWR)", "                pass",
        (ON + "a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed",)),
    Fault("late_loser_left_open", RACE_SYNC, "                    response.close()\n        finally:", "                    pass\n        finally:",
        (ON + "a_loser_that_answers_late_is_closed",)),
    Fault("late_loser_keeps_its_slot", LEAVING, "    elif ended is not None:\n        ended()\n", "",
        (ON + "a_slow_attempt_is_beaten_by_its_hedge_and_its_connection_closed",)),
    Fault("context_not_carried", SYNC, "context = copy_context()", "context = __import__(\"contextvars\").Context()",
        (ON + "attempts_see_the_context_of_the_caller",)),
)  # fmt: skip
