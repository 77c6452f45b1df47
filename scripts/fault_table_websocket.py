"""Faults of websockets for `plant_faults.py`: places, shares, refusals, and peers who leave unseen."""

from __future__ import annotations

from fault_table import Fault

CONNECTIONS = "resilient_mw/admission/connections.py"
ROUTING = "resilient_mw/admission/routing.py"
OWNER = "resilient_mw/runtime/websockets.py"
PROTECTION = "resilient_mw/runtime/protection.py"
SHELL = "resilient_mw/asgi/websocket.py"
CONNECTION = "resilient_mw/asgi/connection.py"
IN_SHELL = "tests/asgi/test_websocket.py::test_"
IN_DECISIONS = "tests/admission/test_connections.py::test_"
IN_MARKS = "tests/integrations/test_websocket_marks.py::test_"

WEBSOCKET_FAULTS = (
    Fault("websocket_no_limit", CONNECTIONS, "elif not self.slots.try_take(self.slots.classes[entry.rank], 1):", "elif self.slots.try_take(self.slots.classes[entry.rank], 1) is None:", (
        IN_SHELL + "over_the_limit_the_handshake_gets_the_refusal_of_a_request",
        IN_DECISIONS + "places_are_conserved",
    )),
    Fault("websocket_no_exempt_bound", CONNECTIONS, "if self.exempt >= self.exempt_limit:", "if self.exempt > self.exempt_limit:", (
        IN_SHELL + "exempt_websockets_take_no_place_and_have_their_own_bound",
    )),
    Fault("websocket_shares_as_they_are", CONNECTIONS, "each.reserved * limit // slots", "min(each.reserved, limit - 1)", (
        IN_DECISIONS + "a_share_is_no_larger_than_of_the_slots_and_every_class_can_have_one",
    )),
    Fault("websocket_drain_opens_on", CONNECTIONS, "        elif draining:\n            reason = Reason.DRAINING\n", "", (
        IN_SHELL + "a_server_that_drains_opens_none_and_leaves_the_open_ones_alone",
    )),
    Fault("websocket_nothing_is_shed", CONNECTIONS, "elif overloaded and entry.rank == self._lowest:", "elif overloaded and entry.rank == -2:", (
        IN_SHELL + "while_overloaded_the_lowest_class_opens_none",
    )),
    Fault("websocket_the_only_class_is_shed", CONNECTIONS, " if len(policy.classes) > 1 else None", "", (
        IN_DECISIONS + "the_only_class_is_not_the_lowest",
    )),
    Fault("websocket_exempt_given_back_twice", CONNECTIONS, "        elif self.exempt:\n", "        elif self.exempt >= 0:\n", (
        IN_DECISIONS + "nothing_is_given_back_twice",
    )),
    Fault("websocket_retry_after_of_the_last_gap_only", CONNECTIONS, "max(self._gap, now - self._ended_at)", "self._gap", (
        IN_DECISIONS + "who_is_refused_comes_back_when_a_place_usually_comes_free",
    )),
    Fault("websocket_exempt_paths_are_not", ROUTING, "self._exempt.get(path) or self.entry(path, WEBSOCKET_METHOD, scope)", "self.entry(path, WEBSOCKET_METHOD, scope)", (
        IN_SHELL + "exempt_websockets_take_no_place_and_have_their_own_bound",
    )),
    Fault("websocket_is_a_get", ROUTING, 'WEBSOCKET_METHOD = "WEBSOCKET"', 'WEBSOCKET_METHOD = "GET"', (
        IN_MARKS + "marks_and_rules_decide_the_class",
    )),
    Fault("websocket_marks_are_unknown", PROTECTION, "                    self._sockets.bind(resolver)\n", "                    pass\n", (
        IN_MARKS + "marks_and_rules_decide_the_class",
    )),
    Fault("websocket_counted_as_requests", PROTECTION, "RouteTable(self.policy, websockets.connections.entries, failed)", "RouteTable(self.policy, self.guard.entries, failed)", (
        IN_SHELL + "an_open_websocket_is_in_no_figure_of_requests",
    )),
    Fault("websocket_never_looks", OWNER, "if now >= self.overload.look_at:", "if now < -1.0:", (
        IN_SHELL + "a_service_of_websockets_alone_looks_at_its_overload",
    )),
    Fault("websocket_forgotten_for_ever", OWNER, "        self._catch_up()\n        if now", "        if now", (
        IN_SHELL + "a_forgotten_connection_makes_room_for_the_next",
    )),
    Fault("websocket_nobody_hears", OWNER, "if decision.reason is not None and self._listeners and", "if decision.reason is None and self._listeners and", (
        IN_SHELL + "listeners_hear_of_a_refused_websocket",
    )),
    Fault("websocket_denial_to_everybody", SHELL, 'if DENIAL in (scope.get("extensions") or {}):', "if DENIAL:", (
        IN_SHELL + "a_server_without_denial_responses_gets_a_close_before_the_accept",
    )),
    Fault("websocket_wrong_code", SHELL, "TRY_AGAIN_LATER = 1013", "TRY_AGAIN_LATER = 1008", (
        IN_SHELL + "a_server_without_denial_responses_gets_a_close_before_the_accept",
    )),
    Fault("websocket_http_messages", SHELL, "\"type\": f\"websocket.{message['type']}\"", "\"type\": message['type']", (
        IN_SHELL + "over_the_limit_the_handshake_gets_the_refusal_of_a_request",
    )),
    Fault("websocket_answers_before_the_connect", SHELL, 'if decision.reason is None or (await receive())["type"] != "websocket.connect":', "if decision.reason is None:", (
        IN_SHELL + "a_refusal_comes_after_the_connect_and_nobody_answers_who_has_gone",
    )),
    Fault("websocket_close_to_nobody_raises", SHELL, "    except OSError:\n        pass\n", "    except LookupError:\n        pass\n", (
        IN_SHELL + "a_refusal_comes_after_the_connect_and_nobody_answers_who_has_gone",
    )),
    Fault("websocket_guarded_twice", SHELL, "if isinstance(outer, Connection) and outer.placed_by(websockets):", "if outer is None:", (
        IN_SHELL + "a_websocket_that_passes_two_middlewares_of_one_policy_has_one_place",
    )),
    Fault("websocket_guarded_by_the_nearest_only", CONNECTION, "isinstance(self._outer, Connection) and self._outer.placed_by(websockets)", "False", (
        IN_SHELL + "a_websocket_that_passes_two_middlewares_of_one_policy_has_one_place",
    )),
    Fault("websocket_leaked_context", SHELL, "        outer = NO_REQUEST  # it leaked", "        pass  # it leaked", (
        IN_SHELL + "a_context_that_leaked_from_another_websocket_is_none_of_its",
    )),
    Fault("websocket_lock_in_the_collector", SHELL, "give_back, failed = websockets.end_later, True", "failed = True", (
        IN_SHELL + "a_forgotten_connection_gives_its_place_back_without_the_lock",
    )),
    Fault("websocket_foreign_error_is_swallowed", SHELL, "if gone.connection is not connection:", "if gone.connection is None:", (
        IN_SHELL + "the_error_of_somebody_elses_connection_is_the_applications",
    )),
    Fault("websocket_context_of_a_request", SHELL, "    token = CURRENT.set(context)\n", "    token = CURRENT.set(CURRENT.get())\n", (
        IN_SHELL + "where_nothing_is_guarded_websockets_pass_untouched",
    )),
    Fault("websocket_ends_while_it_is_held", CONNECTION, "        if self.held:\n            self._release = release\n", "        if self.done is None:\n            self._release = release\n", (
        IN_SHELL + "a_held_future_keeps_the_place",
        IN_SHELL + "what_a_callback_returns_holds_the_place_until_it_is_done",
    )),
    Fault("websocket_held_for_ever", CONNECTION, "            self._release = release\n", "            pass\n", (
        IN_SHELL + "a_held_future_keeps_the_place",
    )),
    Fault("websocket_reader_outlives", CONNECTION, "                self._reader.cancel()\n", "                pass\n", (
        IN_SHELL + "every_place_comes_back_once_wherever_it_is_cancelled",
        IN_SHELL + "who_closes_himself_is_not_cancelled",
        IN_SHELL + "a_thread_of_the_handler_may_ask_whether_the_peer_is_there",
        IN_SHELL + "the_server_is_called_in_the_context_of_those_around_us",
    )),
    Fault("websocket_who_only_sends_is_not_watched", CONNECTION, "self._clock.now() - self._heard_at >= WATCH_AFTER:", "self._heard_at < 0.0:", (
        IN_SHELL + "who_only_sends_ends_when_the_peer_has_gone",
    )),
    Fault("websocket_sends_to_nobody", CONNECTION, "                raise PeerGone(self)\n", "                return\n", (
        IN_SHELL + "who_sends_only_catches_an_ordinary_error",
    )),
    Fault("websocket_raises_although_told", CONNECTION, "            self._untold = False\n", "            pass\n", (
        IN_SHELL + "who_sends_only_catches_an_ordinary_error",
    )),
    Fault("websocket_callbacks_do_not_watch", CONNECTION, "        super().on_cancel(callback)\n        self._want_to_know()\n", "        super().on_cancel(callback)\n", (
        IN_SHELL + "on_cancel_runs_when_the_peer_leaves_and_nobody_is_cancelled",
    )),
    Fault("websocket_questions_do_not_watch", CONNECTION, "        self._want_to_know()\n        return self.reason\n", "        return self.reason\n", (
        IN_SHELL + "a_thread_of_the_handler_may_ask_whether_the_peer_is_there",
    )),
    Fault("websocket_own_close_is_a_disconnect", CONNECTION, "            self.complete = True  #", "            self.complete = False  #", (
        IN_SHELL + "who_closes_himself_is_not_cancelled",
    )),
    Fault("websocket_reads_without_end", CONNECTION, "while self._bytes < MOST_BYTES and len(self._kept) < MOST_MESSAGES:", "while True:", (
        IN_SHELL + "what_is_read_ahead_keeps_its_order_and_has_a_bound",
    )),
    Fault("websocket_newest_first", CONNECTION, "self._kept.popleft()", "self._kept.pop()", (
        IN_SHELL + "what_is_read_ahead_keeps_its_order_and_has_a_bound",
    )),
    Fault("websocket_error_of_the_server_is_lost", CONNECTION, "            self._error = error\n", "            pass\n", (
        IN_SHELL + "an_error_of_the_server_while_we_listen_goes_to_the_application",
    )),
    Fault("websocket_read_in_the_wrong_context", CONNECTION, "create_task(self._read(), context=self._context)", "create_task(self._read())", (
        IN_SHELL + "the_server_is_called_in_the_context_of_those_around_us",
    )),
    Fault("websocket_shutdown_is_a_disconnect", CONNECTION, 'message.get("code") == SERVICE_RESTART', "message is None", (
        IN_SHELL + "a_server_that_stops_is_told_from_a_peer_who_leaves",
    )),
)  # fmt: skip
