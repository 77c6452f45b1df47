"""Faults of what `resilient-mw explain` says of dependencies."""

from __future__ import annotations

from fault_table import Fault

CALLS = "resilient_mw/cli/explained_calls.py"
ADVICE = "resilient_mw/cli/advice_calls.py"
SHOWN = "tests/cli/test_explain.py::test_every_policy_of_a_dependency_is_shown_with_what_it_means"

FAULTS = (
    Fault(
        "explain_forgets_the_wait_for_a_slot",
        CALLS,
        "        attempt += dependency.bulkhead.max_wait",
        "        attempt += 0.0",
        (SHOWN,),
    ),
    Fault(
        "explain_forgets_the_owner_of_retries",
        CALLS,
        "layered=worst if owned else worst**LAYERS",
        "layered=worst**LAYERS",
        (SHOWN,),
    ),
    Fault(
        "explain_forgets_those_who_insist",
        CALLS,
        " and not (retry is not None and retry.insist)",
        "",
        ("tests/cli/test_advice.py::test_each_warning_and_its_absence[retries_multiply-2]",),
    ),
    Fault(
        "explain_takes_all_processes_for_one",
        ADVICE,
        "question.rate / question.workers > least",
        "question.rate > least",
        ("tests/cli/test_advice.py::test_each_warning_and_its_absence[throttle_never-0]",),
    ),
    Fault(
        "explain_breaks_on_guarded_functions",
        "resilient_mw/cli/gather.py",
        "[rule.pattern for rule in owner.dependency.rules]",
        "owner.dependency.rules[0].pattern",
        ("tests/cli/test_explain.py::test_a_dependency_of_functions_alone_is_explained",),
    ),
)
