"""The faults of tenants, of costs that the head of a request decides, and of quotas."""

from __future__ import annotations

from fault_table import Fault

RULE = "resilient_mw/admission/head_rule.py"
ROUTING = "resilient_mw/admission/routing.py"
ENTRY = "resilient_mw/admission/entry.py"
ARRIVALS = "resilient_mw/runtime/arrivals.py"
PROTECTION = "resilient_mw/runtime/protection.py"
ASGI_EXCHANGE = "resilient_mw/asgi/exchange.py"
ASGI = "resilient_mw/asgi/middleware.py"
WSGI_RUN = "resilient_mw/wsgi/run.py"

HEAD = "tests/admission/test_head_rule.py::test_"
OVER_ASGI = "tests/asgi/test_tenants.py::test_"
OVER_WSGI = "tests/wsgi/test_tenants.py::test_"
BOTH = (
    OVER_ASGI + "slots_are_taken_and_given_back_in_the_name_of_the_tenant",
    OVER_WSGI + "slots_are_taken_and_given_back_in_the_name_of_the_tenant",
)

TENANT_FAULTS = (
    Fault("asgi_gives_back_for_nobody", ASGI_EXCHANGE, "COMPLETED, ran, self.tenant, now)", "COMPLETED, ran, None, now)", BOTH[:1]),
    Fault("asgi_gives_back_for_nobody_when_cut_off", ASGI_EXCHANGE,
        "reason.value, ran, self.tenant, now)", "reason.value, ran, None, now)",
        (OVER_ASGI + "slots_come_back_to_the_tenant_on_every_way_out[deadline]",
         OVER_ASGI + "slots_come_back_to_the_tenant_on_every_way_out[disconnect]")),
    Fault("asgi_loses_the_tenant_of_an_arrival", ASGI, "cost, deadline_at, outer, tenant)", "cost, deadline_at, outer)", BOTH[:1]),
    Fault("wsgi_gives_back_for_nobody", WSGI_RUN, "outcome, ran, context._tenant)", "outcome, ran)", BOTH[1:]),
    Fault("tenant_not_told_to_admission", ARRIVALS, "        return guard.arrive(entry, now, deadline_at, cost, tenant)", "        return guard.arrive(entry, now, deadline_at, cost)", BOTH),
    Fault("broken_tenant_function_is_an_error_of_the_guard", PROTECTION,
        'listeners.failed("tenant function", error)', "raise",
        (OVER_ASGI + "a_broken_function_lets_requests_pass_and_is_counted",)),
    Fault("broken_cost_function_is_an_error_of_the_guard", PROTECTION,
        'listeners.failed("cost function", error)', "raise",
        (OVER_ASGI + "a_broken_function_lets_requests_pass_and_is_counted",)),
    Fault("invalid_tenant_header_not_counted", PROTECTION, "if tenant == INVALID and", "if False and", (
        OVER_ASGI + "a_header_that_is_there_twice_names_nobody_and_is_counted", BOTH[1],
    )),
    Fault("first_of_two_tenant_headers_believed", RULE, 'if len(values) > 1 or "," in values[0]:', 'if "," in values[0]:', (
        OVER_ASGI + "a_header_that_is_there_twice_names_nobody_and_is_counted",
    )),
    Fault("joined_tenant_headers_believed", RULE, 'if len(values) > 1 or "," in values[0]:', "if len(values) > 1:", (BOTH[1],)),
    Fault("tenant_name_of_any_length", RULE, "len(name) <= LONGEST_NAME and", "", (
        OVER_ASGI + "a_header_of_a_megabyte_is_no_key",
    )),
    Fault("long_tenant_names_are_one", RULE, "blake2b(name.encode(", "blake2b(name[:99].encode(", (
        HEAD + "a_long_name_is_kept_as_its_digest[129]",
    )),
    Fault("tenant_name_of_any_characters", RULE, " and name.isprintable()", "", (
        HEAD + "a_name_that_cannot_be_printed_is_kept_as_its_digest",
    )),
    Fault("cost_of_nothing", RULE, "min(max(cost, 1), self.most)", "min(cost, self.most)", (
        HEAD + "a_cost_is_between_one_slot_and_all_of_its_class",
        OVER_WSGI + "a_request_takes_the_slots_that_its_head_is_worth[-1-1]",
    )),
    Fault("cost_that_never_fits", RULE, "min(max(cost, 1), self.most)", "max(cost, 1)", (
        OVER_ASGI + "a_request_takes_the_slots_that_its_head_is_worth[900000000-5]",
        OVER_WSGI + "a_request_takes_the_slots_that_its_head_is_worth[99-5]",
    )),
    Fault("cost_of_all_slots_of_the_service", ROUTING, "cost_of, policy.most_cost(priority))\n            # set", "cost_of, policy.slots)\n            # set", (
        HEAD + "a_cost_is_between_one_slot_and_all_of_its_class",
    )),
    Fault("exempt_requests_have_tenants", ROUTING, "if priority != EXEMPT and (cost_of", "if (cost_of", (
        OVER_ASGI + "exempt_requests_have_no_tenant",
    )),
    Fault("one_entry_for_all_functions", ROUTING, "(who, id(cost_of), policy", "(who, policy", (
        HEAD + "each_function_of_one_template_has_its_entry",
    )),
    Fault("head_not_asked", ENTRY, " and head_rule is None", "", BOTH),
    Fault("reload_keeps_the_tenants", ROUTING, "(who, id(cost_of), policy", "(id(cost_of), policy", (
        HEAD + "another_policy_finds_its_own_tenants_and_costs",
    )),
    Fault("surely_refused_whoever_it_is", "resilient_mw/admission/surely.py", " or route.head_rule is not None:", ":", (
        "tests/admission/test_surely_refused.py::test_not_where_more_than_the_path_decides",
    )),
    Fault("async_functions_taken", "resilient_mw/core/checks.py", "not callable(value) or flags & COROUTINE", "not callable(value)", (
        HEAD + "what_is_no_tenant_is_refused_when_the_policy_is_made", HEAD + "what_is_no_cost_is_refused_at_once",
    )),
)  # fmt: skip

