"""Faults of idempotency keys: their machine, their records, and their stores."""

from __future__ import annotations

from fault_table import Fault

MACHINE = "resilient_mw/idempotency/machine.py"
WORK = "resilient_mw/idempotency/work.py"
SHELF = "resilient_mw/idempotency/shelf.py"
ANSWERS = "resilient_mw/idempotency/answers.py"
FINGERPRINT = "resilient_mw/idempotency/fingerprint.py"
SCOPE = "resilient_mw/idempotency/scope.py"
MEMORY = "resilient_mw/stores/memory.py"
SQLITE = "resilient_mw/stores/sqlite.py"
CONNECTIONS = "resilient_mw/stores/connections.py"
FACES = "resilient_mw/stores/faces.py"
EXCHANGE = "resilient_mw/asgi/idempotency_exchange.py"
BODY = "resilient_mw/asgi/idempotency_body.py"
JOINS = "resilient_mw/runtime/joins.py"
ASGI = "tests/asgi/test_idempotency.py"

DECISIONS = "tests/idempotency/test_machine.py"
VALUES = "tests/idempotency/test_values.py"
SUITE = "tests/stores/test_idempotency.py"
FILES = "tests/stores/test_sqlite_idempotency.py"

FAULTS = (
    Fault(
        "idempotency_cancelled_recorded",
        WORK,
        "if cancelled or cut_off:",
        "if cut_off:",
        (f"{DECISIONS}::TestEnd::test_a_cancelled_handler_cannot_record_success",),
    ),
    Fault(
        "idempotency_5xx_kept",
        WORK,
        "if self._refused or status not in self._treatment.keep_statuses:",
        "if self._refused:",
        (f"{DECISIONS}::TestEnd::test_b88_what_is_not_kept_frees_the_key",),
    ),
    Fault(
        "idempotency_own_refusal_kept",
        WORK,
        "if self._refused or status not in",
        "if status not in",
        (f"{DECISIONS}::TestEnd::test_b88_our_own_refusals_are_not_kept_whatever_their_status",),
    ),
    Fault(
        "idempotency_truncated_forgotten",
        WORK,
        "if cancelled or self._capture.status is not None else",
        "if cancelled else",
        (f"{DECISIONS}::TestEnd::test_a_truncated_answer_is_unknown",),
    ),
    Fault(
        "idempotency_doubt_forgotten",
        WORK,
        'return self._abandon("unknown" if self._doubt else "forget")',
        'return self._abandon("forget")',
        (f"{DECISIONS}::TestEnd::test_a_retry_of_the_unknown_leaves_it_unknown",),
    ),
    Fault(
        "idempotency_lost_completes",
        WORK,
        "        if not self._end():\n            return ()",
        "        self._end()",
        (f"{DECISIONS}::TestLease::test_a_lost_record",),
    ),
    Fault(
        "idempotency_payload_not_compared",
        MACHINE,
        "if claim.fingerprint != record.fingerprint:",
        "if claim.fingerprint == '':",
        (f"{DECISIONS}::TestOutcomes::test_another_payload",),
    ),
    Fault(
        "idempotency_stranger_served",
        MACHINE,
        "return (Refuse(Reason.IDEMPOTENCY_NO_CALLER),) if required else (Pass(),)",
        "self.claim = self._claim('', 'nobody')",
        (f"{DECISIONS}::TestArrival::test_nobody_in_particular",),
    ),
    Fault(
        "idempotency_wait_without_end",
        MACHINE,
        'self._treatment.wait == "conflict" or now >= self._until:',
        'self._treatment.wait == "conflict":',
        (f"{DECISIONS}::TestWaiting::test_the_deadline_bounds_it",),
    ),
    Fault(
        "idempotency_open_while_waiting",
        MACHINE,
        'if self._treatment.store_down == "open" and self._found is None:',
        'if self._treatment.store_down == "open":',
        (f"{DECISIONS}::TestWaiting::test_the_store_is_away_while_it_waits",),
    ),
    Fault(
        "idempotency_unknown_run_silently",
        MACHINE,
        'take_unknown=treatment.on_unknown != "refuse"\n            and ',
        "take_unknown=",
        (f"{DECISIONS}::TestArrival::test_the_claim",),
    ),
    Fault(
        "idempotency_caller_in_clear",
        MACHINE,
        'shown = caller if self._policy.show_caller else ""',
        "shown = caller",
        (f"{DECISIONS}::TestArrival::test_the_claim",),
    ),
    Fault(
        "idempotency_old_token_writes",
        SHELF,
        "and row.state is State.RUNNING and row.token == claim.token",
        "and row.state is State.RUNNING",
        (f"{SUITE}::TestMemory::test_the_late_write_of_the_old_attempt_is_refused",),
    ),
    Fault(
        "idempotency_live_lease_taken",
        SHELF,
        "and state_of(row, now) is State.UNKNOWN\n",
        "and row.state is not State.COMPLETED\n",
        (f"{SUITE}::TestMemory::test_renewing_keeps_it",),
    ),
    Fault(
        "idempotency_taken_by_another_payload",
        SHELF,
        "and (row.fingerprint is None or claim.fingerprint is None or row.fingerprint == claim.fingerprint)",
        "",
        (f"{SUITE}::TestMemory::test_another_request_cannot_take_over",),
    ),
    Fault(
        "idempotency_cookie_kept",
        ANSWERS,
        'b"set-cookie set-cookie2 authorization',
        'b"set-cookie2 authorization',
        (f"{VALUES}::TestAnswers::test_b89_what_is_kept_of_the_headers",),
    ),
    Fault(
        "idempotency_json_number_as_float",
        FINGERPRINT,
        "parse_float=_Number, parse_int=_Number",
        "parse_int=_Number",
        (f"{VALUES}::TestFingerprint::test_json_of_another_meaning",),
    ),
    Fault(
        "idempotency_parts_run_together",
        SCOPE,
        '[f"{len(part)}:{part}" for part in parts]',
        "parts",
        (f"{VALUES}::TestScope::test_the_cut_between_parts_counts",),
    ),
    Fault(
        "idempotency_memory_no_sweep",
        MEMORY,
        "            self._sweep(now, _SWEPT)\n",
        "",
        ("tests/stores/test_memory_idempotency.py::test_expired_records_are_removed_on_use",),
    ),
    Fault(
        "idempotency_memory_expired_counted",
        MEMORY,
        "        for key in [key for key in own if shelf.live(self._rows[key], now) is None]:\n            self._remove(key)\n",
        "",
        ("tests/stores/test_memory_idempotency.py::test_expired_records_of_a_caller_do_not_count",),
    ),
    Fault(
        "idempotency_sqlite_no_sweep",
        SQLITE,
        "            connection.execute(_PURGE, (now, _SWEPT))\n",
        "",
        (f"{FILES}::test_expired_records_are_removed_on_use",),
    ),
    Fault(
        "idempotency_sqlite_look_then_write",
        CONNECTIONS,
        'connection.execute("BEGIN IMMEDIATE")',
        'connection.execute("BEGIN")',
        (f"{FILES}::test_nobody_else_writes_between_a_look_and_a_write",),
    ),
    Fault(
        "idempotency_sqlite_not_durable",
        CONNECTIONS,
        "'FULL' if self._durable else 'NORMAL'",
        "'NORMAL' if self._durable else 'NORMAL'",
        (f"{FILES}::test_a_commit_is_on_the_disk",),
    ),
    Fault(
        "idempotency_sqlite_fork_shares",
        CONNECTIONS,
        "        _inherited.append(self._free)\n        self._free = []\n",
        "        _inherited.append(self._free)\n",
        (f"{FILES}::test_a_forked_child_has_connections_of_its_own",),
    ),
    Fault(
        "idempotency_cancelled_begin_leaks",
        FACES,
        "                call.add_done_callback(lambda done: self._undo(claim, done, timeout))\n",
        "                pass\n",
        ("tests/stores/test_faces.py::test_who_is_cancelled_goes_at_once_and_leaves_nothing",),
    ),
    Fault(
        "idempotency_cancelled_taker_forgets",
        FACES,
        'ending: Ending = "unknown" if outcome.unknown else "forget"',
        'ending: Ending = "forget"',
        ("tests/stores/test_faces.py::test_what_was_unknown_stays_unknown_when_its_taker_is_cancelled",),
    ),
    Fault(
        "idempotency_asgi_exception_keeps",
        EXCHANGE,
        "            await self._end(work.failed(cancelled=cancelled), self._ran)\n            raise",
        "            raise",
        (f"{ASGI}::test_a_waiter_runs_when_the_first_one_fails",),
    ),
    Fault(
        "idempotency_asgi_cancelled_completes",
        EXCHANGE,
        "work.ended(cancelled=self._stopped(), fingerprint",
        "work.ended(cancelled=False, fingerprint",
        (f"{ASGI}::test_the_deadline_leaves_unknown_whatever_the_handler_answers",),
    ),
    Fault(
        "idempotency_asgi_no_heartbeat",
        EXCHANGE,
        "self._heart = asyncio.create_task(self._records.keep(work, self._lose))",
        "pass",
        (f"{ASGI}::test_b86_a_long_handler_keeps_its_key",),
    ),
    Fault(
        "idempotency_asgi_truncated_runs_on",
        EXCHANGE,
        "        await self._end(work.failed(cancelled=True), self._ran)\n",
        "",
        (f"{ASGI}::test_a_truncated_answer_leaves_unknown",),
    ),
    Fault(
        "idempotency_asgi_place_kept",
        EXCHANGE,
        "            joins.leave(place)\n",
        "            pass\n",
        (f"{ASGI}::test_b85_a_thousand_at_one_time_run_once",),
    ),
    Fault(
        "idempotency_asgi_body_not_hashed",
        BODY,
        '                self._fingerprint.update(message.get("body", b""))\n',
        "",
        (f"{ASGI}::test_another_payload_is_422",),
    ),
    Fault(
        "idempotency_places_unbounded",
        JOINS,
        "if self.waiting >= self._most:",
        "if self.waiting < 0:",
        (f"{ASGI}::test_no_place_to_wait_is_409_with_a_time",),
    ),
)
