"""Faults of refusing in uvicorn's protocol, before a request has a task. See `fault_table.py`."""

from __future__ import annotations

from fault_table import GUARD, Fault

SURE = "resilient_mw/admission/surely.py"
FRONT = "integrations/resilient_mw_integrations/_early_refusals.py"
PROTOCOL = "integrations/resilient_mw_integrations/uvicorn.py"

SURELY = "tests/admission/test_surely_refused.py::test_"
SERVED = "tests/servers/test_uvicorn_protocol.py::test_"

UVICORN_FAULTS = (
    Fault("uvicorn_exempt_refused", SURE, "    if route.rank < 0 or route.head_rule is not None:", "    if route.head_rule is not None:", (
        SURELY + "everybody_but_the_exempt_while_draining",
    )),
    Fault("uvicorn_push_out_overlooked", SURE, "if not (full or sheds) or controller.make_room(state, None) is not None:", "if not (full or sheds):", (
        SURELY + "not_where_a_higher_class_would_push_somebody_out",
    )),
    Fault("uvicorn_waiters_about_to_go_overlooked", SURE, "(due is not None and due <= now) or ", "", (
        SURELY + "not_where_a_waiter_is_about_to_give_up",
    )),
    Fault("uvicorn_free_slot_overlooked", SURE, "    if not state.queue and controller.slots.fits(state, route.cost):\n        return None\n", "", (
        SERVED + "the_connection_goes_on_with_ordinary_requests",
    )),
    Fault("uvicorn_not_counted", SURE, "    route.arrived += 1\n    route.refuse(reason)\n", "    pass\n", (
        SERVED + "a_refusal_never_reaches_the_middleware_and_is_the_same",
    )),
    Fault("uvicorn_forgotten_slot_kept", GUARD, "        if self._later:\n            self.catch_up()\n        with self._lock:\n            refused", "        with self._lock:\n            refused", (
        SERVED + "a_forgotten_request_gives_its_slot_back",
    )),
    Fault("uvicorn_listeners_not_told", GUARD, "refused is not None and self.listeners", "refused is None and self.listeners", (
        SERVED + "listeners_hear_of_it_and_the_switch_turns_it_off",
    )),
    Fault("uvicorn_switch_overlooked", FRONT, " and not switch.DISABLED", "", (
        SERVED + "listeners_hear_of_it_and_the_switch_turns_it_off",
    )),
    Fault("uvicorn_any_layer_passes", FRONT, "            if room not in PASSING and not room.startswith(OWN_LAYERS):\n                break\n", "", (
        SERVED + "nothing_is_refused_in_front_of_an_unknown_layer",
    )),
    Fault("uvicorn_any_subclass_is_ours", FRONT, "isinstance(layer, ResilienceMiddleware) and deciding is ResilienceMiddleware.__call__", "isinstance(layer, ResilienceMiddleware)", (
        SERVED + "a_subclass_that_decides_for_itself_is_unknown",
    )),
    Fault("uvicorn_root_path_of_the_application", FRONT, "self._root_path = inside", "_ = inside", (
        SERVED + "a_root_path_of_the_server_and_of_the_application",
    )),
    Fault("uvicorn_origin_before_the_cors_layer", FRONT, "            if name == ORIGIN and self._passing_origins:\n                return True", "            if name == ORIGIN and self._passing_origins:\n                pass", (
        SERVED + "pages_get_their_headers_from_a_cors_layer_outside",
    )),
    Fault("uvicorn_too_late_is_full", FRONT, "if wish is not None and (wish < protection.policy.smallest_budget or wish == 0.0):", "if wish is not None and wish < 0.0:", (
        SERVED + "too_late_and_too_large_are_told_by_the_middleware",
    )),
    Fault("uvicorn_too_large_is_full", FRONT, "size > entry.max_body", "size < 0", (
        SERVED + "too_late_and_too_large_are_told_by_the_middleware",
    )),
    Fault("uvicorn_ignored_unseen", FRONT, "        if ignored:\n            guard.ignored(ignored)\n", "", (
        SERVED + "fields_that_were_ignored_are_counted_once",
    )),
    Fault("uvicorn_body_after_head", FRONT, 'if scope["method"] == "HEAD":', 'if scope["method"] == "head":', (
        SERVED + "a_head_request_gets_no_body",
    )),
    Fault("uvicorn_answer_out_of_turn", PROTOCOL, "            answering  #", "            False  #", (
        SERVED + "answers_keep_the_order_of_pipelined_requests",
    )),
    Fault("uvicorn_writes_without_bound", PROTOCOL, "            or self.flow.write_paused  #", "            or False  #", (
        SERVED + "who_does_not_read_fills_no_memory",
    )),
    Fault("uvicorn_100_unanswered", PROTOCOL, "            or self.expect_100_continue  #", "            or False  #", (
        SERVED + "who_expects_a_100_is_left_to_the_middleware",
    )),
    Fault("uvicorn_preflight_refused", PROTOCOL, '            or method == b"OPTIONS"  #', "            or False  #", (
        SERVED + "health_checks_and_preflights_pass_a_full_server",
    )),
    Fault("uvicorn_1_0_kept", PROTOCOL, '            or parser.get_http_version() != "1.1"\n', "", (
        SERVED + "a_connection_that_ends_is_left_to_the_middleware",
    )),
    Fault("uvicorn_close_overlooked", PROTOCOL, "            or not parser.should_keep_alive()\n", "", (
        SERVED + "a_connection_that_ends_is_left_to_the_middleware",
    )),
    Fault("uvicorn_next_one_after_the_close", PROTOCOL, "        if self.cycle is ANSWERED and self.transport.is_closing():\n            return", "        if self.cycle is ANSWERED and self.transport.is_closing():\n            pass", (
        SERVED + "draining_closes_the_connection",
    )),
    Fault("uvicorn_idle_for_ever", PROTOCOL, "        else:\n            self._rest()\n", "", (
        SERVED + "an_idle_connection_is_closed_after_a_refusal",
    )),
    Fault("uvicorn_closed_under_the_next_request", PROTOCOL, "self.scope is not self._rested or ", "", (
        SERVED + "a_request_after_a_refusal_has_its_time",
    )),
    Fault("uvicorn_escaped_path_overlooked", PROTOCOL, '(unquote(path) if "%" in path else path)', "path", (
        SERVED + "health_checks_and_preflights_pass_a_full_server",
    )),
    Fault("uvicorn_access_unlogged", PROTOCOL, "        if self.access_log:\n", "        if self.access_log is None:\n", (
        SERVED + "a_refusal_stands_in_the_access_log",
    )),
)  # fmt: skip
