"""Faults of the Django integration for `plant_faults.py`."""

from __future__ import annotations

from fault_table import Fault

FOLDER = "integrations/resilient_mw_integrations/django"
ROUTES = "tests/integrations/test_django_routes.py::test_"
HERE = "tests/integrations/test_django.py::test_"

FAULTS = (
    Fault("django_runs_converters", f"{FOLDER}/entries.py", "if type(each) not in BUILT_IN}", "if False}", (
        f"{ROUTES}converters_of_the_project_are_not_run",
    )),
    Fault("django_converters_of_a_subclass", f"{FOLDER}/entries.py", "type(pattern.converters[parameter[1]]) not in ONE_SEGMENT", "not pattern.converters[parameter[1]]", (
        f"{ROUTES}b83_each_request_gets_the_class_of_the_view_that_serves_it",
    )),
    Fault("django_index_of_an_optional_letter", f"{FOLDER}/entries.py", "        fixed = fixed[:-1]  # the last one may be missing\n", "        pass\n", (
        f"{ROUTES}the_views_are_those_of_django_for_many_paths",
    )),
    Fault("django_includes_for_ever", f"{FOLDER}/entries.py", "        elif any(each is entry.url_patterns for each in (*inside, resolver.url_patterns)):\n", "        elif len(inside) > 50:\n", (
        f"{ROUTES}a_urlconf_that_includes_itself_ends",
    )),
    Fault("django_language_of_the_last_request", f"{FOLDER}/routes.py", "translation.override(language or settings.LANGUAGE_CODE)", "translation.override(translation.get_language())", (
        f"{ROUTES}prefixes_of_languages_are_one_label",
    )),
    Fault("django_urlconf_read_once", f"{FOLDER}/routes.py", "        if get_resolver() is not self._root:\n            self._bind()\n        answer", "        answer", (
        f"{ROUTES}another_urlconf_of_the_settings_is_seen",
    )),
    Fault("django_forced_script_name", f"{FOLDER}/routes.py", "settings.FORCE_SCRIPT_NAME or scope", "scope", (
        f"{ROUTES}under_asgi_the_root_path_is_taken_off_as_django_does",
    )),
    Fault("django_hidden_function", f"{FOLDER}/views.py", "(function, *_hidden(function))", "(function,)", (
        f"{ROUTES}b82_marks_of_views_of_rest_framework",
    )),
    Fault("django_entries_do_not_count", f"{FOLDER}/routes.py", "(*owners_of(leaf.view), *leaf.entries)", "owners_of(leaf.view)", (
        f"{ROUTES}includes_mark_all_below_and_the_inner_one_goes_first",
    )),
    Fault("marks_of_requests_kept", "resilient_mw/core/marks.py", "    if len(_marked) & 0xFF == 0xFF:\n", "    if False:\n", (
        f"{ROUTES}marks_made_for_each_request_are_not_kept",
    )),
    Fault("django_two_policies", f"{FOLDER}/options.py", "    if made is not None and made[0] is given:\n        return made[1]\n", "    if made is not None:\n        return made[1]\n", (
        f"{HERE}the_setting_is_one_policy_for_as_long_as_it_is_the_same",
    )),
    Fault("django_slot_back_before_the_body", f"{FOLDER}/middleware.py", "            Closing(response, body.close)\n", "            body.close()\n", (
        f"{HERE}the_slot_is_held_until_the_response_is_closed",
    )),
    Fault("django_async_slot_back_before_the_body", f"{FOLDER}/middleware.py", "let_go = hold_until_closed(exchange, response)", "pass", (
        f"{HERE}async_the_slot_is_held_until_the_response_is_closed",
    )),
    Fault("django_stream_without_its_context", f"{FOLDER}/middleware.py", "            response.streaming_content = body  # has it closed with the response\n", "            Closing(response, body.close)\n", (
        f"{HERE}a_streamed_response_knows_its_request_and_ends_with_its_close",
    )),
    Fault("django_response_known_to_its_run", f"{FOLDER}/passing.py", "response, self.response = self.response, None  #", "response = self.response  #", (
        f"{HERE}a_response_that_nobody_closes_gives_its_slot_back_when_it_is_gone",
    )),
    Fault("django_forgotten_response", f"{FOLDER}/passing.py", "    Closing(response, let_go, let_go)\n", "    Closing(response, let_go)\n", (
        f"{HERE}async_the_slot_is_held_until_the_response_is_closed",
    )),
    Fault("django_of_5_0_is_not_asked_in_its_way", f"{FOLDER}/middleware.py", 'self.async_mode if hasattr(self, "async_mode") else asyncio.iscoroutinefunction(self)', "self.async_mode", (
        f"{HERE}a_chain_is_known_by_its_mark_where_django_says_nothing_else",
    )),
    Fault("django_joins_the_cookies_of_a_page", f"{FOLDER}/passing.py", 'if name.lower() == "set-cookie":', "if False:", (
        f"{HERE}the_cookies_of_a_page_stay_apart",
    )),
    Fault("django_answer_that_nobody_gets_keeps_its_slot", f"{FOLDER}/passing.py", "            self.let_go()  #", "            pass  #", (
        f"{HERE}async_an_answer_that_nobody_gets_holds_no_slot_however_long_it_lives",
    )),
    Fault("django_answer_that_cannot_be_sent_keeps_its_slot", f"{FOLDER}/middleware.py", "            passage.drop()\n", "            pass\n", (
        f"{HERE}async_an_answer_that_cannot_be_sent_holds_no_slot_however_long_it_lives",
    )),
    Fault("django_mails_refusals", f"{FOLDER}/passing.py", "    response._has_been_logged = True", "    response._seen = True", (
        f"{HERE}a_refusal_is_a_response_that_django_does_not_report_as_an_error",
    )),
    Fault("django_late_answer_kept_open", f"{FOLDER}/passing.py", '        for close in getattr(response, "_resource_closers", ()):\n            close()', '        for close in ():\n            close()', (
        f"{HERE}a_late_answer_is_dropped_with_all_that_it_holds",
    )),
    Fault("django_disconnect_is_an_error", f"{FOLDER}/middleware.py", "            _note_who_left(exchange)\n", "            pass\n", (
        f"{HERE}b25_async_who_is_cancelled_in_a_view_has_left",
    )),
    Fault("django_every_cancellation_is_a_disconnect", f"{FOLDER}/middleware.py", "task is not None and task.cancelling() > exchange.base", "True", (
        f"{HERE}async_a_cancellation_of_the_views_own_is_an_error",
    )),
    Fault("django_stream_without_end", f"{FOLDER}/middleware.py", "                within_deadline(response, exchange.remaining(), passage.let_go)\n", "                pass\n", (
        f"{HERE}async_a_stream_holds_the_slot_and_ends_at_its_deadline",
    )),
    Fault("django_failed_stream_keeps_its_slot", f"{FOLDER}/middleware.py", "exchange.remaining(), passage.let_go)", "exchange.remaining(), None)", (
        f"{HERE}async_a_stream_holds_the_slot_and_ends_at_its_deadline",
    )),
    Fault("django_smaller_budget_is_a_504", f"{FOLDER}/middleware.py", "        if over is None:\n            return None  # a smaller", "        if over is None:\n            over = CancelReason.DEADLINE  # a smaller", (
        f"{HERE}a_smaller_budget_inside_a_view_is_the_projects_affair",
    )),
    Fault("django_statement_after_the_end", f"{FOLDER}/database.py", "        request.check()\n        connection = ", "        connection = ", (
        f"{HERE}no_statement_is_sent_when_the_time_is_over_and_what_was_begun_is_rolled_back",
    )),
    Fault("django_no_way_back_to_a_savepoint", f"{FOLDER}/database.py", 'sql[:8].upper() == "ROLLBACK"', 'sql[:8].upper() == ""', (
        f"{HERE}no_statement_is_sent_when_the_time_is_over_and_what_was_begun_is_rolled_back",
    )),
    Fault("django_every_connection_obeys", f"{FOLDER}/database.py", "    if connection.alias in budgeted_aliases() and not any(", "    if not any(", (
        f"{HERE}a_connection_that_is_not_named_obeys_within_a_block",
    )),
)  # fmt: skip
