"""Faults of what a refusal says, to whom, and of preflights. See `fault_table.py`."""

from __future__ import annotations

from fault_table import GUARD, ROUTING, Fault

ACCEPT = "resilient_mw/core/headers/accept.py"
ANSWER = "resilient_mw/core/answer.py"
ASGI = "resilient_mw/asgi/middleware.py"
ASGI_REFUSAL = "resilient_mw/asgi/refusal.py"
CORRELATION = "resilient_mw/core/headers/correlation.py"
CORS = "resilient_mw/core/cors.py"
FIGURES = "resilient_mw/admission/figures.py"
PROTECTION = "resilient_mw/runtime/protection.py"
STARLETTE = "integrations/resilient_mw_integrations/starlette/__init__.py"
WSGI = "resilient_mw/wsgi/middleware.py"
WSGI_ANSWERS = "resilient_mw/wsgi/answers.py"
WSGI_BODY = "resilient_mw/wsgi/body.py"

NEGOTIATING = "tests/core/headers/test_accept.py::"
ANSWERING = "tests/core/test_answer.py::"
SAME_WORDS = "tests/parity/test_refusals.py::"
ORDER = "tests/integrations/test_cors_order.py::"

REFUSAL_FAULTS = (
    Fault(
        "refusal_text_on_a_tie",
        ACCEPT,
        "_best(ranges, _TEXT) > _best",
        "_best(ranges, _TEXT) >= _best",
        (NEGOTIATING + "test_who_gets_plain_text",),
    ),
    Fault(
        "refusal_accept_best_instead_of_most_exact",
        ACCEPT,
        "max((exactness, quality), (fits, each))",
        "(0, max(quality, each))",
        (NEGOTIATING + "test_what_is_written_by_the_grammar_is_read_as_it_was_meant",),
    ),
    Fault(
        "refusal_accept_quality_at_any_length",
        ACCEPT,
        'r"0(?:\\.[0-9]{0,3})?|1(?:\\.0{0,3})?"',
        'r"[0-9](?:\\.[0-9]*)?"',
        (NEGOTIATING + "test_who_gets_plain_text",),
    ),
    Fault(
        "refusal_accept_rest_unread",
        ACCEPT,
        '        if at < end and value[at] != ",":\n            return None\n',
        "",
        (NEGOTIATING + "test_who_gets_plain_text",),
    ),
    Fault(
        "refusal_accept_unbounded",
        ACCEPT,
        "len(value) <= _LONGEST and ",
        "",
        (NEGOTIATING + "test_the_longest_field_that_counts",),
    ),
    Fault(
        "refusal_accept_parameters_overlooked",
        ACCEPT,
        "0 if asks_more else offer",
        "offer",
        (NEGOTIATING + "test_who_gets_plain_text",),
    ),
    Fault(
        "refusal_trace_of_zeros",
        CORRELATION,
        "(?!0{32})",
        "",
        (NEGOTIATING + "test_what_is_no_traceparent_has_no_trace_id",),
    ),
    Fault(
        "refusal_trace_version_00_says_more",
        CORRELATION,
        'found is None or (found[1] == "00" and found[3] is not None)',
        "found is None",
        (NEGOTIATING + "test_what_is_no_traceparent_has_no_trace_id",),
    ),
    Fault(
        "refusal_request_id_unbounded",
        CORRELATION,
        "{1,128}",
        "+",
        (NEGOTIATING + "test_the_longest_request_id",),
    ),
    Fault(
        "refusal_request_id_with_a_line_end",
        CORRELATION,
        "_REQUEST_ID.fullmatch(text)",
        "_REQUEST_ID.match(text)",
        (NEGOTIATING + "test_a_request_id_is_visible_ascii_of_bounded_length_or_none",),
    ),
    Fault(
        "refusal_cors_echoes_any_origin",
        ANSWER,
        "self._by_origin.get(asked[ORIGIN], ())",
        'next(iter(self._by_origin.values()), [])[1:] + [self._line("Access-Control-Allow-Origin", asked[ORIGIN])]',
        (SAME_WORDS + "test_b08_a_page_of_a_named_origin_may_read_a_refusal",),
    ),
    Fault(
        "refusal_cors_without_vary",
        CORS,
        '            self.vary = "Accept, Origin"\n',
        "",
        (SAME_WORDS + "test_b08_a_page_of_a_named_origin_may_read_a_refusal",),
    ),
    Fault(
        "refusal_cors_exposes_nothing",
        CORS,
        "*allowed, EXPOSED)",
        "*allowed)",
        (SAME_WORDS + "test_b08_a_page_of_a_named_origin_may_read_a_refusal",),
    ),
    Fault(
        "refusal_cors_credentials_for_everybody",
        CORS,
        '        if credentials:\n            raise ValueError(\n                "cors_credentials=True is not allowed with',
        '        if not credentials and credentials:\n            raise ValueError(\n                "cors_credentials=True is not allowed with',
        ("tests/core/test_cors.py::test_everybody_is_named_always_and_never_with_credentials",),
    ),
    Fault(
        "refusal_cors_credentials_unasked",
        CORS,
        "if credentials else ()",
        "",
        (SAME_WORDS + "test_b08_a_page_of_a_named_origin_may_read_a_refusal",),
    ),
    Fault(
        "refusal_length_of_the_prepared_body",
        ANSWER,
        '            headers[LENGTH] = self._line("Content-Length", str(len(body)))\n',
        "            pass\n",
        (SAME_WORDS + "test_a_problem_document_is_the_usual_answer",),
    ),
    Fault(
        "refusal_prepared_for_nothing",
        ANSWER,
        "            if members:\n",
        "            if True:\n",
        (ANSWERING + "test_what_stands_in_every_such_answer_is_not_formatted_again",),
    ),
    Fault(
        "refusal_shared_usual_headers",
        ANSWER,
        "return self._headers.copy(), self._body",
        "return self._headers, self._body",
        (ANSWERING + "test_the_usual_answer_is_prepared_and_its_headers_are_the_callers_own",),
    ),
    Fault(
        "refusal_instance_unescaped",
        "resilient_mw/core/problem.py",
        """{_as_json(value)}' for""",
        """"{value}"' for""",
        (SAME_WORDS + "test_a_problem_document_is_the_usual_answer",),
    ),
    Fault(
        "refusal_shared_text_headers",
        ANSWER,
        "self._text_headers.copy(), self._text_body",
        "self._text_headers, self._text_body",
        (ANSWERING + "test_a_header_that_an_outer_layer_adds_stays_in_no_other_answer",),
    ),
    Fault(
        "refusal_last_of_equal_fields",
        ANSWER,
        'f"{asked[name]},{value}" if name in asked else value',
        "value",
        (SAME_WORDS + "test_two_origins_are_none",),
    ),
    Fault(
        "refusal_debug_always",
        GUARD,
        "        if not self.policy.debug:\n            return None\n",
        "",
        (SAME_WORDS + "test_a_problem_document_is_the_usual_answer",),
    ),
    Fault(
        "refusal_debug_budget_below_zero",
        FIGURES,
        "max(0.0, remaining)",
        "remaining - 0.001",
        (SAME_WORDS + "test_a_deadline_that_passes_at_work_is_answered_the_same_way",),
    ),
    Fault(
        "refusal_debug_slots_of_exempt",
        FIGURES,
        "exempt = entry.rank < 0",
        "exempt = False",
        (SAME_WORDS + "test_preflights_have_the_bound_of_exempt_requests",),
    ),
    Fault(
        "refusal_debug_asgi",
        ASGI_REFUSAL,
        "if figures is None and (not asked",
        "if (not asked",
        (SAME_WORDS + "test_debug_mode_says_how_it_stands",),
    ),
    Fault(
        "refusal_debug_wsgi",
        WSGI_ANSWERS,
        "if asked or figures is not None:",
        "if asked:",
        (SAME_WORDS + "test_debug_mode_says_how_it_stands",),
    ),
    Fault(
        "refusal_debug_expiry_wsgi",
        WSGI_BODY,
        "run.figures()",
        "None",
        (SAME_WORDS + "test_a_deadline_that_passes_at_work_is_answered_the_same_way",),
    ),
    Fault(
        "preflight_asgi",
        ASGI,
        'if method == "OPTIONS" and',
        'if method == "PREFLIGHT" and',
        (SAME_WORDS + "test_a_preflight_passes_a_full_server_and_is_counted_as_exempt",),
    ),
    Fault(
        "preflight_asgi_any_method",
        ASGI,
        'if method == "OPTIONS" and',
        "if",
        (SAME_WORDS + "test_what_is_no_preflight_needs_a_slot",),
    ),
    Fault(
        "preflight_wsgi",
        WSGI,
        'if method == "OPTIONS" and',
        'if method == "PREFLIGHT" and',
        (SAME_WORDS + "test_a_preflight_passes_a_full_server_and_is_counted_as_exempt",),
    ),
    Fault(
        "preflight_wsgi_any_options",
        WSGI,
        " and environ.keys() >= PREFLIGHT_KEYS",
        "",
        (SAME_WORDS + "test_what_is_no_preflight_needs_a_slot",),
    ),
    Fault(
        "preflight_without_a_bound",
        ROUTING,
        "self._entries.get(PREFLIGHT_LABEL, Mark(priority=EXEMPT))",
        'self._entries.get(PREFLIGHT_LABEL, Mark(priority="critical"))',
        (SAME_WORDS + "test_preflights_have_the_bound_of_exempt_requests",),
    ),
    Fault(
        "cors_hint_forgotten",
        PROTECTION,
        "has_cors_layer(inside)",
        "has_cors_layer(None)",
        (ORDER + "test_b08_outside_the_cors_layer_the_start_says_what_to_set",),
    ),
    Fault(
        "cors_hint_though_origins_are_named",
        PROTECTION,
        "not self.policy.cors_origins and ",
        "",
        (ORDER + "test_b08_with_origins_named_the_page_can_read_it",),
    ),
    Fault(
        "cors_hint_only_for_layers_that_are_made",
        STARLETTE,
        "return isinstance(layer, Starlette) and any(",
        "return False and any(",
        (ORDER + "test_b08_around_an_application_that_has_not_made_its_layers_yet",),
    ),
    Fault(
        "cors_hint_only_for_lists_of_layers",
        STARLETTE,
        "        if isinstance(layer, CORSMiddleware):\n            return True\n",
        "",
        (ORDER + "test_b08_outside_the_cors_layer_the_start_says_what_to_set",),
    ),
    Fault(
        "cors_hint_falls_over_a_function",
        STARLETTE,
        "isinstance(each.cls, type) and issubclass",
        "issubclass",
        (ORDER + "test_without_a_cors_layer_there_is_nothing_to_say",),
    ),
)
