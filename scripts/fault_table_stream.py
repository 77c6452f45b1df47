"""Faults of streams for `plant_faults.py`: slots that come back with the head, deadlines that move, places."""

from __future__ import annotations

from fault_table import Fault

RULE = "resilient_mw/core/streams.py"
PLACES = "resilient_mw/admission/streams.py"
OWNER = "resilient_mw/runtime/streams.py"
SUPERVISE = "resilient_mw/runtime/supervise.py"
PROTECTION = "resilient_mw/runtime/protection.py"
SHELL = "resilient_mw/asgi/stream.py"
MIDDLEWARE = "resilient_mw/asgi/middleware.py"
WAITING = "resilient_mw/asgi/waiting.py"
THREADS = "resilient_mw/wsgi/stream.py"
IN_SHELL = "tests/asgi/test_stream.py::test_"
IN_THREADS = "tests/wsgi/test_stream.py::test_"
IN_MARKS = "tests/core/test_marks.py::test_"

STREAM_FAULTS = (
    Fault("stream_slot_to_the_end", SHELL, "        if not self._frees:\n            return\n", "        return\n", (
        IN_SHELL + "the_slot_comes_back_when_the_server_has_taken_the_head",
    )),
    Fault("stream_slot_before_the_head_has_left", SHELL, "        await super().send(message)\n        if self.reason is not None:\n            return\n", "        if kind == \"http.response.start\":\n            self._head_left()\n        await super().send(message)\n        if self.reason is not None:\n            return\n", (
        IN_SHELL + "the_slot_comes_back_when_the_server_has_taken_the_head",
    )),
    Fault("stream_slot_given_back_twice", SHELL, "        self._slot_taken = False\n        if self._head_at", "        if self._head_at", (
        IN_SHELL + "the_slot_comes_back_when_the_server_has_taken_the_head",
    )),
    Fault("stream_held_slot_given_back", SHELL, "        if self._held:\n", "        if self._held is False:\n", (
        IN_SHELL + "what_the_application_holds_the_slot_for_keeps_it_beyond_the_head",
    )),
    Fault("stream_held_slot_never_given_back", SHELL, "            self._release = self._free_early  # what", "            pass  # what", (
        IN_SHELL + "what_the_application_holds_the_slot_for_keeps_it_beyond_the_head",
    )),
    Fault("stream_lasts_as_a_run", SHELL, "            self.started_at += self._clock.now() - self._head_at\n", "            pass\n", (
        IN_SHELL + "a_run_took_until_its_head_and_a_stream_is_in_no_run_time",
    )),
    Fault("stream_place_kept", SHELL, "        self._guard.streams.end(self.entry, outcome)\n", "        pass\n", (
        IN_SHELL + "over_the_limit_a_stream_is_refused_before_any_work",
    )),
    Fault("stream_place_kept_without_a_head", SHELL, "                    self._guard.streams.end(self.entry, None)\n", "                    pass\n", (
        IN_SHELL + "a_late_head_is_a_504",
    )),
    Fault("stream_end_is_not_told", SHELL, "            self._guard.cancelled(self.entry, reason, self._clock", "            (self.entry, reason, self._clock", (
        IN_SHELL + "a_caller_who_leaves_ends_the_stream",
    )),
    Fault("stream_errors_are_completed", SHELL, "(ERROR if self.failed else COMPLETED)", "COMPLETED", (
        IN_SHELL + "an_exception_gives_the_slot_back_once",
    )),
    Fault("stream_deadline_stays", SHELL, "        if self._covers != BODY:\n            self._end_at", "        if self._covers is None:\n            self._end_at", (
        IN_SHELL + "a_deadline_for_the_head_is_over_with_it",
    )),
    Fault("stream_deadline_of_the_body_forgotten", SHELL, "        if self._covers != BODY:\n            self._end_at", "        if self._covers != GAPS or self._covers:\n            self._end_at", (
        IN_SHELL + "a_deadline_for_the_body_cuts_a_stream_that_has_no_slot_any_more",
    )),
    Fault("stream_gaps_without_an_end", SHELL, "FOREVER if rule is None or rule.idle is None else rule.idle", "FOREVER", (
        IN_SHELL + "a_gap_that_lasts_too_long_ends_the_stream",
    )),
    Fault("stream_one_gap_only", SHELL, "        elif gaps and (kind in CHUNKS or kind in FILES):\n", "        elif gaps and kind in FILES:\n", (
        IN_SHELL + "a_gap_that_lasts_too_long_ends_the_stream",
    )),
    Fault("stream_hints_are_chunks", SHELL, "(kind in CHUNKS or kind in FILES)", "kind", (
        IN_SHELL + "trailers_are_chunks_and_hints_are_not",
    )),
    Fault("stream_files_have_gaps", SHELL, "        if gaps and kind in FILES:\n            self._end_at(FOREVER)\n", "", (
        IN_SHELL + "inside_a_file_there_are_no_gaps_to_be_seen",
    )),
    Fault("stream_no_gaps_after_a_file", SHELL, "(kind in CHUNKS or kind in FILES)", "kind in CHUNKS", (
        IN_SHELL + "inside_a_file_there_are_no_gaps_to_be_seen",
    )),
    Fault("stream_upload_moves_nothing", SHELL, "                self._part_came()\n", "                pass\n", (
        IN_SHELL + "an_upload_may_last_while_its_parts_come",
    )),
    Fault("stream_any_body_moves_the_deadline", SHELL, "            if more or self._in_parts:\n", "            if more is not None:\n", (
        IN_SHELL + "a_body_in_one_part_moves_nothing",
    )),
    Fault("stream_upload_beyond_the_budget", SHELL, "min(self._idle, self._budget)", "self._idle", (
        IN_SHELL + "an_upload_may_last_while_its_parts_come",
    )),
    Fault("stream_upload_for_the_head_lasts", SHELL, "        if self._covers == GAPS and message", "        if message", (
        IN_SHELL + "an_upload_may_last_while_its_parts_come",
    )),
    Fault("stream_outlives_the_middleware_around_it", SHELL, "at if self._outer is None else min(at, self._outer._fixed_end())", "at", (
        IN_SHELL + "another_one_of_ours_around_a_stream_ends_it_before",
    )),
    Fault("stream_scopes_rely_on_what_moves", "resilient_mw/runtime/supervised.py", "        return self._fixed_end()\n", "        return self._ends_at()\n", (
        IN_SHELL + "a_scope_bounds_a_stream_whose_deadline_moves",
    )),
    Fault("stream_scopes_end_with_the_first_gap", SHELL, "        if self._covers == BODY:\n            return super()._fixed_end()\n        return FOREVER if", "        return super()._fixed_end()\n        return FOREVER if", (
        IN_SHELL + "a_scope_bounds_a_stream_whose_deadline_moves",
    )),
    Fault("stream_timer_for_a_far_deadline", SUPERVISE, "        elif not record.done and record.deadline_at <= self._horizon:\n", "        elif not record.done:\n", (
        IN_SHELL + "a_stream_keeps_no_timer_and_no_task_of_ours_beyond_its_watcher",
    )),
    Fault("stream_timer_only_once", SUPERVISE, "            record._timed = False  # the deadline has moved", "            pass  # the deadline has moved", (
        IN_SHELL + "a_stream_keeps_no_timer_and_no_task_of_ours_beyond_its_watcher",
    )),
    Fault("stream_unlimited", PLACES, "        if self.places >= self.limit:\n            return False\n", "", (
        IN_SHELL + "over_the_limit_a_stream_is_refused_before_any_work",
    )),
    Fault("stream_vain_waits_keep_places", PLACES, "        if self.places >= self.limit:\n            self._look()\n", "", (
        IN_SHELL + "who_waits_for_a_slot_has_a_place_and_loses_it_when_he_waits_in_vain",
    )),
    Fault("stream_waiters_have_no_place", PLACES, "        elif decision.waiter is not None:\n", "        elif decision.waiter is not None and not self._give_back():\n", (
        IN_SHELL + "who_waits_for_a_slot_has_a_place_and_loses_it_when_he_waits_in_vain",
    )),
    Fault("stream_refused_keeps_a_place", PLACES, "        if decision is None or decision.reason is not None:\n", "        if decision is None:\n", (
        IN_SHELL + "a_refused_stream_and_an_error_of_our_own_take_no_place",
    )),
    Fault("stream_our_errors_keep_a_place", PLACES, "        if decision is None or decision.reason is not None:\n", "        if decision is None:\n            return\n        if decision.reason is not None:\n", (
        IN_SHELL + "a_refused_stream_and_an_error_of_our_own_take_no_place",
    )),
    Fault("stream_leaver_keeps_his_place", WAITING, "                guard.streams.left(waiter)\n", "", (
        IN_SHELL + "who_leaves_as_his_wait_ends_gives_his_place_back",
    )),
    Fault("stream_leaver_counts_twice", PLACES, "            self._waiting = [each for each in self._waiting if each is not waiter]\n", "            waiter.state = WaiterState.LEFT\n", (
        "tests/admission/test_streams.py::test_places_are_conserved",
    )),
    Fault("stream_waiters_pile_up", PLACES, "            if len(self._waiting) >= self._look_at:\n", "            if len(self._waiting) < 0:\n", (
        "tests/admission/test_streams.py::test_those_whose_wait_is_over_are_not_kept",
    )),
    Fault("stream_runs_lose_their_place", PLACES, "GONE = frozenset({WaiterState.REFUSED, WaiterState.LEFT})", "GONE = frozenset({WaiterState.REFUSED, WaiterState.LEFT, WaiterState.RUNNING})", (
        "tests/admission/test_streams.py::test_places_are_conserved",
    )),
    Fault("stream_queued_is_ordinary", MIDDLEWARE, "HttpExchange if arrival.entry.stream is None else StreamExchange", "HttpExchange", (
        IN_SHELL + "who_waits_for_the_slot_gets_it_at_the_head",
    )),
    Fault("stream_exempt_is_a_stream", RULE, "BODY if exempt or self.slot is None else self.slot", "self.slot or BODY", (
        IN_MARKS + "what_holds_for_every_request_is_no_stream",
        IN_SHELL + "exempt_requests_keep_their_place_to_the_end",
    )),
    Fault("stream_gaps_of_another_rule", RULE, "        return StreamRule(slot, self.covers, self.idle)\n", "        return StreamRule(slot, self.covers, self.idle or base.idle)\n", (
        IN_MARKS + "a_stream_rule_fills_its_gaps",
    )),
    Fault("stream_wsgi_slot_to_the_end", THREADS, "        if self._frees and self._slot_taken and not held", "        if False and not held", (
        IN_THREADS + "the_slot_comes_back_when_the_first_bytes_have_left",
    )),
    Fault("stream_wsgi_slot_twice", THREADS, "        if self._slot_taken:\n            self._slot_taken = False\n            if self._head_at", "        if True:\n            if self._head_at", (
        IN_THREADS + "the_slot_comes_back_when_the_first_bytes_have_left",
    )),
    Fault("stream_wsgi_held_slot", THREADS, "any(not future.done() for future in context.held or ())", "False", (
        IN_THREADS + "what_the_application_holds_the_slot_for_keeps_it_beyond_the_head",
    )),
    Fault("stream_wsgi_lasts_as_a_run", THREADS, "                self._admitted_at += at - self._head_at\n", "                pass\n", (
        IN_THREADS + "a_run_took_until_its_head_and_a_stream_is_in_no_run_time",
    )),
    Fault("stream_wsgi_head_only_completes", THREADS, "                self.complete = complete\n", "                self.complete = False\n", (
        IN_THREADS + "a_head_without_a_body_is_over_with_its_close",
    )),
    Fault("stream_wsgi_write_frees_nothing", THREADS, "        super().write(data)\n        if self.started:\n            self._bytes_left()\n", "        super().write(data)\n", (
        IN_THREADS + "the_slot_comes_back_after_the_first_write",
    )),
    Fault("stream_wsgi_deadline_stays", THREADS, "        super().start()\n        self._move()\n", "        super().start()\n", (
        IN_THREADS + "the_first_gap_begins_with_the_head",
    )),
    Fault("stream_wsgi_a_chunk_in_time_moves_nothing", THREADS, "        if not late and self.started:\n            self._move()\n", "", (
        IN_THREADS + "writes_have_gaps_too",
    )),
    Fault("stream_wsgi_slow_readers_have_no_gaps", THREADS, "        if self._resumed_at < self.context.deadline_at:\n            self._move()\n", "        self._move()\n", (
        IN_THREADS + "a_reader_who_takes_nothing_is_a_gap",
    )),
    Fault("stream_wsgi_alarm_sleeps_on", THREADS, "        if context.hooks is not None and context.deadline_at < before:\n            ALARM.poke()\n", "", (
        IN_THREADS + "callbacks_hear_of_a_gap_at_its_end",
    )),
    Fault("stream_wsgi_outlives_the_middleware_around_it", THREADS, "end if context.outer is None else min(end, context.outer._fixed_end())", "end", (
        IN_THREADS + "another_one_of_ours_around_a_stream_ends_it_before",
    )),
    Fault("stream_wsgi_place_kept", THREADS, "        guard.streams.end(entry, outcome_of(reason", "        (entry, outcome_of(reason", (
        IN_THREADS + "over_the_limit_a_stream_is_refused_before_any_work",
    )),
)  # fmt: skip