CORE_QUOTAS = "resilient_mw/core/quotas.py"
DESK = "resilient_mw/runtime/quotas.py"
TENANCY = "resilient_mw/runtime/tenancy.py"
LIMITS = "integrations/resilient_mw_integrations/limits.py"
WSGI = "resilient_mw/wsgi/middleware.py"

VALUES = "tests/core/test_quotas.py::test_"
ASKED = "tests/runtime/test_quotas.py::test_"
QUOTA_ASGI = "tests/asgi/test_quotas.py::test_"
QUOTA_WSGI = "tests/wsgi/test_quotas.py::test_"
COUNTED = "tests/integrations/test_limits.py::test_"
OVER = "over_its_quota_a_tenant_gets_429_and_the_others_do_not"

QUOTA_FAULTS = (
    Fault("quota_after_the_slot", PROTECTION, "(asking if desk.remote else ask(self.guard, asking))",
        "(asking if desk.remote else (admit(self.guard, entry, now, deadline_at, cost, tenant), ask(self.guard, asking))[1])",
        (QUOTA_ASGI + "it_is_refused_before_a_slot_is_taken[MemoryQuotas]",)),
    Fault("quota_without_tenant", PROTECTION, "if tenant is not None and desk is not None and", "if desk is not None and", (
        QUOTA_ASGI + "over_its_quota_a_tenant_gets_429_and_the_others_do_not[MemoryQuotas]",
    )),
    Fault("quota_counts_what_has_no_time", PROTECTION, " and deadline_at - now > self.policy.smallest_budget:", ":", (
        QUOTA_ASGI + "what_has_no_time_or_is_too_large_counts_for_no_quota", QUOTA_WSGI + "what_has_no_time_counts_for_no_quota",
    )),
    Fault("quota_never_asked_over_asgi", ASGI, "decision = await ask_soon(self._guard, decision)",
        "decision = self._guard.arrive(decision.entry, 0.0, decision.deadline_at, decision.cost, decision.tenant)", (QUOTA_ASGI + OVER + "[remote]",)),
    Fault("quota_holds_up_the_loop", ASGI, "decision = await ask_soon(self._guard, decision)",
        "from resilient_mw.runtime.arrivals import ask\n            decision = ask(self._guard, decision)", (QUOTA_ASGI + "the_loop_goes_on_while_the_store_is_asked",)),
    Fault("quota_fields_lost_over_asgi", ASGI, "figures, decision.fields)", "figures)", (QUOTA_ASGI + OVER,)),
    Fault("quota_fields_lost_over_wsgi", WSGI, "figures, fields=decision.fields", "figures", (QUOTA_WSGI + OVER,)),
    Fault("quota_retry_after_of_the_queue", ARRIVALS, "retry_after=found.retry_after, ", "", (QUOTA_WSGI + OVER,)),
    Fault("quota_errors_of_ours_are_500", ARRIVALS,
        '    except Exception as error:  # noqa: BLE001  as above\n        guard.listeners.failed("quotas", error)\n',
        "    except ZeroDivisionError:\n        pass\n",
        (QUOTA_ASGI + "an_error_of_our_own_lets_the_request_pass",)),
    Fault("tenants_all_named", TENANCY, "counts.get(tenant, counts[OTHER])[place]", "counts.setdefault(tenant, [0, 0, 0])[place]", (
        QUOTA_ASGI + "b91_names_make_no_series",
    )),
    Fault("limited_is_refused", TENANCY, "2 if decision.reason is Reason.QUOTA_EXCEEDED else 1", "1", (
        QUOTA_ASGI + "only_tenants_that_are_named_are_told_apart",
    )),
    Fault("queued_is_admitted", ASGI, "            decision = granted\n        if arrival", "        if arrival", (
        QUOTA_ASGI + "one_that_waited_is_counted_once_when_its_wait_is_over",
    )),
    Fault("store_asked_for_ever", DESK, "async with asyncio.timeout(self._store.timeout):", "async with asyncio.timeout(None):", (
        QUOTA_ASGI + "a_store_that_does_not_answer_costs_its_timeout_and_no_more",
    )),
    Fault("store_asked_without_time", DESK, "if asking.deadline_at - now <= 2 * self._store.timeout:", "if False:", (
        ASKED + "a_request_without_time_does_not_ask",
    )),
    Fault("store_asked_while_away", DESK, "                    if now < self._again_at:\n                        return False\n", "", (
        ASKED + "while_the_store_is_away_the_policy_decides", ASKED + "a_store_that_is_away_is_tried_once_a_second_by_one_request",
    )),
    Fault("store_never_asked_again", DESK, "            self._away = False\n        return", "            pass\n        return", (
        ASKED + "a_store_that_is_away_is_tried_once_a_second_by_one_request",
    )),
    Fault("all_try_a_store_that_is_away", DESK, "                    self._again_at = now + PAUSE\n", "", (
        ASKED + "of_a_crowd_one_request_tries_a_store_that_is_away",
    )),
    Fault("away_not_counted", DESK, "            self._without += 1\n", "            pass\n", (
        ASKED + "while_the_store_is_away_the_policy_decides",
    )),
    Fault("closed_is_open", DESK, "        if self._closed:", "        if False:", (
        ASKED + "while_the_store_is_away_the_policy_decides",
    )),
    Fault("estimate_starts_when_the_store_is_away", DESK, "        estimate = self._estimate(asking)\n        if not self._may_ask(asking):\n"
        "            return self._without_store(estimate)\n        import",
        "        if not self._may_ask(asking):\n            return self._without_store(self._estimate(asking))\n"
        "        estimate = None\n        import",
        (ASKED + "the_estimate_knows_what_came_before[loop]",)),
    Fault("estimate_decides_always", DESK, "return self._answered(found)", "return self._answered(found or estimate)", (
        ASKED + "the_estimate_decides_only_while_the_store_is_away[thread]",
    )),
    Fault("places_at_the_store_without_bound", DESK, "return self._places.acquire(blocking=False)", "return True", (
        ASKED + "only_so_many_wait_for_the_store",
    )),
    Fault("places_at_the_store_lost", DESK, "as above\n            return self._failed(error, estimate)\n        finally:\n            self._places.release()\n",
        "as above\n            return self._failed(error, estimate)\n        finally:\n            pass\n",
        (ASKED + "only_so_many_wait_for_the_store",)),
    Fault("quotas_of_any_path", DESK, "(*self._everywhere, *self._index.candidates(path))", "self._order", (
        ASKED + "quotas_are_for_their_paths_and_count_costs_where_they_say_so",
    )),
    Fault("quotas_in_any_order", DESK, "return sorted((*self._everywhere, *self._index.candidates(path)), key=self._order.__getitem__)",
        "return [*self._index.candidates(path), *self._everywhere]",
        (ASKED + "quotas_are_for_their_paths_and_count_costs_where_they_say_so",)),
    Fault("first_refusal_does_not_end_it", DESK, "                        found = quota, state\n                        break\n",
        "                        found = quota, state\n", (ASKED + "the_first_quota_without_room_ends_it[loop]",)),
    Fault("cost_above_the_quota_never_passes", CORE_QUOTAS, "min(cost, self.amount) if self.by_cost", "cost if self.by_cost", (
        VALUES + "a_request_counts_as_one_or_as_its_slots_but_never_as_more_than_there_is",
    )),
    Fault("retry_after_before_the_reset", CORE_QUOTAS, "max(1, math.ceil(state.reset))", "max(1, int(state.reset))", (
        VALUES + "the_fields_are_those_of_the_draft",
    )),
    Fault("reset_at_the_end_of_the_window", CORE_QUOTAS,
        "        reset += max(0.0, window - (quota.amount - count + 1) * window / current)\n", "",
        (VALUES + "the_reset_is_the_first_instant_with_room",)),
    Fault("threads_pass_the_quota_together", LIMITS, "        with self._lock:  # the library looks, and then counts\n", "        if True:\n", (
        COUNTED + "threads_come_one_after_the_other",
    )),
    Fault("counters_kept_for_ever", LIMITS, "            self._tidy()\n", "", (
        COUNTED + "what_is_over_is_forgotten", COUNTED + "there_are_never_more_counters_than_allowed",
    )),
    Fault("counters_without_bound", LIMITS, "if len(self._ends) < self._most:", "if True:", (
        COUNTED + "there_are_never_more_counters_than_allowed",
    )),
    Fault("one_prefix_for_all", LIMITS, '"key_prefix": require_name("prefix", prefix),', '"key_prefix": require_name("prefix", prefix) and "x",', (
        COUNTED + "instances_and_stacks_count_together",
    )),
    Fault("one_client_for_all_loops", LIMITS, "storage = self._async.get(loop) or self._made(loop)",
        "storage = next(iter(self._async.values()), None) or self._made(loop)",
        (COUNTED + "each_event_loop_has_connections_of_its_own",)),
    Fault("reload_forgets_what_was_counted", TENANCY, "if installed and self._store is not None else", "if False else", (
        ASKED + "another_policy_goes_on_with_what_it_names_alike",
    )),
    Fault("reload_keeps_the_quotas", "resilient_mw/runtime/guard.py", "        self.tenancy.change(policy)  # first: it may find that nothing counts\n", "", (
        QUOTA_ASGI + "a_reload_changes_tenants_and_quotas",
    )),
    Fault("reload_starts_the_counts_anew", TENANCY, "                desk.goes_on_from(self.desk)\n", "                pass\n", (
        ASKED + "another_policy_goes_on_with_what_it_names_alike",
    )),
    Fault("child_waits_for_its_parents_lock", LIMITS, "        self._most = most\n        self.forked()\n        after_fork(self)\n",
        "        self._most = most\n        self.forked()\n", (COUNTED + "a_forked_child_counts_for_itself_and_connects_anew",)),
    Fault("quota_in_shadow_refuses", ARRIVALS, "passes = guard.would_refuse(QUOTAS, asking.entry, reason)", "guard.would_refuse(QUOTAS, asking.entry, reason)", (
        QUOTA_ASGI + "in_shadow_mode_who_is_over_his_quota_runs_and_is_counted", QUOTA_WSGI + "in_shadow_mode_who_is_over_his_quota_runs_and_is_counted",
    )),
    Fault("quota_in_shadow_limits", DESK, " and self._limits:", ":", (
        QUOTA_ASGI + "in_shadow_mode_who_is_over_his_quota_runs_and_is_counted",
    )),
    Fault("asked_first_loses_its_ticket", ASGI, "partial(shadow_exchange(self._shadow, arrival.entry), self._shadow, first)", "partial(shadow_exchange(self._shadow, arrival.entry), self._shadow, arrival.decision)", (
        QUOTA_ASGI + "in_shadow_mode_of_all_the_store_is_asked_before_the_model",
    )),
)  # fmt: skip
