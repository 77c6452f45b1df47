"""Faults of the command for operators of idempotency keys."""

from __future__ import annotations

from fault_table import Fault

COMMAND = "resilient_mw/cli/idempotency.py"
KEEPER = "resilient_mw/cli/idempotency_keeper.py"
SHOWN = "resilient_mw/cli/idempotency_shown.py"
WORDS = "resilient_mw/cli/words.py"
URLS = "resilient_mw/stores/urls.py"
ADVICE = "resilient_mw/cli/advice_keys.py"
REPORT = "resilient_mw/cli/explained_keys.py"
LOCATE = "resilient_mw/cli/locate.py"
TESTS = "tests/cli/test_idempotency.py::"
EXPLAIN = "tests/cli/test_keys.py::"

FAULTS = (
    Fault(
        "cli_keys_release_of_a_live_lease",
        COMMAND,
        "running=options.running)",
        "running=True)",
        (TESTS + "test_a_live_lease_is_released_only_by_name",),
    ),
    Fault(
        "cli_keys_purge_stops_early",
        COMMAND,
        "            if now < batch:\n                break\n",
        "            break\n",
        (TESTS + "test_a_purge_goes_on_until_nothing_is_left",),
    ),
    Fault(
        "cli_keys_page_loses_records",
        COMMAND,
        "                    return found, after\n",
        "                    return found, records[-1].record\n",
        (TESTS + "test_filters_look_at_all_records",),
    ),
    Fault(
        "cli_keys_answer_unasked",
        COMMAND,
        "record_as_text(record, answer=options.answer,",
        "record_as_text(record, answer=True,",
        (TESTS + "test_an_answer_is_shown_only_where_it_is_asked_for",),
    ),
    Fault(
        "cli_keys_answer_unasked_json",
        SHOWN,
        '    if answer:\n        told["headers"]',
        '    if True:\n        told["headers"]',
        (TESTS + "test_an_answer_is_shown_only_where_it_is_asked_for",),
    ),
    Fault(
        "cli_keys_terminal_commanded",
        WORDS,
        "each if each.isprintable() else",
        "each if each else",
        (TESTS + "test_what_strangers_wrote_does_nothing_to_the_terminal",),
    ),
    Fault(
        "cli_keys_first_of_several",
        KEEPER,
        "if len(found) > 1:",
        "if len(found) > 2:",
        (TESTS + "test_first_digits_of_several_records_name_none",),
    ),
    Fault(
        "cli_keys_any_record_for_digits",
        KEEPER,
        "each.record.startswith(text)",
        "each",
        (TESTS + "test_a_record_is_named_by_its_first_digits",),
    ),
    Fault(
        "cli_keys_memory_of_this_process",
        KEEPER,
        'if getattr(found, "shared", "process") == "process":',
        "if found is None:",
        (TESTS + "test_what_is_no_store",),
    ),
    Fault(
        "cli_keys_password_shown",
        URLS,
        'return _USER.sub("", url)',
        "return url",
        (
            "tests/stores/test_urls.py::test_a_password_is_not_shown",
            TESTS + "test_a_purge_that_is_cut_off_says_what_it_did",
        ),
    ),
    Fault(
        "cli_keys_file_made",
        URLS,
        "    if not path.is_file():\n",
        "    if not path:\n",
        (TESTS + "test_what_is_no_store",),
    ),
    Fault(
        "cli_keys_table_made",
        URLS,
        "    if known is None:\n",
        "    if known == 2:\n",
        (TESTS + "test_what_is_no_store[other.db-it is not the file of a store of idempotency keys]",),
    ),
    Fault(
        "explain_keys_of_any_process",
        ADVICE,
        "max(question.workers, question.machines) > 1:",
        "question.machines > 1:",
        (EXPLAIN + "test_each_warning",),
    ),
    Fault(
        "explain_keys_lease_without_harm",
        ADVICE,
        'row.lease < row.budget and row.on_unknown != "refuse":',
        "row.lease < row.budget:",
        (EXPLAIN + "test_each_warning",),
    ),
    Fault(
        "explain_keys_mark_forgotten",
        REPORT,
        "mark = None if route.mark is None else route.mark.idempotency",
        "mark = None",
        (EXPLAIN + "test_each_route_says_how_it_treats_keys",),
    ),
    Fault(
        "explain_keys_rule_by_default",
        REPORT,
        "source = RULE if treatment != below else DEFAULT",
        "source = DEFAULT",
        (EXPLAIN + "test_each_route_says_how_it_treats_keys",),
    ),
    Fault(
        "explain_keys_alone_unusable",
        LOCATE,
        "if not found and not idempotency_layers(app):",
        "if not found:",
        (EXPLAIN + "test_keys_without_admission_are_explained",),
    ),
    Fault(
        "explain_keys_always_around",
        LOCATE,
        "around = around and not isinstance(",
        "around = around or isinstance(",
        (EXPLAIN + "test_each_warning",),
    ),
)
