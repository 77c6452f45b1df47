"""The faults of what a route needs, of what dependencies report, and of shadow mode."""

from __future__ import annotations

from fault_table import Fault

NEEDED = "resilient_mw/runtime/needed.py"
PURE_NEEDS = "resilient_mw/admission/needs.py"
PROTECTION = "resilient_mw/runtime/protection.py"
ROUTING = "resilient_mw/admission/routing.py"
BREAKER = "resilient_mw/calls/breaker.py"
DEGRADE = "resilient_mw/runtime/degrade.py"
WITHIN = "resilient_mw/runtime/within.py"

CALLS = "resilient_mw/runtime/call_readings.py"
WAITS = "resilient_mw/runtime/pool_waits.py"
WATCHED = "resilient_mw/runtime/overload.py"
STATE = "resilient_mw/calls/state.py"
GATE = "integrations/resilient_mw_integrations/_httpx_gate.py"

NEEDS = "tests/runtime/test_needed.py::test_"
NEEDS_THROUGH = "tests/integrations/test_needs.py::test_"
BY_VARIANT = NEEDS_THROUGH + "it_is_refused_on_arrival_or_answered_by_the_variant"
SHADOW = "resilient_mw/runtime/shadow.py"
FIGURES = "resilient_mw/runtime/shadow_figures.py"
ON_ASGI = "resilient_mw/asgi/shadow.py"
ON_WSGI = "resilient_mw/wsgi/shadow.py"
SOCKETS = "resilient_mw/asgi/websocket.py"

MODEL = "tests/runtime/test_shadow.py::test_"
ASGI = "tests/asgi/test_shadow.py::test_"
WSGI = "tests/wsgi/test_shadow.py::test_"
OPEN = "tests/asgi/test_fail_open.py::test_"
READS = "tests/runtime/test_call_readings.py::test_"
POOLS = "tests/integrations/test_httpx_gate.py::test_"

