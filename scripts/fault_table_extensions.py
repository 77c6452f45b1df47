"""Faults of the extensions for Flask and Quart."""

from __future__ import annotations

from fault_table import Fault

CONFIG = "integrations/resilient_mw_integrations/_app_config.py"
RULES = "integrations/resilient_mw_integrations/_werkzeug_rules.py"
FLASK = "tests/integrations/test_flask_extension.py::"
QUART = "tests/integrations/test_quart_extension.py::"
FLASK_PAGES = "integrations/resilient_mw_integrations/flask/pages.py"
WERKZEUG_PAGES = "integrations/resilient_mw_integrations/_werkzeug_pages.py"
QUART_PAGES = "integrations/resilient_mw_integrations/quart/pages.py"
QUART_ROUTES = "integrations/resilient_mw_integrations/quart/routes.py"

FAULTS = (
    Fault(
        "extension_forgets_the_configuration_beside_a_policy",
        CONFIG,
        "    if policy is not None and not values:\n",
        "    if policy is not None:\n",
        (f"{FLASK}test_the_configuration_changes_a_policy_that_was_given_without_touching_it",),
    ),
    Fault(
        "extension_lets_the_configuration_go_before_the_environment",
        CONFIG,
        "return load_policy(policy=made) if policy is None else made",
        "return made",
        (f"{FLASK}test_file_and_environment_go_before_it_and_keywords_before_all",),
    ),
    Fault(
        "extension_gives_each_application_a_limit_of_its_own",
        CONFIG,
        "            self._shared = self.policy_of(app)\n",
        "            pass\n",
        (f"{FLASK}test_one_object_protects_several_applications_under_one_limit",),
    ),
    Fault(
        "extension_protects_twice",
        CONFIG,
        "        if NAME in app.extensions:\n",
        "        if False:\n",
        (f"{FLASK}test_without_a_policy_each_application_has_a_limit_of_its_own",),
    ),
    Fault(
        "flask_page_reads_the_body",
        FLASK_PAGES,
        ', "wsgi.input": io.BytesIO(), "CONTENT_LENGTH": "0"}',
        "}",
        (f"{FLASK}test_a_handler_of_all_errors_draws_all_refusals_and_has_no_body_to_read",),
    ),
    Fault(
        "flask_page_without_a_handler",
        FLASK_PAGES,
        "            if isinstance(answer, HTTPException):\n                return None\n",
        "",
        (f"{FLASK}test_what_no_handler_draws_is_the_problem_document",),
    ),
    Fault(
        "flask_page_sets_cookies",
        WERKZEUG_PAGES,
        ' if name.lower() != "set-cookie"',
        "",
        (f"{FLASK}test_the_error_handlers_of_the_application_draw_its_refusals",),
    ),
    Fault(
        "quart_page_waits_for_a_body",
        QUART_PAGES,
        "        request.body.set_complete()\n",
        "",
        (f"{QUART}test_the_error_handlers_of_the_application_draw_its_refusals",),
    ),
    Fault(
        "quart_takes_a_websocket_for_a_request",
        QUART_ROUTES,
        "method.upper(), websocket=websocket)",
        "method.upper())",
        (f"{QUART}test_websockets_have_rules_of_their_own",),
    ),
    Fault(
        "quart_forgets_the_host",
        QUART_ROUTES,
        ' and self._app.config["SERVER_NAME"] is None:',
        ":",
        (f"{QUART}test_the_root_path_and_the_host_decide_as_in_quart",),
    ),
    Fault(
        "quart_strips_any_root",
        QUART_ROUTES,
        ' if path.startswith(root_path) else " "',
        "",
        (f"{QUART}test_the_root_path_and_the_host_decide_as_in_quart",),
    ),
    Fault(
        "rules_run_converters",
        RULES,
        '{"to_python": _as_it_is}',
        "{}",
        (f"{QUART}test_converters_of_the_application_are_not_run",),
    ),
)
