"""The faults of tenants, of costs that the head of a request decides, and of quotas."""

from __future__ import annotations

from fault_table import Fault

RULE = "resilient_mw/admission/head_rule.py"
ROUTING = "resilient_mw/admission/routing.py"
ENTRY = "resilient_mw/admission/entry.py"
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
    Fault("asgi_gives_back_for_nobody", ASGI_EXCHANGE, "COMPLETED, ran, self.tenant)", "COMPLETED, ran, None)", BOTH[:1]),
    Fault("asgi_gives_back_for_nobody_when_cut_off", ASGI_EXCHANGE,
        "reason.value, ran, self.tenant)", "reason.value, ran, None)",
        (OVER_ASGI + "slots_come_back_to_the_tenant_on_every_way_out[deadline]",
         OVER_ASGI + "slots_come_back_to_the_tenant_on_every_way_out[disconnect]")),
    Fault("asgi_loses_the_tenant_of_an_arrival", ASGI, "cost, deadline_at, outer, tenant)", "cost, deadline_at, outer)", BOTH[:1]),
    Fault("wsgi_gives_back_for_nobody", WSGI_RUN, "outcome, ran, self._tenant)", "outcome, ran)", BOTH[1:]),
    Fault("tenant_not_told_to_admission", PROTECTION, "            return self.guard.arrive(entry, now, deadline_at, cost, tenant)", "            return self.guard.arrive(entry, now, deadline_at, cost)", BOTH),
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
