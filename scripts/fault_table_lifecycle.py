"""Faults of start, stop, reload and fork. See `fault_table.py`."""

from __future__ import annotations

from fault_table import CONTROLLER, GUARD, Fault

ALARM = "resilient_mw/runtime/alarm.py"
ASYNC_GATE = "resilient_mw/runtime/async_gate.py"
CONNECTIONS = "resilient_mw/admission/connections.py"
DRAIN_SIGNAL = "resilient_mw/runtime/drain_signal.py"
ENTRY = "resilient_mw/admission/entry.py"
FORKS = "resilient_mw/runtime/forks.py"
GUARD_STATE = "resilient_mw/runtime/guard_state.py"
LIFECYCLE = "resilient_mw/runtime/lifecycle.py"
LIFESPAN = "resilient_mw/asgi/lifespan.py"
MIDDLEWARE_STATE = "resilient_mw/asgi/middleware_state.py"
OWNER = "resilient_mw/runtime/dependency_owner.py"
PHASES = "resilient_mw/admission/phases.py"
PROTECTION = "resilient_mw/runtime/protection.py"
RAMP = "resilient_mw/admission/ramp.py"
RELOAD = "resilient_mw/admission/reload.py"
RELOADING = "resilient_mw/runtime/reload.py"
SLOTS = "resilient_mw/admission/slots.py"
SUPERVISE = "resilient_mw/runtime/supervise.py"
THREAD_CONTEXT = "resilient_mw/runtime/thread_context.py"
THREAD_GATE = "resilient_mw/runtime/thread_gate.py"
WEBSOCKETS = "resilient_mw/runtime/websockets.py"
WSGI_RUN = "resilient_mw/wsgi/run.py"

CONNECTED = "tests/admission/test_connections.py::test_"
RAMPS = "tests/admission/test_ramp.py::test_"
DRAINS = "tests/admission/test_drain.py::test_"
LIVES = "tests/runtime/test_lifecycle.py::test_"
STOPS = "tests/asgi/test_shutdown.py::test_"
WSGI_STOPS = "tests/wsgi/test_shutdown.py::test_"
SURELY = "tests/admission/test_surely_refused.py::test_"
SIGNALS = "tests/runtime/test_drain_signal.py::test_"
RELOADS = "tests/admission/test_reload.py::test_"
IN_FORCE = "tests/runtime/test_reload.py::test_"
FORKED = "tests/runtime/test_forks.py::test_b94_"

