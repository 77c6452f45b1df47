"""Faults of fallbacks."""

from __future__ import annotations

from fault_table import Fault

PURE = "resilient_mw/calls/fallback.py"
SHELL = "resilient_mw/transport/fallback.py"
FUNCTIONS = "resilient_mw/runtime/fallbacks.py"
WIRE = "tests/integrations/test_httpx_fallbacks.py::"
KEPT = "tests/calls/test_fallback.py::"
GUARDED = "tests/runtime/test_guarded_fallbacks.py::"

FAULTS = (
    Fault(
        "fallback_private_kept",
        PURE,
        '"no-store", "private", "no-cache"',
        '"no-store", "no-cache"',
        (KEPT + "test_what_an_answer_says_about_being_kept",),
    ),
    Fault(
        "fallback_somebodys_answer_kept",
        PURE,
        "    if not public and any(name in asked for name in policy.credentials):\n        return None\n",
        "",
        (KEPT + "test_an_answer_to_somebody_is_kept_only_if_it_is_public",),
    ),
    Fault(
        "fallback_vary_ignored",
        PURE,
        "        if any(fields.get(name) != value for name, value in kept.varies):\n            return None\n",
        "",
        (KEPT + "test_vary_has_to_agree",),
    ),
    Fault(
        "fallback_never_too_old",
        PURE,
        "now > kept.at + self._policy.stale_for or now > kept.until",
        "now > kept.until",
        (KEPT + "test_the_age_limit_counts_from_where_the_answer_was_made",),
    ),
    Fault(
        "fallback_bytes_unbounded",
        PURE,
        "len(self._kept) > self._policy.entries or self.size > self._policy.max_bytes",
        "len(self._kept) > self._policy.entries",
        (KEPT + "test_many_small_answers_are_bounded_by_their_bytes",),
    ),
    Fault(
        "fallback_bytes_leak",
        PURE,
        "            self.size -= before.size\n",
        "            pass\n",
        (KEPT + "test_the_bounds_hold_whatever_is_kept",),
    ),
    Fault(
        "fallback_b50",
        SHELL,
        "    if replacement is None:\n        return response\n    response.close()\n",
        "    if replacement is None:\n        return response\n",
        (WIRE + "test_b50_what_is_replaced_is_closed_at_every_exit",),
    ),
    Fault(
        "fallback_b50_async",
        SHELL,
        "    if replacement is None:\n        return response\n    await close_uncancelled(response)\n",
        "    if replacement is None:\n        return response\n",
        (WIRE + "test_b50_what_is_replaced_is_closed_at_every_exit",),
    ),
    Fault(
        "fallback_for_writes",
        PURE,
        'READS = frozenset({"GET", "HEAD"})',
        'READS = frozenset({"GET", "HEAD", "POST"})',
        (WIRE + "test_nothing_stands_in_for_a_write", KEPT + "test_writes_are_never_kept"),
    ),
    Fault(
        "fallback_kept_after_a_write",
        SHELL,
        "            owner.keep((method, str(request.url)), None)\n",
        "            pass\n",
        (WIRE + "test_a_write_makes_what_was_kept_of_its_address_worthless",),
    ),
    Fault(
        "fallback_hides_mistakes",
        SHELL,
        "isinstance(error, (Closed, *self._library.mistakes))",
        "isinstance(error, Closed)",
        (WIRE + "test_a_mistake_of_the_caller_passes",),
    ),
    Fault(
        "fallback_outlives_the_budget",
        FUNCTIONS,
        "                async with Within(current(), left):\n",
        "                with Within(current(), left):\n",
        (GUARDED + "test_an_async_function_ends_with_the_budget",),
    ),
    Fault(
        "fallback_writes_kept",
        FUNCTIONS,
        "        if kept and self._owner.state.last_good is not None:\n",
        "        if self._owner.state.last_good is not None:\n",
        (GUARDED + "test_the_last_good_value_is_kept_by_arguments_and_only_where_the_function_reads",),
    ),
    Fault(
        "fallback_for_answers",
        "resilient_mw/runtime/guarded.py",
        "return self.answered or isinstance(error, RequestCancelled)",
        "return False",
        (GUARDED + "test_an_answer_and_a_cancellation_are_no_errors_to_stand_in_for",),
    ),
)
