"""Faults of the edge for `plant_faults.py`: time spent before, trust behind proxies, bodies that are too large."""

from __future__ import annotations

from fault_table import Fault

EDGE = "resilient_mw/admission/edge.py"
SUPERVISE = "resilient_mw/runtime/supervise.py"
FORWARDED = "resilient_mw/core/headers/forwarded_for.py"
LENGTH = "resilient_mw/core/headers/content_length.py"
ASGI = "resilient_mw/asgi/middleware.py"
ASGI_STATE = "resilient_mw/asgi/middleware_state.py"
ASGI_EDGE = "resilient_mw/asgi/edge.py"
EXCHANGE = "resilient_mw/asgi/exchange.py"
WSGI = "resilient_mw/wsgi/middleware.py"
WSGI_INPUT = "resilient_mw/wsgi/input.py"
WSGI_RUN = "resilient_mw/wsgi/run.py"
WSGI_BODY = "resilient_mw/wsgi/body.py"
IN_ASGI = "tests/asgi/test_edge.py::test_"
IN_WSGI = "tests/wsgi/test_edge.py::test_"
IN_HEADERS = "tests/core/headers/test_edge_headers.py::test_"
IN_LAG = "tests/runtime/test_supervisor_lag.py::test_"

EDGE_FAULTS = (
    Fault("edge_start_from_anybody", EDGE, "if starts and believed:", "if starts:", (
        IN_ASGI + "nobody_else_is_believed",
    )),
    Fault("edge_start_from_the_caller_behind_the_proxy_only", EDGE, "        spent = lag\n        if starts", "        spent = lag\n        believed = believed and not self._hops\n        if starts", (
        IN_ASGI + "everybody_may_shorten_and_the_proxys_own_stamp_is_believed",
    )),
    Fault("edge_start_of_any_age", EDGE, ", max_age=oldest)", ", max_age=86_400.0)", (
        IN_ASGI + "clocks_that_do_not_agree_take_no_time_away",
    )),
    Fault("edge_start_of_a_minute_at_most", EDGE, "max(OLDEST_START, entry.deadline.maximum or 0.0)", "OLDEST_START", (
        IN_ASGI + "clocks_that_do_not_agree_take_no_time_away",
    )),
    Fault("edge_start_not_counted", EDGE, "                ignored += (REQUEST_START,)\n", "                pass\n", (
        IN_WSGI + "a_start_that_cannot_be_is_as_if_absent_and_counted",
    )),
    Fault("edge_start_and_lag_together", EDGE, "spent = max(age, lag)", "spent = age + lag", (
        IN_ASGI + "lag_of_the_loop_is_charged_also_to_those_who_say_nothing",
    )),
    Fault("edge_spent_is_not_charged", EDGE, "return now - spent + entry", "return now + entry", (
        IN_ASGI + "time_since_the_proxy_took_the_request_in_is_charged",
        IN_WSGI + "time_since_the_proxy_took_the_request_in_is_charged",
    )),
    Fault("edge_exempt_are_charged", EDGE, "        if entry.rank < 0:\n            spent = 0.0\n", "", (
        IN_ASGI + "exempt_requests_are_not_refused_for_what_the_load_took",
    )),
    Fault("edge_hops_of_any_peer", EDGE, "if believed and self._hops and wish is not None:", "if self._hops and wish is not None:", (
        IN_ASGI + "who_does_not_come_through_a_proxy_of_ours_is_not_asked_where_he_comes_from",
    )),
    Fault("edge_hops_believe_the_proxy", EDGE, "            believed = self._trusts(peer)\n", "", (
        IN_ASGI + "behind_proxies_the_address_that_the_outermost_one_added_decides",
    )),
    Fault("edge_hops_not_counted", EDGE, "                ignored += (FORWARDED_FOR,)\n", "                pass\n", (
        IN_ASGI + "what_is_no_address_is_as_if_absent_and_counted",
    )),
    Fault("edge_first_forwarded_address", FORWARDED, "return _address(whole[0])", 'return _address(values[0].split(",")[0])', (
        IN_HEADERS + "the_address_that_the_outermost_proxy_added_is_read",
    )),
    Fault("edge_lines_are_not_one_list", FORWARDED, "        seen += len(whole)\n", "        return None\n", (
        IN_HEADERS + "it_is_always_the_one_at_that_place_from_the_right_however_the_lines_are_cut",
    )),
    Fault("edge_rest_of_the_line", FORWARDED, "parts if len(parts) <= hops - seen else parts[1:]", "parts", (
        IN_HEADERS + "the_address_that_the_outermost_proxy_added_is_read",
    )),
    Fault("edge_zones", FORWARDED, ' or "%" in text', "", (
        IN_HEADERS + "what_is_no_address_at_that_place_is_none",
    )),
    Fault("edge_thousands_of_digits", LENGTH, "if len(digits) <= _MAX_DIGITS else _MOST", "", (
        IN_HEADERS + "a_content_length_is_read",
    )),
    Fault("edge_lag_of_a_single_pause", SUPERVISE, "        lag = min(late, self._late)\n", "        lag = late\n", (
        IN_LAG + "of_two_ticks_in_a_row_the_less_late_one_counts",
    )),
    Fault("edge_lag_is_never_measured", SUPERVISE, "        self._note_lag(now - self._tick_at)\n", "", (
        IN_LAG + "a_loop_that_is_behind_all_the_time_has_lag_and_no_more_than_it_makes_everybody_wait",
    )),
    Fault("edge_lag_counts_from_the_last_tick", SUPERVISE, "        self._tick_at = now + TICK\n", "        self._tick_at = now\n", (
        IN_LAG + "a_single_pause_is_nobodys_lag",
        IN_LAG + "lag_is_forgotten_when_the_loop_keeps_up_and_when_nothing_is_in_flight",
        IN_LAG + "a_loop_that_keeps_up_has_none",
    )),
    Fault("edge_lag_outlives_the_tick", SUPERVISE, "            self.lag = self._late = 0.0\n", "", (
        IN_LAG + "lag_ends_with_the_tick",
    )),
    Fault("edge_lag_is_not_charged", ASGI, " and not lag:", ":", (
        IN_ASGI + "lag_of_the_loop_is_charged_also_to_those_who_say_nothing",
    )),
    Fault("edge_asgi_length_takes_a_slot", ASGI, "            if entry.plain:\n                decision", "            if True:\n                decision", (
        IN_ASGI + "a_larger_content_length_is_refused_before_a_slot_and_before_anything_is_read",
    )),
    Fault("edge_asgi_nothing_is_counted", ASGI_STATE, "        if exchange.entry.max_body is not None:\n", "        if False:\n", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("edge_asgi_each_message_for_itself", ASGI_EDGE, "            self._left -= len", "            self._left = self._most - len", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("edge_asgi_one_byte_less", ASGI_EDGE, "if self._left < 0:", "if self._left <= 0:", (
        IN_ASGI + "a_body_of_exactly_the_limit_passes",
    )),
    Fault("edge_asgi_the_application_answers", ASGI_EDGE, "                await self._exchange.give_up(CancelReason.BODY_TOO_LARGE)\n", "", (
        IN_ASGI + "an_application_that_goes_on_answers_nothing_any_more",
    )),
    Fault("edge_asgi_reading_on_is_no_error", ASGI_EDGE, "                raise BodyTooLarge", "                str", (
        IN_ASGI + "after_a_complete_response_reading_on_fails_and_ends_nothing",
    )),
    Fault("edge_asgi_413_is_sent", SUPERVISE, "frozenset({CancelReason.DEADLINE, CancelReason.BODY_TOO_LARGE, ", "frozenset({CancelReason.DEADLINE, ", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("edge_asgi_413_and_not_504", EXCHANGE, "self.service.stopped[self.reason or CancelReason.DEADLINE]", "self.service.stopped[CancelReason.DEADLINE]", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("edge_asgi_says_that_nothing_was_begun", "resilient_mw/core/answer.py", "by_origin, line, begun=True)", "by_origin, line)", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("edge_asgi_head_twice", ASGI_EDGE, " if bytes(pair[0]).lower() != self._name]", "]", (
        IN_ASGI + "of_two_layers_the_outer_one_tells",
    )),
    Fault("edge_wsgi_length_takes_a_slot", WSGI, "        if entry.plain:\n            decision", "        if True:\n            decision", (
        IN_WSGI + "a_larger_content_length_is_refused_before_a_slot",
    )),
    Fault("edge_wsgi_no_size_is_small", WSGI, "and _is_of_unknown_size(environ)", 'and not environ.get("CONTENT_LENGTH")', (
        IN_WSGI + "what_is_no_size_is_counted_while_it_is_read",
    )),
    Fault("edge_wsgi_one_byte_less", WSGI_INPUT, "if self._left >= 0:", "if self._left > 0:", (
        IN_WSGI + "a_body_that_fits_is_read_as_it_is", IN_WSGI + "what_is_no_size_is_counted_while_it_is_read",
    )),
    Fault("edge_wsgi_reads_it_all_first", WSGI_INPUT, "self._counted(self._stream.read(min(size, self._left + 1)))", "self._counted(self._stream.read(-1))", (
        IN_WSGI + "a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("edge_wsgi_lines_are_not_bounded", WSGI_INPUT, "self._stream.readline(most if", "self._stream.readline(-1 if", (
        IN_WSGI + "a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("edge_wsgi_told_once", WSGI_INPUT, "        self._left = -1  #", "        self._left = 10  #", (
        IN_WSGI + "callbacks_are_told_why_and_who_reads_on_is_told_again",
    )),
    Fault("edge_wsgi_the_application_answers", WSGI_RUN, "            context.reason is not None and context.reason is CancelReason.BODY_TOO_LARGE\n", "            False\n", (
        IN_WSGI + "a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("edge_wsgi_the_error_is_the_servers", WSGI_RUN, "            return not self.started\n", "            return False\n", (
        IN_WSGI + "a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("edge_wsgi_413_and_not_504", WSGI_BODY, "answer = stopped.get(reason or CancelReason.DEADLINE, stopped[CancelReason.DEADLINE])",
        "answer = stopped[CancelReason.DEADLINE]", (
        IN_WSGI + "a_body_that_turns_out_too_large_is_answered_413_whatever_the_application_makes_of_it",
    )),
    Fault("edge_wsgi_head_twice", WSGI_RUN, " if pair[0].lower() != name.lower()]", "]", (
        IN_WSGI + "the_head_tells_what_was_left_when_it_left",
    )),
    Fault("edge_too_large_is_sent_again", "resilient_mw/calls/classify.py", "TOO_LARGE if status == 413 else NOT_BEGUN", "NOT_BEGUN", (
        "tests/calls/test_classify.py::test_a_body_that_a_trusted_dependency_refused_for_its_size_is_not_sent_again",
    )),
    Fault("edge_rules_share_an_entry", "resilient_mw/admission/routing.py", "deadline, max_body, stream, needs, degradable))\n        entry", "deadline, None, stream, needs, degradable))\n        entry", (
        "tests/admission/test_routing.py::test_a_rule_may_take_larger_or_smaller_bodies_than_the_policy",
    )),
)  # fmt: skip
