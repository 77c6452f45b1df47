"""The faults of retries: who makes them, what they cost, what they say and which work they belong to."""

from __future__ import annotations

from fault_table import Fault

BACKOFF = "resilient_mw/calls/backoff.py"
BUDGET = "resilient_mw/calls/budget.py"
CALL = "resilient_mw/calls/call.py"
CLASSIFY = "resilient_mw/calls/classify.py"
CONFIG = "resilient_mw/calls/config.py"
FIELDS = "resilient_mw/calls/fields.py"
KEY = "resilient_mw/calls/key.py"
RETRY = "resilient_mw/calls/retry.py"
CONTEXT = "resilient_mw/runtime/context.py"
FACTS = "resilient_mw/transport/facts.py"
PREPARE = "resilient_mw/transport/prepare.py"
OWNER = "resilient_mw/core/headers/retry_owner.py"
PUSHBACK = "resilient_mw/core/headers/no_retry.py"
WITHIN = "resilient_mw/runtime/within.py"
WSGI = "resilient_mw/wsgi/middleware.py"

RULES = ("tests/calls/test_retry_rules.py",)
WIRE = ("tests/integrations/test_httpx_ownership.py",)
REAL = ("tests/integrations/test_httpx_not_acted_upon.py",)
CHAIN = ("tests/closed_loop/test_amplification.py",)
READ = ("tests/core/test_retry_owner.py",)
KEYS = ("tests/calls/test_key.py",)

FAULTS = (
    Fault("decorrelated_by_nothing", BACKOFF, "3.0 * max(base, previous)", "3.0 * base", RULES),
    Fault("equal_is_full", BACKOFF, "uniform(longest / 2.0, longest)", "uniform(0.0, longest)", RULES),
    Fault("wait_is_forgotten", CALL, "self._reserved, self._waited = now + delay, delay",
        "self._reserved = now + delay", RULES),
    Fault("timeouts_are_cheap", CLASSIFY, "TIMEOUT_PRICE if failure.timed_out else PRICE", "PRICE", RULES),
    Fault("half_of_the_price_given_back", BUDGET, "min(place + price, len(self._retries))",
        "min(place + 1, len(self._retries))", (*RULES, "tests/calls/test_budget_machine.py")),
    Fault("dear_retries_in_the_last_place", BUDGET, "return retries + price <=", "return retries + 1 <=", (
        *RULES, "tests/calls/test_budget_machine.py",
    )),
    Fault("refused_stream_is_a_failure", CLASSIFY, "failure.ours or failure.refused or cut_short",
        "failure.ours or cut_short", (*RULES, *REAL)),
    Fault("refused_stream_may_have_acted", CLASSIFY, "not in UNSENT and not failure.refused", "not in UNSENT",
        (*RULES, *REAL)),
    Fault("any_reset_is_a_refusal", FACTS, 'getattr(event, "error_code", None) == REFUSED_STREAM', "True", (
        *WIRE, *REAL,
    )),
    Fault("goaway_may_have_acted", FACTS, 'getattr(event, "last_stream_id", None) == 0', "False", (*WIRE, *REAL)),
    Fault("declared_methods_are_repeated", CONFIG,
        " - {method.upper() for method in self.not_idempotent}", "", RULES),
    Fault("below_the_owner_it_retries", RETRY, "if tried.owned and not policy.insist:", "if False:", (
        *RULES, *CHAIN, *WIRE,
    )),
    Fault("insisting_is_not_heard", RETRY, "if tried.owned and not policy.insist:", "if tried.owned:", RULES),
    Fault("told_not_to_and_does", RETRY, "if tried.verdict.told_not_to:", "if False:", (*RULES, *WIRE)),
    Fault("rule_that_is_no_rule", CLASSIFY, "if not isinstance(answer, bool):", "if False:", WIRE),
    Fault("deadline_is_repeated", FACTS, "(*library.mistakes, ResilienceError)", "library.mistakes", WIRE),
    Fault("rule_frees_from_the_table", CLASSIFY,
        "return replace(verdict, passing=passing, told_not_to=head.told_not_to)",
        "return replace(verdict, passing=passing, acted=False, told_not_to=head.told_not_to)", RULES),
    Fault("strangers_are_told", FIELDS, "tells=trusted and ownership is not None", "tells=ownership is not None",
        WIRE),
    Fault("who_does_not_retry_says_so", FIELDS, '(owner, (*attempt, b"1")) if retries else ()',
        '(owner, (*attempt, b"1"))', WIRE),
    Fault("owner_is_replaced", FIELDS, "if above is not None:", "if False:", WIRE),
    Fault("attempts_are_not_counted", FIELDS, "if number == 1 or not self._retries:", "if True:", WIRE),
    Fault("caller_is_doubled", PREPARE, "fields.tells and fields.told_names.isdisjoint(names)", "fields.tells", WIRE),
    Fault("heard_under_the_first_names", CONTEXT, "if heard is None or heard[0] != fields:", "if heard is None:",
        WIRE),
    Fault("budget_hides_the_owner", WITHIN, "return self._outer.retry_owner(fields)", "return None", WIRE),
    Fault("wsgi_hears_nothing", WSGI, "guard, None, entry, environ)", "guard, None, entry, {})", WIRE),
    Fault("first_attempt_of_envoy_owns", OWNER, "if attempt >= 2:", "if attempt >= 1:", (*READ, *WIRE)),
    Fault("any_name_is_passed_on", OWNER, "name if known else UNKNOWN", "name", (*READ, *WIRE)),
    Fault("unreadable_pushback_is_none", PUSHBACK, "        return None\n", "        return 0.0\n", (*READ, *WIRE)),
    Fault("key_for_each_attempt_of_a_redirect", PREPARE, "        request.extensions[OWN_KEY] = key\n", "", WIRE),
    Fault("key_of_the_caller_is_ignored", PREPARE, "key = request.extensions.get(OWN_KEY)", "key = None", WIRE),
    Fault("key_for_every_method", PREPARE, "if not keyed and request.method in fields.key_methods:",
        "if not keyed and fields.key_methods:", ("tests/parity/test_short_wire.py::test_equal_calls_are_equal_on_the_wire",)),
    Fault("key_is_not_escaped", KEY, ".replace('\"', '\\\\\"')", "", (*KEYS, *WIRE)),
    Fault("version_7_without_time", KEY, "int(seconds * 1000) & _ONES_48", "0", KEYS),
)  # fmt: skip