LIFECYCLE_FAULTS = (
    # -- the ramp
    Fault("ramp_begins_with_the_process", RAMP, "            self._began = now\n", "            self._began = 0.0\n", (
        RAMPS + "time_before_the_first_request_does_not_count",
    )),
    Fault("ramp_forgets_what_is_reserved", RAMP, "max(1 + reserved,", "max(1,", (
        RAMPS + "no_class_is_shut_out_by_what_others_have_reserved",
    )),
    Fault("ramp_waiters_forgotten_at_the_tick", CONTROLLER, " if settled or self._ramp is not None else NOBODY", " if settled else NOBODY", (
        RAMPS + "the_controller_admits_no_more_than_the_ramp_allows",
    )),
    Fault("ramp_not_on_arrival", PHASES, "        if self._ramp is not None:\n            self._grow(now)\n        return", "        return", (
        RAMPS + "an_arrival_alone_raises_the_limit",
    )),
    Fault("ramp_ends_the_drain", PHASES, "            if self.draining:  # asked", "            if False:  # asked", (
        DRAINS + "the_end_of_a_ramp_does_not_end_a_drain",
    )),
    Fault("ramp_timer_fires_once_only", ASYNC_GATE, "if self._waiter.state is WaiterState.WAITING:", "if False:", (
        RAMPS + "waiters_on_a_loop_start_when_the_limit_grows",
    )),
    Fault("ramp_unseen_by_waiting_threads", GUARD, "min(waiter.give_up_at, self.controller.grows_at())", "waiter.give_up_at", (
        RAMPS + "a_waiter_in_a_thread_starts_when_the_limit_grows",
        RAMPS + "waiters_on_a_loop_start_when_the_limit_grows",
    )),
    # -- the drain
    Fault("drain_without_grace", PHASES, "return now >= self.refuse_from", "return self.draining", (
        DRAINS + "until_the_delay_is_over_new_work_is_taken",
    )),
    Fault("drain_put_off_by_a_second_one", PHASES, "self.refuse_from = min(refuse_from, self.refuse_from)", "self.refuse_from = refuse_from", (
        DRAINS + "a_second_drain_may_bring_it_forward_only",
    )),
    Fault("drain_takes_the_lock", LIFECYCLE, "        self._controller.drain(refuse_from)\n", "        with self._lock:\n            self._controller.drain(refuse_from)\n", (
        LIVES + "a_drain_takes_no_lock",
    )),
    Fault("drain_never_cancels", SUPERVISE, "now >= self._lifecycle.stop_at", "False", (
        STOPS + "what_still_runs_at_the_end_is_cancelled_and_answered",
    )),
    Fault("drain_cancels_at_once", "resilient_mw/runtime/operations.py", "drain(refuse_from, refuse_from + timeout)", "drain(refuse_from, refuse_from)", (
        STOPS + "what_ends_in_time_is_not_touched",
    )),
    Fault("drain_without_an_answer", SUPERVISE, ", CancelReason.SHUTDOWN})", "})", (
        STOPS + "what_still_runs_at_the_end_is_cancelled_and_answered",
    )),
    Fault("drain_untold_to_threads", THREAD_CONTEXT, "            if now >= self.stop_at:", "            if False:", (
        LIVES + "a_thread_learns_of_the_end",
        WSGI_STOPS + "check_ends_what_still_runs_at_the_end",
    )),
    Fault("drain_does_not_wake_the_alarm", ALARM, "        if self._thread is None:\n            return\n        try:", "        return\n        try:", (
        LIVES + "a_threads_callbacks_run_at_the_end",
    )),
    Fault("drain_of_threads_unanswered", WSGI_RUN, "REPLACED = (CancelReason.DEADLINE, CancelReason.SHUTDOWN, ", "REPLACED = (CancelReason.DEADLINE, ", (
        WSGI_STOPS + "check_ends_what_still_runs_at_the_end",
    )),
    Fault("shutdown_told_too_early", LIFESPAN, "        await asyncio.sleep(LOOK_EVERY)\n", "        return\n", (
        STOPS + "the_application_is_shut_down_when_its_requests_have_ended",
    )),
    Fault("shutdown_waits_for_ever", LIFESPAN, " and guard.clock.now() < lifecycle.stop_at + CLEAN_UP_WITHIN:", ":", (
        STOPS + "the_application_is_shut_down_in_the_bound_whatever_still_runs",
    )),
    Fault("shutdown_for_good", LIFECYCLE, "                self._controller.resume()\n", "", (
        STOPS + "an_application_that_is_started_again_serves_again",
    )),
    Fault("shutdown_of_one_is_that_of_all", LIFECYCLE, "return set(self._spans.values()) == {Phase.STOPPING}", "return True", (
        STOPS + "the_end_of_one_application_is_not_the_end_of_another_under_the_same_policy",
    )),
    Fault("shutdown_undoes_a_drain_by_hand", LIFECYCLE, "            if not self._controller.draining:\n                self._own = True", "            self._own = True", (
        LIVES + "a_drain_by_hand_outlives_the_lifespans",
    )),
    # -- readiness
    Fault("ready_before_the_start", LIFECYCLE, "applications and not any(each.started for each in applications)", "False", (
        LIVES + "a_policy_is_not_ready_before_the_first_request_of_its_middleware",
    )),
    Fault("ready_during_the_start_up", LIFECYCLE, "starting = Phase.STARTING in self._spans.values()", "starting = False", (
        LIVES + "a_lifespan_that_has_begun_and_is_not_complete_is_a_start",
    )),
    Fault("ready_with_a_blocked_loop", SUPERVISE, "return max(self.lag, now - self._tick_at)", "return self.lag", (
        LIVES + "a_loop_that_stands_still_is_seen_from_another_thread_and_forgotten_afterwards",
    )),
    Fault("blocked_by_one_long_step", SUPERVISE, "        if threading.get_ident() == self._thread:\n            return self.lag", "        if False:\n            return self.lag", (
        LIVES + "asked_on_the_loop_itself_only_lasting_lag_counts",
    )),
    Fault("blocked_by_a_loop_at_rest", SUPERVISE, "self._horizon == inf or not self._loop.is_running()", "self._horizon == inf", (
        LIVES + "a_loop_that_does_not_run_is_not_blocked",
    )),
    # -- signals
    Fault("signal_passed_on_at_once", DRAIN_SIGNAL, "        if delay:\n", "        if not delay:\n", (
        SIGNALS + "a_handler_that_is_a_function_is_called_after_the_delay",
    )),
    Fault("signal_reaches_the_loop_at_once", DRAIN_SIGNAL, "bytes(0 if number == self.number else number for number in numbers)", "numbers", (
        SIGNALS + "a_handler_of_an_event_loop_is_called_after_the_delay",
    )),
    Fault("signal_lost_to_the_loop", DRAIN_SIGNAL, "self.number if by_pipe else 0", "0", (
        SIGNALS + "a_handler_of_an_event_loop_is_called_after_the_delay",
    )),
    Fault("signal_handled_once_more_in_a_child", DRAIN_SIGNAL, "        handler.forked()\n", "        pass\n", (
        SIGNALS + "a_forked_child_has_the_handler_that_was_there_before",
    )),
    Fault("signal_handler_covered_by_the_server", DRAIN_SIGNAL, "            get_running_loop().call_later(AGAIN, handler.install)\n", "            get_running_loop()\n", (
        SIGNALS + "a_handler_that_a_server_puts_over_it_after_the_start_up_is_called_too",
    )),
    # -- reload
    Fault("reload_wakes_nobody", RELOAD, "return (*hopeless, *controller._expire(now), *controller._dispatch(now))", "return tuple(hopeless)", (
        RELOADS + "b41_a_larger_limit_lets_waiters_in_at_once_and_keeps_the_running_ones_counted",
    )),
    Fault("reload_forgets_reserves", SLOTS, "        self.limit = limit\n        for state in self.classes:\n            self._refill(state)\n", "        self.limit = limit\n", (
        RELOADS + "a_new_reserve_counts_what_its_class_holds_already",
    )),
    Fault("reload_keeps_the_hopeless", RELOAD, "if waiter.cost > most]", "if waiter.cost > 10 * most]", (
        RELOADS + "a_waiter_that_can_never_fit_now_is_refused_at_once_and_blocks_nobody",
    )),
    Fault("reload_ends_the_ramp", RELOAD, "        limit = controller._ramp.first\n", "", (
        RELOADS + "the_ramp_aims_at_the_new_limit",
    )),
    Fault("reload_begins_the_ramp", CONTROLLER, "if self._ramp is not None and self.waiting:", "if self._ramp is not None:", (
        RELOADS + "a_reload_does_not_begin_the_ramp",
    )),
    Fault("reload_takes_other_classes", RELOAD, "    if names[0] != names[1]:", "    if set(names[0]) != set(names[1]):", (
        RELOADS + "what_cannot_be_reloaded_is_named",
    )),
    Fault("reload_changes_before_it_checks", RELOADING, "            each.check(after)\n", "", (
        IN_FORCE + "a_mark_that_does_not_fit_stops_it_before_anything_has_changed",
    )),
    Fault("reload_starts_counting_anew", "resilient_mw/admission/routing.py", "        changed._entries = self._entries\n", "", (
        IN_FORCE + "counters_go_on_counting",
    )),
    Fault("reload_forgets_the_middleware", PROTECTION, "        if prepare is not None:\n            prepare()\n", "", (
        "tests/asgi/test_reload.py::test_what_is_prepared_is_prepared_anew_in_every_middleware",
    )),
    Fault("reload_keeps_middlewares_alive", PROTECTION, "self._prepare = WeakMethod(prepare)", "self._prepare = lambda: prepare", (
        "tests/asgi/test_reload.py::test_a_middleware_that_is_gone_is_not_kept_for_reloads",
    )),
    Fault("reload_of_old_peers", PROTECTION, "        self.policy = policy\n        self._read_policy()\n", "        self.policy = policy\n", (
        IN_FORCE + "all_applications_under_the_policy_take_the_new_rules",
    )),
    Fault("reload_of_old_listeners", GUARD, "        self.listeners.change(policy.listeners)\n", "", (
        IN_FORCE + "listeners_are_exchanged",
    )),
    # -- fork
    Fault("fork_inherits_slots", GUARD_STATE, "        self.controller = AdmissionController(self.policy, self._rng)\n        self.lifecycle.restart", "        self.lifecycle.restart", (
        FORKED + "a_child_inherits_neither_slots_nor_waiters_nor_counts",
    )),
    Fault("fork_inherits_counts", GUARD_STATE, "        self.entries.forget()\n", "", (
        FORKED + "a_child_inherits_neither_slots_nor_waiters_nor_counts",
    )),
    Fault("fork_inherits_the_lock", GUARD_STATE, "        self._lock = threading.Lock()\n        self._ignored.clear()", "        self._ignored.clear()", (
        FORKED + "a_lock_that_a_thread_held_at_the_fork_stops_nobody",
    )),
    Fault("fork_inherits_the_lock_of_a_module", FORKS, "        setattr(sys.modules[module], name, threading.Lock())\n", "        pass\n", (
        FORKED + "a_lock_that_a_thread_held_at_the_fork_stops_nobody",
    )),
    Fault("fork_inherits_the_lock_of_a_dependency", OWNER, '        self._lock = threading.Lock()\n        self._abandoned.clear()', "        self._abandoned.clear()", (
        FORKED + "a_lock_that_a_thread_held_at_the_fork_stops_nobody",
    )),
    Fault("fork_inherits_chance", GUARD_STATE, "        self._rng.seed()", "        self._rng.getstate()", (
        FORKED + "children_draw_their_own_random_numbers",
    )),
    Fault("fork_inherits_loops", MIDDLEWARE_STATE, "        self._services = {}\n        self._making", "        self._making", (
        FORKED + "a_child_has_none_of_the_parents_loops_and_does_not_drain_with_it",
    )),
    # -- with early refusals, websockets, sections
    Fault("drain_surely_refuses_at_once", "resilient_mw/admission/surely.py", "if now >= controller.refuse_from:", "if controller.draining:", (
        SURELY + "a_drain_refuses_surely_when_its_delay_is_over",
    )),
    Fault("ramp_unseen_by_sure_refusals", "resilient_mw/admission/surely.py", "if controller.may_have_grown(now):", "if False:", (
        SURELY + "not_where_the_limit_has_grown_since_anybody_looked",
    )),
    Fault("drain_opens_no_websocket_in_the_delay", WEBSOCKETS, "draining=now >= controller.refuse_from", "draining=controller.draining", (
        "tests/asgi/test_websocket.py::test_they_are_opened_until_the_delay_of_a_drain_is_over",
    )),
    Fault("reload_forgets_websockets", GUARD, "            self.websockets.change(policy)\n", "            pass\n", (
        "tests/asgi/test_reload.py::test_websockets_are_treated_as_the_new_policy_says",
    )),
    Fault("reload_of_old_routes_of_websockets", PROTECTION, "self._sockets = self._sockets.under(", "self._sockets.under(", (
        "tests/asgi/test_reload.py::test_websockets_are_treated_as_the_new_policy_says",
    )),
    Fault("reload_of_old_shares_of_websockets", CONNECTIONS, "state.priority, state.reserved = priority, priority.reserved", "state.priority = priority", (
        CONNECTED + "other_numbers_keep_the_open_ones_and_what_was_counted",
    )),
    Fault("reload_keeps_the_order", RELOAD, "            state.standing = planned.standing\n", "            pass\n", (
        RELOADS + "the_order_of_a_class_may_change_while_its_queue_stands",
    )),
    Fault("reload_of_old_answers_in_a_loop", MIDDLEWARE_STATE, "                service.stopped = self._stopped\n", "                pass\n", (
        "tests/asgi/test_reload.py::test_a_loop_that_serves_already_has_the_new_answers_and_fields",
    )),
    Fault("reload_of_old_field_names", MIDDLEWARE_STATE, "        self._field_names = frozenset(fields)\n", "        self._field_names = getattr(self, '_field_names', frozenset(fields))\n", (
        "tests/asgi/test_reload.py::test_a_loop_that_serves_already_has_the_new_answers_and_fields",
    )),
    Fault("reload_of_old_early_refusals", "integrations/resilient_mw_integrations/_early_refusals.py", "        if policy is not self._policy:\n", "        if self._policy is None:\n", (
        "tests/servers/test_uvicorn_protocol.py::test_a_reload_changes_what_refusals_say",
    )),
    Fault("fork_inherits_websockets", GUARD_STATE, "            self.websockets.restart(self.controller, self._lock, self.overload)\n", "            pass\n", (
        FORKED + "a_child_has_none_of_the_parents_websockets_and_a_lock_of_its_own",
    )),
    Fault("fork_inherits_open_places", CONNECTIONS, "        self.exempt = 0\n        self._ended_at = None\n        self._gap", "        self._ended_at = None\n        self._gap", (
        CONNECTED + "in_a_forked_child_nothing_is_open",
    )),
    Fault("drain_does_not_wait_for_a_threads_section", ALARM, "        return max(left, self._section_left(context))", "        return left", (
        LIVES + "a_threads_section_holds_the_end_back",
    )),
    Fault("drain_told_after_the_answer", THREAD_CONTEXT, "if reason is None and not self.ended:\n            now", "if reason is None:\n            now", (
        LIVES + "a_thread_whose_request_is_complete_is_told_of_no_end",
    )),
)  # fmt: skip
