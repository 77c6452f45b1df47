"""Faults of idempotency keys where something is unusual: who cancels, mounts, long bodies, the deadline under WSGI."""

from __future__ import annotations

from fault_table import Fault

MACHINE = "resilient_mw/idempotency/machine.py"
DESK = "resilient_mw/runtime/idempotency_desk.py"
EXCHANGE = "resilient_mw/asgi/idempotency_exchange.py"
BODY = "resilient_mw/asgi/idempotency_body.py"
WSGI_EXCHANGE = "resilient_mw/wsgi/idempotency_exchange.py"
WSGI_BODY = "resilient_mw/wsgi/idempotency_body.py"
LINES = "integrations/resilient_mw_integrations/_postgres_lines.py"
TERMS = "resilient_mw/transactions/terms.py"
ASGI = "tests/asgi/test_idempotency_edges.py"
WSGI = "tests/wsgi/test_idempotency_edges.py"
DECISIONS = "tests/idempotency/test_machine.py::TestLongBodies"

FAULTS = (
    Fault(
        "idempotency_asgi_silence_frees",
        EXCHANGE,
        "await self._end(work.failed(cancelled=True), self._ran)",
        "await self._end(work.failed(cancelled=self._context.cancelled), self._ran)",
        (f"{ASGI}::TestCancelled::test_what_an_admission_inside_cancels_is_not_known",),
    ),
    Fault(
        "idempotency_asgi_foreign_cancel_unseen",
        EXCHANGE,
        "return self._context.cancelled or (task is not None and task.cancelling() > self._before)",
        "return self._context.cancelled",
        (f"{ASGI}::TestCancelled::test_without_admission_too_the_answer_of_cancelled_work_is_not_recorded",),
    ),
    Fault(
        "idempotency_asgi_end_of_the_worker_frees",
        EXCHANGE,
        "cancelled = self._stopped() or not isinstance(error, Exception)",
        "cancelled = self._stopped() or stopped",
        (f"{ASGI}::TestCancelled::test_b86_what_ends_a_worker_leaves_unknown",),
    ),
    Fault(
        "idempotency_wsgi_end_of_the_worker_frees",
        WSGI_BODY,
        "self._ending.failed(left=not isinstance(error, Exception))",
        "self._ending.failed(left=error is None)",
        (f"{WSGI}::test_b86_what_ends_a_worker_leaves_unknown",),
    ),
    Fault(
        "idempotency_asgi_coroutine_made_in_a_thread",
        EXCHANGE,
        "here = inspect.iscoroutinefunction(ask)",
        "here = False",
        (f"{ASGI}::test_an_async_status_function_is_called_on_the_loop",),
    ),
    Fault(
        "idempotency_asgi_time_of_background_work",
        EXCHANGE,
        "            self._middleware.joins.took(self._route, MONOTONIC.now() - self._began)\n",
        "",
        (f"{ASGI}::test_what_goes_on_after_the_answer_is_not_part_of_its_time",),
    ),
    Fault(
        "idempotency_mounts_are_one",
        DESK,
        'root=scope.get("root_path") or scope.get("SCRIPT_NAME") or "",',
        'root=scope.get("root_path") or "",',
        (f"{WSGI}::test_each_place_where_an_application_is_mounted_has_keys_of_its_own",),
    ),
    Fault(
        "idempotency_mount_not_in_the_record",
        MACHINE,
        "route=root + route)",
        "route=route)",
        (f"{ASGI}::test_each_place_where_an_application_is_mounted_has_keys_of_its_own",),
    ),
    Fault(
        "idempotency_path_no_database_takes",
        DESK,
        'path.encode("utf-8", "replace").decode().replace("\\0", "\\ufffd")',
        "path",
        (f"{ASGI}::test_what_no_database_takes_does_not_come_to_the_store",),
    ),
    Fault(
        "idempotency_long_body_takes_unseen",
        MACHINE,
        "and (fingerprint is not None or treatment.in_transaction)",
        "and True",
        (
            f"{DECISIONS}::test_they_do_not_take_what_they_may_not",
            f"{ASGI}::TestLongBodies::test_one_does_not_take_the_record_of_another_payload",
        ),
    ),
    Fault(
        "idempotency_long_body_takes_seen",
        MACHINE,
        'if longer or self._treatment.on_unknown == "refuse":',
        'if self._treatment.on_unknown == "refuse":',
        (f"{DECISIONS}::test_they_do_not_take_what_they_may_not",),
    ),
    Fault(
        "idempotency_long_body_takes_never",
        MACHINE,
        "self.claim = replace(self._held(), take_unknown=True)",
        "self.claim = self._held()",
        (f"{DECISIONS}::test_they_take_what_may_be_theirs",),
    ),
    Fault(
        "idempotency_empty_pieces_kept",
        BODY,
        'if message.get("body") or not message.get("more_body", False):',
        "if True:",
        (f"{ASGI}::TestLongBodies::test_pieces_without_bytes_are_not_kept",),
    ),
    Fault(
        "idempotency_asgi_lost_in_the_queue_runs",
        EXCHANGE,
        "if not work.held:  # it was lost in the queue",
        "if False:",
        (f"{ASGI}::test_work_that_was_lost_while_it_waited_for_a_slot_is_not_begun",),
    ),
    Fault(
        "idempotency_wsgi_lost_in_the_queue_runs",
        WSGI_EXCHANGE,
        "if self._request.work is not None and not self._request.work.held:  # it was lost in the queue",
        "if False:",
        (f"{WSGI}::test_work_that_was_lost_while_it_waited_for_a_slot_is_not_begun",),
    ),
    Fault(
        "idempotency_wsgi_empty_key_is_none",
        "resilient_mw/wsgi/head.py",
        "self.scope.get(environ_key(name)) if own is None",
        "self.scope.get(environ_key(name)) or None if own is None",
        (f"{WSGI}::test_an_empty_key_is_malformed",),
    ),
    Fault(
        "idempotency_wsgi_runs_after_the_deadline",
        WSGI_EXCHANGE,
        "        if self._context.cancelled:\n            # The store",
        "        if False:\n            # The store",
        (f"{WSGI}::test_nothing_is_begun_after_the_deadline",),
    ),
    Fault(
        "postgres_connection_for_each_bad_text",
        LINES,
        "isinstance(error, psycopg.DataError) or ",
        "",
        ("tests/stores/test_postgres_idempotency.py::test_a_text_that_cannot_be_kept_costs_no_connection",),
    ),
    Fault(
        "transactions_key_no_database_takes",
        TERMS,
        'r"[^\\0\\ud800-\\udfff]{1,255}"',
        'r"[^\\0]{1,255}"',
        ("tests/transactions/test_pure.py::test_a_key_that_no_database_takes_is_refused",),
    ),
)
