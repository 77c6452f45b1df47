"""Planted faults where two features meet: streams, shadow mode, needs, drain, sections, two policies."""

from __future__ import annotations

from fault_table import Fault

GUARD = "resilient_mw/runtime/guard.py"
LIFECYCLE = "resilient_mw/runtime/lifecycle.py"
CONTEXT = "resilient_mw/runtime/thread_context.py"
STREAM = "resilient_mw/asgi/stream.py"
THREADS = "resilient_mw/wsgi/stream.py"
MEET = "tests/asgi/test_together.py::test_"
IN_THREADS = "tests/wsgi/test_stream.py::test_"
MODEL = "tests/runtime/test_shadow.py::test_"

TOGETHER_FAULTS = (
    Fault("shadow_counts_for_listeners_only", GUARD, "            if decision.reason is not None:\n                self._tell_refused", "            if decision.reason is not None and self.listeners:\n                self._tell_refused", (
        "tests/asgi/test_shadow.py::test_a_crowd_runs_and_is_counted",
    )),
    Fault("shadow_stream_without_a_place", "resilient_mw/runtime/arrivals.py", "stream.slot != HEAD or guard.models:", "stream.slot != HEAD or isinstance(guard, ShadowGuard):", (
        MEET + "who_leaves_as_his_wait_ends_gives_his_place_back_in_shadow_mode",
        MEET + "where_admission_is_real_a_stream_is_one_in_shadow_mode",
    )),
    Fault("shadow_stream_is_no_stream", "resilient_mw/asgi/shadow.py", "if entry.stream is None or shadow.models", "if True", (
        MEET + "where_admission_is_real_a_stream_is_one_in_shadow_mode",
    )),
    Fault("shadow_stream_deadline_kept", "resilient_mw/asgi/shadow.py", "        self._covers = BODY  # so that nothing moves it\n", "", (
        MEET + "a_deadline_in_shadow_ends_no_stream_and_is_counted",
    )),
    Fault("shadow_stream_counts_beyond_its_head", "resilient_mw/asgi/shadow.py", "self._until_head and self._head_at is not None", "False", (
        MEET + "a_deadline_in_shadow_ends_no_stream_and_is_counted",
    )),
    Fault("shadow_wsgi_stream_is_no_stream", "resilient_mw/wsgi/shadow.py", "if entry.stream is None or shadow.models", "if True", (
        "tests/wsgi/test_shadow.py::test_where_admission_is_real_a_stream_is_one",
    )),
    Fault("shadow_wsgi_stream_counts_beyond_its_head", "resilient_mw/wsgi/shadow.py", "self.started and (self._until_head or self.complete)", "self.started and self.complete", (
        "tests/wsgi/test_shadow.py::test_where_admission_is_real_a_stream_is_one",
    )),
    Fault("forgotten_stream_keeps_its_place", "resilient_mw/runtime/arrivals.py", "    guard.catch_up()  # the place of a forgotten one may be free\n", "", (
        MEET + "the_place_of_a_forgotten_stream_is_found_by_the_next_one",
    )),
    Fault("shutdown_under_streams", LIFECYCLE, "any(loop.in_flight for loop in self._loops)", "False", (
        MEET + "the_application_is_shut_down_after_its_streams",
    )),
    Fault("stream_that_is_over_gives_slots_back", STREAM, "if self._slot_taken and self.reason is None:", "if self._slot_taken:", (
        MEET + "a_stream_that_is_over_in_a_section_is_cancelled_once",
    )),
    Fault("inner_deadline_fixed_by_one_that_moves", STREAM, "FOREVER if self._outer is None else self._outer._fixed_end()", "self.deadline_at", (
        MEET + "a_deadline_that_moves_is_not_fixed_by_a_middleware_inside",
    )),
    Fault("inner_budget_without_the_outer_one", "resilient_mw/runtime/supervised.py", "self.deadline_at if self._outer is None else min(self.deadline_at, self._outer._ends_at())", "self.deadline_at", (
        MEET + "a_deadline_that_moves_is_not_fixed_by_a_middleware_inside",
    )),
    Fault("wsgi_inner_deadline_fixed", CONTEXT, "FOREVER if self.outer is None else self.outer._fixed_end()", "self.deadline_at", (
        IN_THREADS + "a_deadline_that_moves_is_not_fixed_by_a_middleware_inside",
    )),
    Fault("wsgi_inner_budget_without_the_outer_one", CONTEXT, "self.deadline_at if self.outer is None else min(self.deadline_at, self.outer._ends_at())", "self.deadline_at", (
        IN_THREADS + "a_deadline_that_moves_is_not_fixed_by_a_middleware_inside",
    )),
    Fault("stream_wsgi_section_loses_the_slot", THREADS, "context.hooks is not None and ALARM.shielded(context)", "False", (
        IN_THREADS + "a_section_that_is_open_at_the_head_keeps_the_slot_beyond_it",
    )),
    Fault("shadow_late_in_the_model", "resilient_mw/runtime/shadow.py", "if late and self.models:", "if False:", (
        MODEL + "who_is_refused_on_arrival_is_refused_once_and_takes_no_slot_of_the_model",
    )),
    Fault("shadow_needy_in_the_model", "resilient_mw/runtime/needed.py", "return shadow.outside(entry, entry.cost)", "return None", (
        MODEL + "a_dependency_that_is_away_only_counts",
    )),
    Fault("need_forgotten_before_the_drain_refuses", "resilient_mw/runtime/needed.py", "if now >= guard.controller.refuse_from:", "if guard.controller.draining:", (
        "tests/runtime/test_needed.py::test_while_draining_that_is_the_reason",
    )),
    Fault("websocket_cancelled_after_a_section", "resilient_mw/asgi/connection.py", "        self.run_callbacks()\n\n    def _hand_over", "        super().deliver()\n\n    def _hand_over", (
        MEET + "a_websocket_whose_peer_leaves_in_a_section_is_told_and_not_cancelled",
    )),
    Fault("early_answer_is_incomplete_to_the_outer_one", "resilient_mw/asgi/early.py", "return surrounding(task, scope) is None", "return True", (
        "tests/asgi/test_early.py::test_a_complete_answer_is_not_cut_off_by_the_outer_one_of_two",
    )),
    Fault("shadow_over_quota_in_the_model", "resilient_mw/runtime/arrivals.py", "if passes and guard.models:", "if False:", (
        "tests/asgi/test_quotas.py::test_who_is_over_his_quota_is_counted_once_where_all_is_in_shadow_mode",
    )),
)  # fmt: skip
