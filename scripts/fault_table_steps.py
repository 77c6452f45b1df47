"""Faults of what is done in one step, or decided without a call, on the way of every request. See `fault_table.py`."""

from __future__ import annotations

from fault_table import CONTROLLER, FORECAST, GUARD, MACHINE, ROUTING, SLOTS, UNIT, Fault

MESSAGES = "resilient_mw/asgi/messages.py"
MIDDLEWARE = "resilient_mw/asgi/middleware.py"
EDGE = "resilient_mw/admission/edge.py"
SURE = "resilient_mw/admission/surely.py"
BROKEN_LOOK_UP = (
    "tests/asgi/test_middleware.py::test_a_broken_route_look_up_makes_the_request_an_unmatched_one"
)
ENDS = "tests/asgi/test_transparency.py::test_what_ends_a_response_is_known"
IN_ASGI = "tests/asgi/test_edge.py::test_"
IN_WSGI = "tests/wsgi/test_edge.py::test_"

STEP_FAULTS = (
    # -- slots
    Fault("stale_reservation_in_turn", SLOTS,
        "self.in_use += cost\n        state.slots += cost\n        if state.reserved:",
        "self.in_use += cost\n        state.slots += cost\n        if False:",
        (MACHINE,)),
    Fault("stale_reservation_given_back", SLOTS,
        "state.slots -= cost\n        if state.reserved:", "state.slots -= cost\n        if False:",
        (MACHINE,)),
    # -- the end of a run and of its slots, in one step
    Fault("end_keeps_the_slots", CONTROLLER,
        "        self.slots.in_use -= cost  # give_back() for a class without reserve, without a call\n        state.slots -= cost\n", "",
        (MACHINE,)),
    Fault("end_leaves_the_reserve_filled", CONTROLLER,
        "apart = state.tenants is not None or state.reserved or", "apart = state.tenants is not None or",
        (MACHINE,)),
    Fault("slots_given_back_twice_in_one_step", CONTROLLER,
        "or state.reserved or state.slots < cost\n", "or state.reserved\n",
        ("tests/admission/test_controller.py::test_slots_that_are_not_held_are_not_given_back_in_one_step",)),
    Fault("class_with_a_reserve_takes_without_filling_it", CONTROLLER,
        "if not state.reserved and state.tenants is None:", "if state.tenants is None:",
        (MACHINE,)),
    Fault("tenant_takes_uncounted", CONTROLLER,
        "if not state.reserved and state.tenants is None:", "if not state.reserved:",
        (MACHINE,)),
    Fault("what_others_reserve_is_taken_at_once", CONTROLLER,
        "if in_use <= slots.limit - slots.unfilled:", "if in_use <= slots.limit:",
        (MACHINE,)),
    Fault("end_wakes_nobody", CONTROLLER,
        "if apart or self.waiting or route.rank < 0:", "if apart or route.rank < 0:",
        (MACHINE,)),
    Fault("end_of_the_exempt_frees_a_slot", CONTROLLER,
        "if apart or self.waiting or route.rank < 0:", "if apart or self.waiting:",
        (MACHINE,)),
    Fault("end_forgets_the_tenant", CONTROLLER,
        "apart = state.tenants is not None or state.reserved", "apart = state.reserved",
        (MACHINE,)),
    Fault("cut_off_ends_teach", CONTROLLER,
        "if outcome is COMPLETED and 0 < len(runs)", "if 0 < len(runs)",
        (UNIT + "test_a_cut_off_run_does_not_make_a_route_look_fast",)),
    Fault("completed_ends_pile_up", CONTROLLER,
        "0 < len(runs) < ENOUGH_TO_LEARN", "0 < len(runs)",
        (UNIT + "test_completed_runs_are_learned_from_before_they_pile_up",)),
    Fault("completed_ends_are_not_learned_from", CONTROLLER,
        "0 < len(runs) < ENOUGH_TO_LEARN", "len(runs) < ENOUGH_TO_LEARN",
        (UNIT + "test_completed_runs_are_learned_from_before_they_pile_up",)),
    Fault("end_without_lock", GUARD,
        "self._lock.acquire()\n        try:\n            settled = self.controller.end(\n"
        "                self.clock.now() if now is None else now, entry, cost, outcome, ran, tenant\n            )\n"
        "        finally:\n            self._lock.release()\n",
        "settled = self.controller.end(\n            self.clock.now() if now is None else now, entry, cost, outcome, ran, tenant\n        )\n",
        ("tests/runtime/test_guard.py::test_what_every_request_comes_by_waits_for_the_lock",)),
    Fault("retry_after_of_the_past", FORECAST, "if now >= self._stale_at:", "if not self._stale_at:", (
        UNIT + "test_retry_after_grows_while_nothing_moves",
    )),
    # -- what is certain before anything else is known
    Fault("sure_refusal_of_a_class_that_is_not_shed", SURE, "if not (full or sheds) or", "if", (
        "tests/admission/test_surely_refused.py::test_not_while_there_is_a_slot_or_a_place",
    )),
    Fault("sure_refusal_forgets_the_shed", SURE, "if not (full or sheds) or", "if not full or", (
        "tests/admission/test_surely_refused.py::test_the_overloaded_lowest_class_has_but_its_own_places",
    )),
    # -- the ASGI shell
    Fault("asgi_b05_end_unseen", MIDDLEWARE, "            if exchange.left:\n", "            if False:\n", (
        "tests/asgi/test_exchange.py::test_an_application_that_ends_in_the_turn_of_the_disconnect_is_no_error",
    )),
    Fault("asgi_refusal_after_a_wait_reads", MIDDLEWARE,
        "        if decision.reason is not None:\n            figures",
        "        if decision.reason is not None:\n            await receive()\n            figures",
        ("tests/asgi/test_middleware.py::test_a_refusal_explains_itself",)),
    Fault("asgi_trailers_end_after_a_file", MESSAGES,
        'not message.get("more_body", False) and not trailers', 'not message.get("more_body", False)',
        (ENDS,)),
    Fault("asgi_trailers_end_after_a_path", MESSAGES, "        return not trailers\n", "        return True\n", (ENDS,)),
    Fault("asgi_debug_refused_at_once", MIDDLEWARE,
        "if decision.reason is not None and not self._debug:", "if decision.reason is not None:",
        ("tests/parity/test_refusals.py::test_debug_mode_says_how_it_stands",)),
    Fault("asgi_nothing_is_told", MIDDLEWARE, "if exchange.entry.plain and self._tells is None:", "if exchange.entry.plain:", (
        IN_ASGI + "the_head_tells_what_was_left_when_it_left",
    )),
    Fault("asgi_bodies_are_not_counted", MIDDLEWARE, "if exchange.entry.plain and self._tells is None:", "if self._tells is None:", (
        IN_ASGI + "bodies_are_counted_while_they_are_read_whatever_they_said",
    )),
    Fault("asgi_root_path_stays", MIDDLEWARE, "below_root(path, root_path) if root_path else path", "path", (
        "tests/asgi/test_transparency.py::test_b10_health_is_exempt_by_exact_path_only",
    )),
    # -- more of the head
    Fault("length_takes_a_slot_asgi", EDGE, "return size is not None and size > entry.max_body", "return False", (
        IN_ASGI + "a_larger_content_length_is_refused_before_a_slot_and_before_anything_is_read",
    )),
    Fault("length_takes_a_slot_wsgi", EDGE, "return size is not None and size > entry.max_body", "return False", (
        IN_WSGI + "a_larger_content_length_is_refused_before_a_slot",
    )),
    Fault("length_of_any_field", "resilient_mw/asgi/head.py", "if each == wanted]", "if each]", (
        IN_ASGI + "without_the_field_and_with_too_few_addresses_nobody_can_lengthen",
    )),
    Fault("no_field_is_read_wsgi", "resilient_mw/wsgi/head.py", "[] if value is None else [value]", "[]", (
        IN_WSGI + "a_larger_content_length_is_refused_before_a_slot",
    )),
    # -- what has gone wrong
    Fault("forgotten_slot_kept_by_the_next", GUARD,
        "        if self._later:\n            self.catch_up()\n        # Here", "        # Here",
        ("tests/runtime/test_forgotten.py::test_a_forgotten_waiter_is_taken_back_by_the_next_arrival",)),
    Fault("broken_look_up_is_raised", ROUTING, "            if self._failed is None:\n", "            if True:\n", (
        BROKEN_LOOK_UP,
    )),
    Fault("broken_look_up_is_not_counted", ROUTING, "            self._failed(error)\n", "", (BROKEN_LOOK_UP,)),
)  # fmt: skip
