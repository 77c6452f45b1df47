"""Planted faults of the WSGI shell: callers who leave, files, uploads, responses in one piece."""

from __future__ import annotations

from fault_table import Fault

CALLERS = "resilient_mw/runtime/callers.py"
ALARM = "resilient_mw/runtime/alarm.py"
CONTEXT = "resilient_mw/runtime/thread_context.py"
GATE = "resilient_mw/runtime/thread_gate.py"
BODY = "resilient_mw/wsgi/body.py"
MIDDLEWARE = "resilient_mw/wsgi/middleware.py"
RUN = "resilient_mw/wsgi/run.py"
UPLOAD = "resilient_mw/wsgi/upload.py"
WHOLE = "resilient_mw/wsgi/whole.py"
ON_CALLERS = "tests/runtime/test_callers.py::test_"
ON_GONE = "tests/wsgi/test_gone.py::test_"
ON_BODY = "tests/wsgi/test_body.py::test_"
ON_UPLOAD = "tests/wsgi/test_upload.py::test_"
ON_WHOLE = "tests/wsgi/test_whole.py::test_"

FAULTS = (
    Fault("gone_hidden_by_bytes", CALLERS, "_hung_up if POLLRDHUP else _at_its_end", "_at_its_end", (
        ON_CALLERS + "bytes_of_a_pipelined_request_hide_nothing",
    )),
    Fault("gone_reads_tls", CALLERS, "socket.socket.recv(connection, 1,", "connection.recv(1,", (
        ON_CALLERS + "tls_is_not_read_from",
    )),
    Fault("gone_takes_bytes", CALLERS, "socket.MSG_PEEK | socket.MSG_DONTWAIT", "socket.MSG_DONTWAIT", (
        ON_CALLERS + "a_connection_shows_that_its_peer_has_gone",
    )),
    Fault("gone_look_may_fail", CALLERS, "except (OSError, ValueError):", "except OSError:", (
        ON_CALLERS + "an_error_of_a_look_does_not_stop_the_thread_that_watches",
    )),
    Fault("gone_at_every_check", CONTEXT, "self._look_at = now + LOOK_EVERY", "self._look_at = now", (
        ON_CALLERS + "check_says_that_the_caller_has_gone_and_looks_at_most_every_100_ms",
    )),
    Fault("gone_after_the_answer", CONTEXT, "if reason is None and not self.ended:\n            now", "if reason is None:\n            now", (
        ON_CALLERS + "whoever_has_his_answer_is_not_looked_after",
    )),
    Fault("gone_unseen_by_the_alarm", ALARM, "looking = self._look_for_callers()", "looking = False", (
        ON_CALLERS + "callbacks_are_called_when_the_caller_leaves",
    )),
    Fault("gone_seen_by_the_alarm_once", ALARM, "seconds = min(seconds, LOOK_EVERY)", "pass", (
        ON_CALLERS + "callbacks_are_called_when_the_caller_leaves",
    )),
    Fault("gone_waiter_keeps_its_place", GATE, "if gone is not None and gone():", "if False:", (
        ON_CALLERS + "b29_who_leaves_the_queue_gives_his_place_back_at_once",
    )),
    Fault("gone_waiter_begins", GATE, "and waiter.state is WaiterState.GRANTED and gone():", "and False:", (
        ON_CALLERS + "b29_no_work_begins_for_a_caller_who_left_just_before_his_turn",
    )),
    Fault("looks_end_the_wait", GATE, "if gone is None or left <= LOOK_EVERY:", "if True:", (
        ON_CALLERS + "a_caller_who_stays_gets_his_slot",
    )),
    Fault("gone_is_an_error", BODY, "if type(error) is RequestCancelled and run.context.reason is CancelReason.CLIENT_DISCONNECT:", "if False:", (
        ON_GONE + "a_body_that_stops_for_it_ends_as_connections_end",
    )),
    Fault("gone_is_answered_504", BODY, "if reason is CancelReason.CLIENT_DISCONNECT:", "if False:", (
        ON_GONE + "work_that_stops_for_it_is_no_error_of_the_application",
    )),
    Fault("gone_unseen_between_pieces", BODY, "                run.look()\n", "", (
        ON_GONE + "each_piece_of_a_body_is_an_occasion_to_look",
    )),
    Fault("gone_after_the_head_of_a_head", RUN, "            self.context.look_no_more()\n", "", (
        ON_GONE + "a_head_is_all_that_some_answers_have",
    )),
    Fault("file_ends_the_run_at_once", BODY, "            file.close = self.close  # type: ignore[attr-defined]\n", "            file.close = self.close  # type: ignore[attr-defined]\n            self.close()\n", (
        ON_BODY + "a_file_reaches_the_server_as_what_it_made_of_it_and_holds_its_slot_until_it_is_closed",
    )),
    Fault("file_is_wrapped", BODY, "isinstance(result, wrapper) and run.hands_files_over()", "False", (
        ON_BODY + "a_file_reaches_the_server_as_what_it_made_of_it_and_holds_its_slot_until_it_is_closed",
    )),
    Fault("file_of_cancelled_work_is_empty", BODY, "        if self._replaced:\n", "        if self._run.context.reason is not None:\n", (
        ON_BODY + "a_file_of_work_that_the_shutdown_has_cancelled_is_sent_whole",
    )),
    Fault("file_after_the_deadline", BODY, "        if self._replaced:\n", "        if False:\n", (
        ON_BODY + "a_file_that_comes_after_the_deadline_is_closed_and_not_sent",
    )),
    Fault("file_of_a_stream_is_unwatched", RUN, "return self._entry.stream is None and not self.started", "return not self.started", (
        ON_BODY + "a_file_that_cannot_be_handed_over_is_iterated",
    )),
    Fault("file_is_not_closed", BODY, "        return self._close\n", "        return None\n", (
        ON_BODY + "a_file_reaches_the_server_as_what_it_made_of_it_and_holds_its_slot_until_it_is_closed",
    )),
    Fault("upload_holds_a_slot", MIDDLEWARE, 'if "CONTENT_LENGTH" in environ and entry.rank >= 0', "if False", (
        ON_UPLOAD + "a_body_is_read_before_its_request_takes_a_slot",
    )),
    Fault("upload_costs_no_time", MIDDLEWARE, "                return refused, entry, entry.cost, None, deadline_at, now\n            now = guard.clock.now()\n", "                return refused, entry, entry.cost, None, deadline_at, now\n", (
        ON_UPLOAD + "b31_the_time_that_it_takes_is_part_of_the_budget",
    )),
    Fault("upload_read_for_nothing", UPLOAD, "if guard.may_refuse():", "if False:", (
        ON_UPLOAD + "a_request_that_cannot_get_in_is_refused_unread",
    )),
    Fault("upload_too_large_is_read", UPLOAD, "if is_too_large(entry, ", "if False and is_too_large(entry, ", (
        ON_UPLOAD + "what_is_refused_for_what_it_is_stays_unread",
    )),
    Fault("upload_cut_off_begins_work", UPLOAD, "    if left:\n", "    if False:\n", (
        ON_UPLOAD + "a_caller_who_leaves_in_his_upload_starts_no_work",
    )),
    Fault("upload_of_any_size", UPLOAD, "size > READ_FIRST or ", "", (
        ON_UPLOAD + "other_bodies_are_read_by_the_application",
    )),
    Fault("upload_read_in_shadow_mode", UPLOAD, " or guard.models:", ":", (
        ON_UPLOAD + "other_bodies_are_read_by_the_application",
    )),
    Fault("whole_after_the_deadline", WHOLE, " or now >= context.deadline_at", "", (
        "tests/wsgi/test_deadlines.py::test_an_answer_that_comes_too_late_is_replaced",
    )),
    Fault("whole_though_cancelled", WHOLE, "if context.held is not None or context.reason is not None:", "if context.held is not None:", (
        ON_WHOLE + "an_answer_to_cancelled_work_is_counted_as_such",
    )),
    Fault("whole_with_callbacks", WHOLE, " or context.hooks is not None", "", (
        ON_WHOLE + "callbacks_are_forgotten_when_the_answer_is_there",
    )),
    Fault("whole_and_not_degraded", WHOLE, " or context.degraded", "", (
        ON_WHOLE + "an_answer_that_is_marked_says_so",
    )),
    Fault("whole_without_the_rest", MIDDLEWARE, "self._short = self._shadow is None and self._protection.tells is None", "self._short = True", (
        ON_WHOLE + "heads_that_tell_what_is_left_do_so",
        "tests/wsgi/test_shadow.py",
    )),
    Fault("whole_drops_the_error", WHOLE, "        if exc_info is not None:\n            return False\n", "", (
        ON_WHOLE + "an_error_page_reaches_the_server_with_its_error",
    )),
    Fault("whole_ends_twice", WHOLE, "        if self.closed:\n            return\n", "", (
        ON_WHOLE + "it_ends_once",
    )),
    Fault("whole_dropped_keeps_its_slot", WHOLE, "            self.abandoned.append(self)\n", "            pass\n", (
        ON_WHOLE + "a_body_that_is_dropped_gives_its_slot_back",
    )),
    Fault("whole_given_back_twice", MIDDLEWARE, "            if run.closed:\n                continue", "            if False:\n                continue", (
        ON_BODY + "a_file_that_nobody_closes_gives_its_slot_back_when_it_is_collected",
    )),
    Fault("whole_forgets_what_is_held", WHOLE, "if context.held is not None or context.reason is not None:", "if context.reason is not None:", (
        "tests/wsgi/test_deadlines.py::test_a_held_future_keeps_the_slot_after_the_response",
    )),
    Fault("whole_end_does_not_look", WHOLE, "if at >= guard.overload.look_at:", "if False:", (
        "tests/wsgi/test_overload.py::test_requests_look_when_they_come_and_go_at_most_every_50_ms",
    )),
    Fault("whole_for_those_who_say_nothing_only", MIDDLEWARE, "self._usual = WholeRun if self._short else Run", "self._usual = Run", (
        ON_WHOLE + "what_a_request_says_of_itself_makes_no_detour_for_its_answer",
    )),
    Fault("whole_though_its_request_is_counted", MIDDLEWARE, "Run if entry.max_body is not None else self._usual", "self._usual", (
        "tests/wsgi/test_edge.py::test_a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("pieces_after_the_head_of_a_head", WHOLE, " or is_bodiless(self.method, head[0])", "", (
        ON_WHOLE + "an_answer_in_pieces_is_complete_with_its_head_where_that_is_all",
    )),
    Fault("pieces_and_not_degraded", WHOLE, "head[2] is not None or self.context.degraded or", "head[2] is not None or", (
        ON_WHOLE + "an_answer_in_pieces_that_is_marked_says_so",
    )),
    Fault("pieces_drop_the_error", WHOLE, "if head is None or head[2] is not None or", "if head is None or", (
        ON_WHOLE + "an_error_page_in_pieces_reaches_the_server_with_its_error",
    )),
    Fault("wait_before_threads_charged_to_the_exempt", "resilient_mw/runtime/protection.py", "if not lag or entry.rank < 0 else", "if not lag else", (
        "tests/wsgi/test_thread_count.py::test_the_time_before_the_threads_is_charged",
    )),
)  # fmt: skip
