"""The faults that `plant_faults.py` plants, one by one, and the tests that must notice.

A fault is a mistake that somebody could make: a guard left out, a bound forgotten, a slot given back twice. It is a
replacement of text that stands exactly once in its file. Name the smallest tests that must fail, so that the whole run
stays short; a path without `::` runs the whole file.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTROLLER = "resilient_mw/admission/controller.py"
SLOTS = "resilient_mw/admission/slots.py"
QUEUE = "resilient_mw/admission/queue.py"
FORECAST = "resilient_mw/admission/forecast.py"
ROUTING = "resilient_mw/admission/routing.py"
DEADLINE = "resilient_mw/core/deadline.py"
ROUTES = "resilient_mw/core/routes.py"
MARKS = "resilient_mw/core/marks.py"
WINDOWS = "resilient_mw/core/windows.py"
GUARD = "resilient_mw/runtime/guard.py"
ASYNC_GATE = "resilient_mw/runtime/async_gate.py"
THREAD_GATE = "resilient_mw/runtime/thread_gate.py"

UNIT = "tests/admission/test_controller.py::"
MACHINE = "tests/admission/test_controller_machine.py"


@dataclass(frozen=True)
class Fault:
    """One planted mistake.

    Attributes:
        name: what was done wrong.
        file: where.
        old: text that stands exactly once in the file.
        new: what takes its place.
        tests: pytest node ids of which at least one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    # -- time
    Fault("late_tick", QUEUE, "heap[0][0] <= now", "heap[0][0] < now", (
        UNIT + "test_waiters_are_settled_in_the_order_of_their_bounds",
    )),
    Fault("no_expiry_before_arrival", CONTROLLER,
        "settled = self._expire(now) + self._dispatch(now) if self.waiting else NOBODY",
        "settled = NOBODY",
        (MACHINE,)),
    Fault("no_expiry_before_release", CONTROLLER,
        "return self._expire(now) + self._dispatch(now)\n\n    def finish",
        "return self._dispatch(now)\n\n    def finish",
        (MACHINE,)),
    Fault("dead_on_arrival_admitted", CONTROLLER,
        "max(policy.smallest_budget, math.ulp(0.0))", "policy.smallest_budget",
        (UNIT + "test_the_dead_are_not_admitted_even_if_no_budget_is_too_small",)),
    Fault("deadline_ignored_at_begin", CONTROLLER, "if now >= waiter.deadline_at:", "if False:", (
        UNIT + "test_a_grant_that_came_too_late_is_not_begun_and_its_slot_goes_on",
    )),
    Fault("wait_share_ignored", CONTROLLER,
        "min(self._policy.max_wait, share * (deadline_at - now))", "self._policy.max_wait",
        (UNIT + "test_a_wait_ends_at_the_smaller_of_max_wait_and_the_share_of_the_budget",)),
    Fault("deadline_called_timeout", CONTROLLER,
        "Reason.EXPIRED_IN_QUEUE if late else Reason.QUEUE_TIMEOUT", "Reason.QUEUE_TIMEOUT",
        (UNIT + "test_a_wait_that_ends_with_the_deadline_is_a_504",)),
    Fault("gone_waiter_wakes_up", QUEUE,
        "while heap and heap[0][2].state is not WaiterState.WAITING:\n            heapq.heappop(heap)\n        return",
        "return",
        ("tests/admission/test_queue.py",)),
    Fault("gone_waiters_pile_up", QUEUE, "if len(self._heap) > 2 * waiting + self.SLACK:", "if False:", (
        "tests/admission/test_queue.py::test_waiters_that_left_do_not_pile_up",
    )),
    # -- slots and places
    Fault("slot_kept_on_leave", CONTROLLER,
        "waiter.state = WaiterState.LEFT\n            waiter.route.left += 1\n"
        "            self._give_back(waiter)\n",
        "waiter.state = WaiterState.LEFT\n            waiter.route.left += 1\n",
        (UNIT + "test_one_that_leaves_between_the_grant_and_its_start_gives_the_slot_back",)),
    Fault("slot_kept_at_late_begin", CONTROLLER,
        "if now >= waiter.deadline_at:\n"
        "            self._give_back(waiter)\n",
        "if now >= waiter.deadline_at:\n",
        (UNIT + "test_a_grant_that_came_too_late_is_not_begun_and_its_slot_goes_on",)),
    Fault("lost_wakeup_on_leave", CONTROLLER,
        "self._remove(now, waiter, WaiterState.LEFT)\n            waiter.route.left += 1\n"
        "            return self._expire(now) + self._dispatch(now)",
        "self._remove(now, waiter, WaiterState.LEFT)\n            waiter.route.left += 1\n            return NOBODY",
        (UNIT + "test_a_waiter_that_leaves_unblocks_those_behind_it",)),
    Fault("lost_wakeup_on_expiry", CONTROLLER,
        "return settled + self._dispatch(now) if settled or self._ramp is not None else NOBODY", "return settled",
        (UNIT + "test_a_dead_first_waiter_blocks_nobody_after_the_tick_that_found_it_dead",)),
    Fault("lost_wakeup_on_push_out", CONTROLLER,
        "settled += self._dispatch(now) if loser is not None else NOBODY", "pass",
        (UNIT + "test_a_push_out_of_one_that_slots_were_saved_for_starts_others",)),
    Fault("double_release", GUARD,
        "            settled = self.controller.end(",
        "            self.controller.release(self.clock.now(), entry, cost, tenant)\n            settled = self.controller.end(",
        ("tests/runtime/test_guard.py::test_routes_that_differ_in_cost_only_share_their_labels",)),
    Fault("double_release_unnoticed", SLOTS, "if state.slots < cost:", "if False:", (
        UNIT + "test_slots_given_back_twice_are_an_error",
    )),
    Fault("stale_reservation", SLOTS,
        "self.in_use = in_use\n        state.slots += cost\n        if state.reserved:",
        "self.in_use = in_use\n        state.slots += cost\n        if False:",
        (MACHINE,)),
    Fault("reservation_ignored", SLOTS,
        "return self.limit - self.in_use - self.unfilled + state.unfilled", "return self.limit - self.in_use",
        (UNIT + "test_reserved_slots_stay_free_for_their_class",)),
    Fault("unbounded_queue", CONTROLLER,
        "if loser is None and (self.waiting >= self.queue_length or len(state.queue) >= state.most):", "if False:",
        (UNIT + "test_the_queue_is_bounded_for_all_classes_together",)),
    Fault("class_bound_forgotten", CONTROLLER,
        "if loser is None and (self.waiting >= self.queue_length or len(state.queue) >= state.most):",
        "if loser is None and self.waiting >= self.queue_length:",
        (UNIT + "test_a_class_has_its_own_bound",)),
    Fault("exempt_without_bound", CONTROLLER, "if self.exempt >= self._policy.exempt_limit:", "if False:", (
        UNIT + "test_exempt_requests_have_a_bound_of_their_own",
    )),
    Fault("drain_forgotten", CONTROLLER, "if self.waiting or self.attentive:", "if self.waiting:", (
        UNIT + "test_a_draining_server_takes_no_new_work_and_finishes_what_waits",
    )),
    # -- priority and turns
    Fault("wrong_push_out_order", CONTROLLER, "return other.last()", "return other.first()", (
        UNIT + "test_a_higher_class_pushes_out_the_newest_waiter_of_the_lowest_class",
    )),
    Fault("push_out_of_own_places", CONTROLLER, "len(other.queue) > other.places and", "other.queue and", (
        UNIT + "test_a_class_keeps_the_places_that_its_weight_gives_it",
    )),
    Fault("turn_not_charged", SLOTS,
        "state.turn = self._turn + taken / state.priority.weight", "pass",
        (UNIT + "test_backlogged_classes_are_served_by_their_weights",)),
    Fault("turn_charged_for_the_reserve", SLOTS,
        "if taken:\n            self._turn = max(self._turn, state.turn)\n"
        "            state.turn = self._turn + taken / state.priority.weight\n",
        "self._turn = max(self._turn, state.turn)\n"
        "        state.turn = self._turn + cost / state.priority.weight\n",
        (UNIT + "test_reserved_slots_stay_out_of_the_turns",)),
    Fault("turn_runs_ahead", SLOTS,
        "self._turn = max(self._turn, state.turn)\n            state.turn = self._turn +",
        "state.turn = max(self._turn, state.turn) +",
        (UNIT + "test_a_class_is_not_charged_for_ever_for_slots_that_others_could_not_use",)),
    Fault("saved_slots_ignored", SLOTS,
        "if first.bypassed >= self.limit and first.cost > self.available(other):", "if False:",
        (UNIT + "test_a_costly_request_behind_cheap_traffic_starts_within_its_wait_bound",)),
    Fault("passed_in_its_own_class", CONTROLLER,
        "if not state.queue and self.slots.fits(state, cost):", "if self.slots.fits(state, cost):",
        (UNIT + "test_nobody_passes_a_waiter_of_his_own_class",)),
    # -- forecasts
    Fault("retry_after_without_jitter", FORECAST, "(0.8 + 0.6 * self._random.random())", "1.0", (
        UNIT + "test_retry_after_is_spread_so_that_nobody_comes_back_together",
    )),
    Fault("standstill_forgotten", CONTROLLER, "self.forecast.drain.ended(now)", "pass", (
        UNIT + "test_a_standstill_counts_also_when_the_queue_emptied_by_itself",
    )),
    Fault("impatient_drain_rate", WINDOWS,
        "now - self._last - self._seconds / self._units if", "now - self._last if",
        (UNIT + "test_retry_after_says_when_the_queue_will_be_worked_off",)),
    Fault("prediction_forgotten", FORECAST, "return wait is not None and wait + median > budget", "return False", (
        UNIT + "test_one_whose_answer_would_come_too_late_is_refused_on_arrival",
    )),
    Fault("cut_off_runs_teach", FORECAST, "if outcome != COMPLETED:", "if not outcome:", (
        UNIT + "test_a_cut_off_run_does_not_make_a_route_look_fast",
    )),
    # -- values
    Fault("trusted_budget_raised", DEADLINE, "return min(wish, maximum)", "budget = min(wish, maximum)", (
        "tests/core/test_deadline.py::test_the_budget_at_the_edge",
    )),
    Fault("stranger_lengthens_deadline", DEADLINE, "budget = min(wish, default)", "budget = wish", (
        "tests/core/test_deadline.py::test_the_budget_at_the_edge",
    )),
    Fault("root_taken_off_as_text", ROUTES, 'if rest.startswith("/"):', "if rest:", (
        "tests/core/test_routes.py::test_the_path_below_a_root",
    )),
    Fault("text_before_the_path_overlooked", ROUTES, "if before:", "if False:", (
        "tests/core/test_routes.py::test_no_path_trick_reaches_an_exact_rule",
    )),
    Fault("empty_parameter_matches", ROUTES,
        "if node.any is not None and segment:", "if node.any is not None:",
        ("tests/core/test_routes.py::test_a_parameter_is_one_segment_that_is_not_empty",)),
    Fault("exempt_for_every_method", ROUTING,
        "if path in self._exempt and method in READING:", "if path in self._exempt:",
        ("tests/admission/test_routing.py::test_health_paths_are_exempt_for_reading_only_and_before_every_rule",)),
    Fault("mark_hidden_by_wrapper", MARKS,
        'for attribute in ("__wrapped__", "func",', 'for attribute in ("func",',
        ("tests/core/test_marks.py::test_a_mark_that_was_put_on_after_the_wrapper_is_found",)),
    # -- guard and gates
    Fault("early_timer_spins", GUARD, "max(at, self.clock.now())", "self.clock.now()", (
        "tests/runtime/test_async_gate.py::test_a_timer_that_fires_early_settles_its_waiter_and_does_not_spin",
        "tests/runtime/test_thread_gate.py::test_a_timer_that_fires_early_settles_its_waiter_and_does_not_spin",
    )),
    Fault("decision_without_lock", GUARD,
        "self._lock.acquire()\n        try:\n            decision = self.controller.arrive(\n                now, entry, entry.cost if cost is None else cost, deadline_at, tenant\n            )\n        finally:\n            self._lock.release()\n",
        "decision = self.controller.arrive(\n            now, entry, entry.cost if cost is None else cost, deadline_at, tenant\n        )\n",
        ("tests/runtime/test_thread_gate.py::test_sixty_four_threads_through_a_barrier",)),
    Fault("grant_before_attach_lost", GUARD, "if not waiting:\n            wake()\n", "", (
        "tests/runtime/test_async_gate.py::test_a_grant_before_the_wait_begins_is_found",
    )),
    Fault("woken_under_the_lock", GUARD,
        "settled = self.controller.tick(max(at, self.clock.now()))\n        self._wake(settled)",
        "settled = self.controller.tick(max(at, self.clock.now()))\n            self._wake(settled)",
        ("tests/runtime/test_guard.py::test_every_verb_wakes_whom_it_settled_after_it_has_let_go_of_the_lock",)),
    Fault("late_refusal_not_told", GUARD,
        "if granted and decision.reason is not None:", "if False:",
        ("tests/runtime/test_guard.py::test_a_refusal_after_the_grant_is_told_too",)),
    Fault("forgotten_cancel", ASYNC_GATE, "except BaseException:", "except Exception:", (
        "tests/runtime/test_async_gate.py::test_cancelled_while_queued",
        "tests/runtime/test_async_gate.py::test_cancelled_between_the_grant_and_the_wake_up",
    )),
    Fault("forgotten_interrupt", THREAD_GATE, "except BaseException:", "except Exception:", (
        "tests/runtime/test_thread_gate.py::test_an_interrupt_between_the_grant_and_the_wake_up_gives_the_slot_back",
    )),
    Fault("lock_taken_by_the_garbage_collector", ASYNC_GATE,
        "self._later(partial(guard.leave, waiter))", "guard.leave(waiter)",
        ("tests/runtime/test_forgotten.py::test_a_forgotten_waiter_is_taken_back_by_the_next_arrival",)),
    Fault("timer_left_behind", ASYNC_GATE, "timer.cancel()", "pass", (
        "tests/runtime/test_async_gate.py::test_a_waiter_starts_at_the_instant_of_the_release",
    )),
    Fault("abandoned_keeps_its_place", ASYNC_GATE,
        "        self._guard.leave(self._waiter)\n        self._future.set_result(False)",
        "        self._future.set_result(False)",
        ("tests/runtime/test_async_gate.py::test_a_caller_who_leaves_ends_the_wait",)),
    Fault("slot_kept_by_a_closed_loop", ASYNC_GATE,
        "its slot must not stay granted.\n            self._guard.leave(self._waiter)",
        "its slot must not stay granted.\n            pass",
        ("tests/runtime/test_async_gate.py::test_a_grant_to_a_closed_loop_goes_on_to_the_next_waiter",)),
    Fault("other_loop_woken_from_here", ASYNC_GATE, "if threading.get_ident() == self._thread:", "if True:", (
        "tests/runtime/test_async_gate.py::test_two_loops_share_one_limit_and_wake_each_other",
    )),
)  # fmt: skip