NEEDS_FAULTS = (
    Fault("need_never_looked_at", PROTECTION, "if entry.needs is not None:", "if False:", (BY_VARIANT,)),
    Fault("needs_of_plain_routes", "resilient_mw/admission/entry.py",
        "max_body is None and stream is None and needs is None", "max_body is None and stream is None", (BY_VARIANT,)),
    Fault("refused_when_it_is_to_be_tried", BREAKER,
        "else self.retry_in(now) or None", "else self.retry_in(now)",
        (NEEDS + "a_trial_is_possible_and_closes_the_circuit",)),
    Fault("all_pass_while_trials_are_under_way", BREAKER,
        "if self.state is HALF_OPEN and not self._trials.has_place(now):", "if False:",
        (NEEDS + "a_trial_is_possible_and_closes_the_circuit",)),
    Fault("need_without_jitter", PURE_NEEDS, "JITTER = 0.4", "JITTER = 0.0",
        (NEEDS + "it_is_refused_while_the_circuit_is_open_and_told_when_it_is_tried_again",)),
    Fault("need_sends_away_for_hours", PURE_NEEDS, ", MOST_RETRY_AFTER)", ", 86_400)",
        (NEEDS + "nobody_is_sent_away_for_longer_than_a_minute",)),
    Fault("need_hides_that_it_drains", NEEDED, "if now >= guard.controller.refuse_from:", "if False:",
        (NEEDS + "while_draining_that_is_the_reason",)),
    Fault("degradable_refused", NEEDED, "if seconds is None or entry.degradable:", "if seconds is None:",
        (NEEDS + "who_can_do_with_less_passes", BY_VARIANT)),
    Fault("need_of_one_of_two", PURE_NEEDS, "if closed and len(closed) == len(waits) else None", "if closed else None",
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

READING_FAULTS = (
    Fault("all_that_was_counts_again", CALLS,
        "            self._bases[owner] = Base(now, good, bad)\n            yield", "            yield",
        (READS + "the_share_of_failures_since_the_last_reading",)),
    Fault("one_failure_is_overload", CALLS, "LEAST_ATTEMPTS = 10", "LEAST_ATTEMPTS = 1",
        (READS + "a_few_attempts_say_nothing_until_they_are_enough_or_too_old",)),
    Fault("few_attempts_never_forgotten", CALLS, "and now - before.at >= LONGEST", "and False",
        (READS + "a_few_attempts_say_nothing_until_they_are_enough_or_too_old",)),
    Fault("old_latency_of_a_dead_dependency", CALLS, "if good > before.good and share:", "if share:",
        (READS + "a_good_attempt_is_compared_with_the_timeout",)),
    Fault("names_not_looked_at", CALLS, "if self._names is not None and name not in self._names:", "if False:",
        (READS + "only_those_that_are_named_count",)),
    Fault("unwanted_signals_told", CALLS, "            if signal in self._wanted\n", "",
        (READS + "only_those_that_are_named_count",)),
    Fault("cancelled_attempts_are_good", STATE, "elif failed is not None:", "else:",
        (READS + "what_says_nothing_about_the_dependency_does_not_count",)),
    Fault("read_at_every_look", CALLS, "self.due_at = now + EVERY", "self.due_at = now",
        (READS + "it_is_read_once_a_second_however_often_somebody_looks",)),
    Fault("dependencies_never_read", WATCHED, "more += self._told_by(self._calls, now)", "pass",
        (READS + "a_dependency_that_fails_elevates_the_service_that_calls_it",)),
    Fault("broken_reading_ends_the_look", WATCHED,
        "        except Exception as error:  # noqa: BLE001  as above\n", "        except AssertionError as error:\n",
        (READS + "if_the_readings_break_the_rest_is_looked_at",)),
    Fault("broken_process_ends_the_look", WATCHED,
        "        except Exception as error:  # noqa: BLE001  what is not", "        except AssertionError as error:  # what is not",
        (READS + "if_the_readings_break_the_rest_is_looked_at",)),
    Fault("waiters_only_count_afterwards", WAITS, "+ sum(now - began for began in since)", "",
        (READS + "those_who_still_wait_count_before_they_have_got_anything",)),
    Fault("only_waits_are_averaged", CALLS, "max(1, came - before_came + waiting)", "max(1, waiting)",
        (READS + "the_wait_for_a_connection_is_that_of_all_who_came",)),
    Fault("wait_ended_twice", WAITS, "self._since.pop(wait, None)", "self._since.pop(wait, 0.0)",
        (READS + "those_who_still_wait_count_before_they_have_got_anything",)),
    Fault("pool_not_known", WAITS, "        ports.register_pool(self)\n", "",
        (READS + "a_pool_counts_as_long_as_it_is_alive",)),
    Fault("async_wait_for_ever", GATE, "        finally:\n            self._waits.end(wait)\n\n    def _leave",
        "        finally:\n            pass\n\n    def _leave",
        (POOLS + "an_async_pool_tells_how_long_its_connections_are_waited_for",)),
    Fault("sync_wait_for_ever", GATE, "        finally:\n            self._waits.end(wait)\n\n    def close",
        "        finally:\n            pass\n\n    def close",
        (POOLS + "a_sync_pool_tells_how_long_its_connections_are_waited_for",)),
)  # fmt: skip

SHADOW_FAULTS = (
    Fault("shadow_refuses", SHADOW,
        "        if decision.reason is not None and decision.reason not in MODELLED:", "        if decision.reason is not None:",
        (MODEL + "whatever_would_have_been_decided_everybody_runs", ASGI + "a_crowd_runs_and_is_counted")),
    Fault("shadow_passes_the_late", SHADOW,
        "        if decision.reason is not None and decision.reason not in MODELLED:", "        if False:",
        (MODEL + "a_deadline_that_has_passed_is_a_real_refusal_unless_deadlines_are_in_shadow",)),
    Fault("shadow_slots_never_come_back", SHADOW,
        "waiter is not None and waiter.state is WaiterState.RUNNING:\n                settled", "False:\n                settled",
        (MODEL + "who_waits_in_the_model_gets_the_slot_that_comes_free_and_gives_it_back",)),
    Fault("shadow_waiters_stay_when_done", SHADOW,
        "                    settled = self.controller.leave(now, waiter)", "                    pass",
        (MODEL + "who_is_done_before_his_turn_leaves_his_place",)),
    Fault("shadow_grants_never_begin", SHADOW, "if waiter.state is WaiterState.GRANTED:", "if False:",
        (MODEL + "who_waits_in_the_model_gets_the_slot_that_comes_free_and_gives_it_back",)),
    Fault("shadow_time_stands_still", SHADOW, "            self.tick(self.clock.now())", "            pass",
        (MODEL + "who_would_have_waited_too_long_is_counted_and_runs_on_without_a_slot",)),
    Fault("shadow_waits_not_counted", SHADOW, "self._of(entry).queued += waiter is not None", "pass",
        (MODEL + "whatever_would_have_been_decided_everybody_runs",)),
    Fault("shadow_refusals_told_as_real", SHADOW, "if self.models and reason in MODELLED:", "if False:",
        (MODEL + "events_tell_of_what_was_not_done",)),
    Fault("shadow_outside_for_ever", SHADOW, "            self._outside.discard(ticket)\n", "",
        (MODEL + "whatever_would_have_been_decided_everybody_runs",)),
    Fault("shadow_refuses_in_the_protocol", SHADOW, "return None if self.models else super().refuse_surely(entry, now)",
        "return super().refuse_surely(entry, now)", (MODEL + "a_server_that_refuses_early_refuses_nothing",)),
    Fault("shadow_late_counted_twice", SHADOW, "if self._keeps or ticket.late:", "if self._keeps:",
        (MODEL + "with_deadlines_in_shadow_a_budget_that_is_too_small_only_counts",
         ASGI + "a_budget_that_is_over_on_arrival_is_counted_once_and_served")),
    Fault("shadow_deadline_bounds_the_wait", SHADOW, "            if not self.models:\n                deadline_at", "            if late:\n                deadline_at",
        (MODEL + "with_deadlines_alone_in_shadow_admission_is_real_and_knows_no_deadline",)),
    Fault("shadow_cancels_who_would_not_run", SHADOW, "if not (ticket.holds or _holds_slots(ticket)):", "if False:",
        (MODEL + "who_would_not_have_run_is_not_cancelled_as_well",)),
    Fault("shadow_late_in_queue_not_counted", SHADOW, "if deadline_at <= now:  # it passed in the queue", "if False:",
        (MODEL + "with_deadlines_alone_in_shadow_admission_is_real_and_knows_no_deadline",)),
    Fault("shadow_forgets_the_waiter", SHADOW, "self._waiting[waiter] = ticket", "pass",
        (MODEL + "with_deadlines_alone_in_shadow_admission_is_real_and_knows_no_deadline",)),
    Fault("shadow_lifts_the_outer_deadline", SHADOW, "FOREVER if outer is None else outer._fixed_end()", "FOREVER",
        (ASGI + "the_deadline_of_a_middleware_around_it_holds", WSGI + "the_deadline_of_a_middleware_around_it_holds")),
    Fault("shadow_defence_not_asked_for", SHADOW, "if defence not in self._defences:", "if False:",
        (MODEL + "a_check_on_arrival_may_ask_whether_it_is_in_shadow",)),
    Fault("shadow_refuses_for_a_need", "resilient_mw/runtime/needed.py", "if shadow is not None and shadow.would_refuse(",
        "if False and shadow.would_refuse(", (MODEL + "a_dependency_that_is_away_only_counts",)),
    Fault("shadow_figures_mixed", FIGURES, "routes=tuple(_admitted(route) for route in figures.routes)",
        "routes=figures.routes", (MODEL + "whatever_would_have_been_decided_everybody_runs",)),
    Fault("shadow_overrun_after_the_response", ON_ASGI, "if not (self.complete or ", "if not (",
        (ASGI + "what_goes_on_after_a_complete_response_is_no_overrun",)),
    Fault("shadow_asgi_timer_left", ON_ASGI, "            self._timer.cancel()\n        reason", "            pass\n        reason",
        (ASGI + "a_timer_does_not_outlive_its_request",)),
    Fault("shadow_asgi_keeps_the_deadline", ON_ASGI, "self.started_at)\n        self.deadline_at = shadow.kept(self.deadline_at, self._outer, self.entry.stream)\n", "self.started_at)\n",
        (ASGI + "an_overrun_is_counted_once_and_nothing_is_cancelled",)),
    Fault("shadow_wsgi_counts_every_step", ON_WSGI, "(self.started and self.complete):\n            self._due_at = FOREVER\n", "(self.started and self.complete):\n",
        (WSGI + "an_overrun_is_counted_once_and_the_answer_is_the_applications",)),
    Fault("shadow_wsgi_tells_a_budget", ON_WSGI, "None if self._shadow.shadows(DEADLINES) else super()._tells()\n\n    def _ended",
        "super()._tells()\n\n    def _ended", (WSGI + "an_overrun_is_counted_once_and_the_answer_is_the_applications",)),
    Fault("shadow_asgi_tells_a_budget", PROTECTION, "self.policy.deadline_response_header if kept else None",
        "self.policy.deadline_response_header", (ASGI + "an_overrun_is_counted_once_and_nothing_is_cancelled",)),
    Fault("shadow_wsgi_releases_by_itself", ON_WSGI, "self._shadow.over(self._ticket, outcome, ran)",
        "super()._ended(outcome, ran)", (WSGI + "a_crowd_runs_and_is_counted",)),
    Fault("shadow_websocket_refused", SOCKETS, "if decision.reason is not None and websockets.shadow is not None:",
        "if False:", (ASGI + "websockets_over_their_limit_are_served_without_a_place",)),
)  # fmt: skip
