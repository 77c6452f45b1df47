"""The faults of the wait queue: the turns and shares of tenants, and the order in which a class is served."""

from __future__ import annotations

from fault_table import CONTROLLER, FORECAST, GUARD, QUEUE, SLOTS, Fault

TENANTS = "resilient_mw/admission/tenants.py"
STANDING = "resilient_mw/admission/standing.py"

TURNS = "tests/admission/test_tenants.py::test_"
ORDERS = "tests/admission/test_standing.py::test_"
MODEL = TURNS + "turns_agree_with_an_account_of_lists"
MACHINE = "tests/admission/test_controller_machine.py"
COSTS = TURNS + "a_verb_costs_the_same_with_ten_waiters_and_with_a_hundred_thousand[10-100000]"
GONE = TURNS + "of_tenants_that_are_gone_nothing_is_left"
PLAYED = "tests/closed_loop/test_tenants.py::test_"

QUEUE_FAULTS = (
    # -- the turns of tenants
    Fault("no_turns_of_tenants", CONTROLLER, "if tenant is not None and state.tenants is None:", "if False:", (
        TURNS + "tenants_take_turns_whoever_came_first",
        PLAYED + "a_tenant_within_its_share_is_served_as_if_the_flood_were_not_there[1.2-short]",
    )),
    Fault("turn_to_who_holds_most", TENANTS, "self._by_slots[min(self._by_slots)]", "self._by_slots[max(self._by_slots)]", (
        TURNS + "who_holds_all_the_slots_lets_the_others_go_first",
    )),
    Fault("turn_to_who_came_back_last", TENANTS,
        "tenant = next(iter(self._by_slots[", "tenant = next(reversed(self._by_slots[", (MODEL,)),
    Fault("running_slots_do_not_count", TENANTS, "        tenant.slots += by\n", "        tenant.slots += 0\n", (
        TURNS + "who_holds_all_the_slots_lets_the_others_go_first",
    )),
    Fault("tenants_of_requests_not_slots", CONTROLLER,
        "            if state.tenants is not None:\n                state.tenants.took(tenant, cost)\n            route.admitted += 1\n"
        "            return ADMITTED",
        "            if state.tenants is not None:\n                state.tenants.took(tenant, 1)\n            route.admitted += 1\n"
        "            return ADMITTED",
        (TURNS + "slots_count_not_requests",)),
    Fault("grant_not_counted_to_its_tenant", QUEUE, "self.tenants.took(waiter.tenant, waiter.cost)", "pass", (
        TURNS + "tenants_take_turns_whoever_came_first",
    )),
    Fault("passing_arrival_not_counted_to_its_tenant", CONTROLLER,
        "            if state.tenants is not None:\n                state.tenants.took(tenant, cost)\n            route.admitted += 1\n"
        "            return Decision(",
        "            route.admitted += 1\n            return Decision(",
        (MACHINE,)),
    Fault("slots_given_back_for_nobody", CONTROLLER, "state.tenants.gave_back(tenant, cost)", "state.tenants.gave_back(None, cost)", (
        TURNS + "tenants_take_turns_whoever_came_first",
    )),
    Fault("slots_given_back_under_any_name", TENANTS, "if tenant is None or tenant.slots < cost:", "if tenant is None:", (
        MODEL, TURNS + "slots_taken_under_one_name_cannot_be_given_back_under_another_that_waits",
    )),
    Fault("tenant_lost_on_the_way", GUARD, "deadline_at, tenant\n", "deadline_at, None\n", (
        "tests/runtime/test_guard.py::test_a_request_that_names_cost_and_tenant_is_counted_under_them",
    )),
    Fault("cost_lost_on_the_way", GUARD, "entry.cost if cost is None else cost", "entry.cost", (
        "tests/runtime/test_guard.py::test_a_request_that_names_cost_and_tenant_is_counted_under_them",
    )),
    Fault("idle_tenant_remembered", TENANTS, "if not tenant.slots and not tenant.waiting:", "if False:", (GONE,)),
    Fault("waiting_tenant_forgotten", TENANTS, "if not tenant.slots and not tenant.waiting:", "if not tenant.slots:", (MODEL,)),
    Fault("empty_group_kept", TENANTS, "    if not group:\n        del groups[number]", "    pass", (MODEL,)),
    Fault("first_tenant_finds_an_empty_account", QUEUE,
        "TenantTurns(self.queue, self.slots)", "TenantTurns(self.queue, 0)",
        (TURNS + "requests_from_before_the_first_tenant_keep_their_places",)),
    Fault("expensive_first_waiter_passed_by", SLOTS, "state.kept = state.first()", "state.kept = None", (
        TURNS + "an_expensive_first_waiter_stays_the_first_when_another_tenant_comes",
        ORDERS + "one_that_slots_are_saved_up_for_stays_the_first",
    )),
    Fault("bypassed_first_waiter_passed_by", SLOTS, "                    other.kept = first\n", "", (
        TURNS + "an_expensive_waiter_that_another_class_has_passed_stays_the_first",
    )),
    Fault("kept_waiter_that_is_gone", QUEUE, "            self.kept = None\n", "            pass\n", (
        TURNS + "an_expensive_first_waiter_stays_the_first_when_another_tenant_comes",
    )),
    # -- the share of the queue
    Fault("one_tenant_fills_the_queue", QUEUE,
        "if self.tenants is None or not self.tenants.may_displace(tenant):", "if True:",
        (TURNS + "a_tenant_with_fewer_places_takes_one_from_the_largest",)),
    Fault("equal_tenants_displace_each_other", TENANTS, "+ 1 < self._most", "< self._most", (
        TURNS + "of_an_odd_number_of_places_nobody_takes_the_last_from_the_other",
    )),
    Fault("oldest_of_the_largest_tenant_goes", TENANTS,
        "return next(iter(tenant.waiting)) if newest_first else next(reversed(tenant.waiting))",
        "return next(reversed(tenant.waiting)) if newest_first else next(iter(tenant.waiting))",
        (MODEL,)),
    Fault("bounded_class_not_shared", CONTROLLER,
        "if len(state.queue) >= state.most or self.sheds(state):\n            return state.displaced_by(tenant)",
        "if len(state.queue) >= state.most or self.sheds(state):\n            return None",
        (TURNS + "a_bounded_class_is_shared_too_while_the_queue_has_places",)),
    Fault("displaced_by_a_higher_class_it_seems", CONTROLLER,
        "Reason.TENANT_SHARE if own else Reason.PUSHED_OUT", "Reason.PUSHED_OUT",
        (TURNS + "a_tenant_with_fewer_places_takes_one_from_the_largest",)),
    Fault("shed_class_not_shared", CONTROLLER,
        "if self.sheds(state) and state.displaced_by(tenant) is None:", "if self.sheds(state):",
        (TURNS + "while_a_class_is_shed_its_own_places_are_shared",)),
    Fault("largest_share_never_shrinks", TENANTS, "            self._most -= 1\n", "            pass\n", (MODEL, GONE)),
    Fault("small_tenant_behind_the_backlog", QUEUE,
        "return min(self.queued_cost, self.tenants.ahead(tenant))", "return self.queued_cost",
        (TURNS + "the_wait_of_a_small_tenant_is_not_predicted_from_the_backlog_of_a_large_one",)),
    Fault("rivals_not_predicted", TENANTS,
        "            return rivals\n", "            return 0\n",
        (TURNS + "many_tenants_that_wait_with_one_request_each_are_a_backlog",)),
    Fault("turns_by_looking_at_everybody", TENANTS,
        "        tenant = next(iter(self._by_slots[min(self._by_slots)]))\n",
        "        tenant = min((each for each in self._tenants.values() if each.waiting), key=lambda each: each.slots)\n",
        (COSTS,)),
    # -- the order
    Fault("order_never_turns", STANDING, "self.standing = now - self._since >= INTERVAL", "self.standing = False", (
        ORDERS + "the_newest_are_served_first_while_the_queue_stands_and_the_oldest_before_and_after",
        "tests/closed_loop/test_queue_order.py::test_a_queue_longer_than_callers_wait_keeps_its_goodput_with_the_newest_first_only[1.2]",
    )),
    Fault("order_turns_at_once", STANDING, "self.standing = now - self._since >= INTERVAL", "self.standing = True", (
        ORDERS + "a_queue_stands_when_waits_stay_above_twice_the_run_time_for_100_ms",
    )),
    Fault("order_never_turns_back", STANDING,
        "            self.standing = False\n            self._since = math.inf\n        else:",
        "            self._since = math.inf\n        else:",
        (ORDERS + "one_short_wait_ends_it",)),
    Fault("standstill_not_seen", STANDING, "max(self._looked_at, oldest_arrived_at + target)", "now", (
        ORDERS + "after_a_standstill_the_oldest_has_been_waiting_all_the_time",
    )),
    Fault("standing_without_regard_to_runs", STANDING, "max(LEAST_TARGET, RUNS * typical_run)", "LEAST_TARGET", (
        ORDERS + "a_queue_stands_when_waits_stay_above_twice_the_run_time_for_100_ms",
    )),
    Fault("empty_queue_stands", QUEUE, "            self.standing.gone()\n", "            pass\n", (
        ORDERS + "an_empty_queue_stands_no_more",
    )),
    Fault("newest_first_unasked", QUEUE,
        "StandingQueue() if priority.queue_order == NEWEST_FIRST else None", "StandingQueue()",
        (ORDERS + "the_order_of_arrival_is_kept_where_nothing_else_is_said",)),
    Fault("newest_goes_where_the_newest_is_next", QUEUE,
        "        return next(iter(self.queue)) if self.newest_first else next(reversed(self.queue))\n",
        "        return next(reversed(self.queue))\n",
        (ORDERS + "with_the_newest_first_a_higher_class_pushes_out_the_oldest",)),
    Fault("newest_predicted_as_the_last", QUEUE, "        if self.newest_first:\n            return 0\n", "", (
        ORDERS + "a_newcomer_who_will_be_served_next_is_not_refused_for_the_backlog",
    )),
    Fault("everybody_elses_backlog_is_ahead", FORECAST, "everybody -= state.queued_cost - ahead", "pass", (
        TURNS + "the_wait_of_a_small_tenant_of_two_classes_is_not_predicted_from_their_backlog",
    )),
)  # fmt: skip
