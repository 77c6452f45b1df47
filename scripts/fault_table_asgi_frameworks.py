"""Faults of the ASGI frameworks' integrations for `plant_faults.py`."""

from __future__ import annotations

from fault_table import Fault

LITESTAR = "integrations/resilient_mw_integrations/litestar.py"
OPENAPI = "integrations/resilient_mw_integrations/_openapi.py"
ON_LITESTAR = "tests/integrations/test_litestar.py::"
ON_FASTAPI = "tests/integrations/test_fastapi_served.py::"

FAULTS = (
    Fault(
        "litestar_closes_before_requests_have_ended",
        LITESTAR,
        "            await let_finish(guard, span)\n",
        "",
        (f"{ON_LITESTAR}test_requests_finish_before_the_application_closes_what_they_work_with",),
    ),
    Fault(
        "litestar_guarded_twice_after_a_restart",
        LITESTAR,
        "        if isinstance(handler, ResilienceMiddleware):\n",
        "        if handler is None:\n",
        (f"{ON_LITESTAR}test_an_application_can_be_started_again",),
    ),
    Fault(
        "litestar_wrong_method_is_unmatched",
        LITESTAR,
        "            except MethodNotAllowedException:\n",
        "            except ZeroDivisionError:\n",
        (f"{ON_LITESTAR}test_a_router_that_does_not_say_which_methods_fit_is_asked_for_them",),
    ),
    Fault(
        "litestar_controllers_are_not_asked",
        LITESTAR,
        "            yield from parts(type(controller))\n",
        "",
        (f"{ON_LITESTAR}test_the_route_is_the_one_that_litestar_picks",),
    ),
    Fault(
        "litestar_later_handlers_are_unknown",
        LITESTAR,
        "        if route is None and len(self._app.routes) != self._count:\n",
        "        if route is None and not self._count:\n",
        (f"{ON_LITESTAR}test_handlers_that_are_registered_later_are_seen_and_the_others_keep_their_routes",),
    ),
    Fault(
        "mark_of_a_copy_leads_nowhere",
        "resilient_mw/core/marks.py",
        'known |= {id(layer), id(getattr(layer, "__dict__", {}).get(ATTRIBUTE))}',
        "known.add(id(layer))",
        (f"{ON_LITESTAR}test_every_mark_leads_to_a_route_and_one_that_does_not_is_named",),
    ),
    Fault(
        "marks_of_one_decorator_are_one",
        "resilient_mw/core/marks.py",
        "setattr(target, ATTRIBUTE, replace(mark.over(own)))",
        "setattr(target, ATTRIBUTE, mark.over(own))",
        (f"{ON_LITESTAR}test_the_layers_of_one_handler_are_judged_one_by_one",),
    ),
    Fault(
        "openapi_of_exempt_operations",
        OPENAPI,
        "    if operation.entry.priority == EXEMPT:\n        return False\n",
        "",
        (f"{ON_FASTAPI}test_the_document_says_what_each_operation_may_be_answered",),
    ),
    Fault(
        "openapi_takes_the_users_headers",
        OPENAPI,
        "            headers.setdefault(name, header)\n",
        "            headers[name] = header\n",
        (f"{ON_FASTAPI}test_the_document_says_what_each_operation_may_be_answered",),
    ),
    Fault(
        "openapi_quota_of_another_path",
        OPENAPI,
        "    return (Reason.QUOTA_EXCEEDED,) if index.candidates(operation.path) else ()\n",
        "    return (Reason.QUOTA_EXCEEDED,) if policy.quotas else ()\n",
        (f"{ON_FASTAPI}test_the_document_says_what_each_operation_may_be_answered",),
    ),
    Fault(
        "openapi_of_a_reference",
        OPENAPI,
        '        if "$ref" in response:\n            continue',
        '        if "$ref" in responses:\n            continue',
        (f"{ON_FASTAPI}test_a_response_that_is_a_reference_is_the_users_own",),
    ),
    Fault(
        "openapi_wraps_itself",
        "integrations/resilient_mw_integrations/fastapi.py",
        "self.before: Any = before.before if isinstance(before, _Documented) else before",
        "self.before: Any = before",
        (f"{ON_FASTAPI}test_documenting_twice_changes_nothing_and_another_policy_takes_the_place",),
    ),
    Fault(
        "page_by_the_frameworks_own_handler",
        "integrations/resilient_mw_integrations/starlette/pages.py",
        'return None if getattr(found, "__module__", "").startswith(FRAMEWORKS) else found',
        "return found",
        (f"{ON_FASTAPI}test_without_a_handler_of_the_users_it_is_the_problem_document",),
    ),
    Fault(
        "page_sent_by_its_name",
        "integrations/resilient_mw_integrations/_asgi_pages.py",
        '"method": "GET", "extensions": {}}',
        '"method": "GET"}',
        ("tests/integrations/test_starlette_served.py::test_a_page_from_a_file_is_its_content",),
    ),
    Fault(
        "page_for_head_has_no_length",
        "integrations/resilient_mw_integrations/_asgi_pages.py",
        '"method": "GET", "extensions"',
        '"extensions"',
        ("tests/integrations/test_starlette_served.py::test_head_says_how_long_the_page_is",),
    ),
    Fault(
        "page_of_any_size",
        "integrations/resilient_mw_integrations/_asgi_pages.py",
        "            if size > LARGEST:\n",
        "            if size < 0:\n",
        ("tests/integrations/test_starlette_served.py::test_a_page_that_is_too_large_is_none",),
    ),
)
