"""Faults of configuration by file and environment."""

from __future__ import annotations

from fault_table import Fault

PLAIN = "resilient_mw/admission/plain.py"
LOADING = "resilient_mw/runtime/configuration.py"
SOURCES = "tests/runtime/test_configuration.py::"
WRONG = "tests/admission/test_plain.py::"

FAULTS = (
    Fault(
        "configuration_takes_a_list_for_a_method",
        "resilient_mw/core/routes.py",
        "not isinstance(method, str) or not is_token(method)",
        "not isinstance(method, str) or not method",
        ("tests/core/test_routes.py::test_wrong_values_are_errors_that_name_the_field",),
    ),
    Fault(
        "configuration_takes_none_for_a_name",
        PLAIN,
        "None if parameters[name].default is None and _says_none(value) else value",
        "value",
        (WRONG + "test_none_stands_for_none_inside_of_tables_too",),
    ),
    Fault(
        "configuration_lets_the_file_go_before_the_environment",
        LOADING,
        "    given |= _from_environment(environ)\n",
        "    given = {**_from_environment(environ), **given}\n",
        (f"{SOURCES}test_the_environment_goes_before_the_file_and_the_file_before_what_the_code_proposes",),
    ),
    Fault(
        "configuration_keeps_quiet_about_a_knob_without_effect",
        LOADING,
        "(os.environ) if field in keywords or base not in _loaded]",
        "(os.environ) if field in keywords]",
        (f"{SOURCES}test_a_policy_that_the_code_makes_stands_and_the_variable_without_effect_is_named",),
    ),
    Fault(
        "configuration_overlooks_unknown_variables",
        LOADING,
        '            check_known(variable, known, "environment")\n',
        "            pass\n",
        (f"{SOURCES}test_a_variable_that_is_no_setting_is_an_error",),
    ),
    Fault(
        "configuration_takes_the_variables_of_services_for_its_own",
        LOADING,
        " and not NOT_OURS.search(variable.removeprefix(PREFIX))",
        "",
        (f"{SOURCES}test_what_an_orchestrator_adds_for_services_is_not_meant_for_us",),
    ),
    Fault(
        "configuration_reads_empty_variables",
        LOADING,
        'if environ.get(variable, "").strip():',
        "if variable in environ:",
        (f"{SOURCES}test_an_empty_variable_is_none_at_all",),
    ),
    Fault(
        "kill_switch_ends_with_a_test",
        "resilient_mw/runtime/switch.py",
        "    if first:\n        turn_off()\n",
        "    if first:\n        globals()['DISABLED'] = True\n",
        (f"{SOURCES}test_a_test_that_turns_the_middlewares_on_again_does_not_undo_the_kill_switch",),
    ),
    Fault(
        "configuration_takes_any_word_for_a_kill",
        LOADING,
        "    if disabled is None:\n",
        "    if False:\n",
        (f"{SOURCES}test_a_kill_switch_that_says_neither_is_an_error",),
    ),
    Fault(
        "configuration_hands_unknown_keys_of_tables_on",
        PLAIN,
        '        check_known(key, parameters, where, "key")\n',
        "        pass\n",
        (f"{WRONG}test_what_is_wrong_is_named_with_its_source",),
    ),
    Fault(
        "configuration_blames_every_source",
        PLAIN,
        'if re.search(rf"\\b{field}\\b", text)]',
        "]",
        (f"{WRONG}test_an_error_about_two_fields_names_both_sources",),
    ),
    Fault(
        "explain_takes_every_value_for_a_default",
        "resilient_mw/runtime/configuration.py",
        "_sources[policy] = {**_sources.get(base, {}), **sources}",
        "_sources[policy] = dict(sources)",
        (f"{SOURCES}test_a_keyword_of_the_middleware_stands_and_says_so",),
    ),
)
