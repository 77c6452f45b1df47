"""Faults of keys that are taken in a transaction of the user's."""

from __future__ import annotations

from fault_table import Fault

PURE = "resilient_mw/idempotency/transaction.py"
STATEMENTS = "resilient_mw/idempotency/statements.py"
TERMS = "resilient_mw/transactions/terms.py"
SQLITE = "resilient_mw/transactions/sqlite.py"
PSYCOPG = "integrations/resilient_mw_integrations/psycopg.py"
SESSIONS = "integrations/resilient_mw_integrations/sqlalchemy.py"
HANDING = "resilient_mw/asgi/idempotency_handing.py"
ASGI = "resilient_mw/asgi/middleware.py"
WSGI = "resilient_mw/wsgi/body.py"
BLOCKING = "tests/transactions/test_blocking.py"
ASYNC = "tests/transactions/test_async.py"
OBJECTS = "tests/transactions/test_sessions.py"
ANSWERS = "tests/transactions/test_answers.py"
HANDED = "tests/asgi/test_idempotency_in_transaction.py"

FAULTS = (
    Fault(
        "transaction_other_payload_replayed",
        PURE,
        "if fingerprint is not None and claim.fingerprint not in {None, fingerprint}:",
        "if fingerprint is not None and claim.fingerprint is None:",
        (f"{BLOCKING}::TestOnce::test_another_payload_is_refused[sqlite3]",),
    ),
    Fault(
        "transaction_replay_completes",
        PURE,
        "        if self.replayed:\n            raise RuntimeError(",
        "        if self.answer is self:\n            raise RuntimeError(",
        (f"{BLOCKING}::TestUndone::test_work_of_who_does_not_look_is_undone[sqlite3]",),
    ),
    Fault(
        "transaction_lost_row_committed",
        PURE,
        "    if not (yield Asked(statements.complete, facts)).changed:",
        "    if (yield Asked(statements.complete, facts)).changed < 0:",
        ("tests/transactions/test_pure.py::test_a_row_that_is_gone_is_not_committed",),
    ),
    Fault(
        "transaction_large_answer_kept",
        PURE,
        "len(answer.body) > self._max_answer",
        "len(answer.body) < 0",
        (f"{BLOCKING}::TestOnce::test_an_answer_that_is_too_large_is_not_kept[sqlite3]",),
    ),
    Fault(
        "transaction_lock_timeout_left",
        PURE,
        "            if statements.unbound:",
        '            if statements.unbound == "never":',
        (f"{BLOCKING}::TestWaiting::test_the_code_inside_waits_as_it_did_before[psycopg]",),
    ),
    Fault(
        "transaction_expired_row_stays",
        STATEMENTS,
        "AND (expires <= {now} OR ",
        "AND (",
        (f"{BLOCKING}::TestOnce::test_an_expired_key_runs_again[sqlite3]",),
    ),
    Fault(
        "transaction_caller_unbounded",
        STATEMENTS,
        "LIMIT CAST(:most AS integer)) AS its) < CAST(:most AS integer) ",
        "LIMIT CAST(:most AS integer)) AS its) <= CAST(:most AS integer) ",
        (f"{BLOCKING}::TestOnce::test_the_bound_of_a_caller_counts[sqlite3]",),
    ),
    Fault(
        "transaction_wait_ignores_budget",
        TERMS,
        "int(min(self.wait, context.remaining()) * 1000)",
        "int(self.wait * 1000)",
        ("tests/transactions/test_pure.py::test_a_wait_ends_with_the_budget",),
    ),
    Fault(
        "transaction_begun_when_over",
        TERMS,
        "        context.check()\n",
        "",
        ("tests/transactions/test_pure.py::test_nothing_is_waited_for_when_the_request_is_over",),
    ),
    Fault(
        "transaction_sqlite_commit_unguarded",
        SQLITE,
        "            current().check()\n",
        "",
        (f"{BLOCKING}::TestCommitGuard::test_a_caller_who_leaves_leaves_nothing[sqlite3]",),
    ),
    Fault(
        "transaction_sqlite_begins_as_reader",
        SQLITE,
        '"BEGIN IMMEDIATE" if self._own',
        '"BEGIN" if self._own',
        ("tests/transactions/test_pure.py::test_who_begins_is_a_writer",),
    ),
    Fault(
        "transaction_sqlite_replay_committed",
        SQLITE,
        "        block.undo = operation.replayed\n",
        "",
        (f"{BLOCKING}::TestUndone::test_work_of_who_does_not_look_is_undone[sqlite3]",),
    ),
    Fault(
        "transaction_psycopg_commit_unguarded",
        PSYCOPG,
        "        _run(connection, ending(claim, operation, _SQL))\n        current().check()\n",
        "        _run(connection, ending(claim, operation, _SQL))\n",
        (f"{BLOCKING}::TestCommitGuard::test_a_caller_who_leaves_leaves_nothing[psycopg]",),
    ),
    Fault(
        "transaction_psycopg_async_commit_unguarded",
        PSYCOPG,
        "        await _async_run(connection, ending(claim, operation, _SQL))\n        current().check()\n",
        "        await _async_run(connection, ending(claim, operation, _SQL))\n",
        (f"{ASYNC}::test_a_request_that_is_over_cannot_commit_but_inside_a_shield[psycopg-False]",),
    ),
    Fault(
        "transaction_session_commit_unguarded",
        SESSIONS,
        "def _check(_: Session) -> None:\n    current().check()\n",
        "def _check(_: Session) -> None:\n    current()\n",
        (f"{OBJECTS}::test_commits_are_guarded_alone[sqlite]",),
    ),
    Fault(
        "transaction_session_left_open",
        SESSIONS,
        "        if self._commits:\n",
        "        if self._commits and self._savepoint is None:\n",
        (f"{OBJECTS}::test_a_transaction_that_began_by_itself_is_committed_by_the_block[sqlite]",),
    ),
    Fault(
        "transaction_session_commits_the_outer_one",
        SESSIONS,
        "            root.origin is SessionTransactionOrigin.AUTOBEGIN and not session.in_nested_transaction()",
        "            root.origin is SessionTransactionOrigin.AUTOBEGIN",
        (f"{OBJECTS}::test_a_savepoint_of_the_users_is_not_committed[sqlite]",),
    ),
    Fault(
        "transaction_session_commit_inside_unnoticed",
        SESSIONS,
        "            if session.get_transaction() is not self._root:",
        "            if self._root is None:",
        (f"{OBJECTS}::test_a_commit_inside_is_noticed[sqlite]",),
    ),
    Fault(
        "transaction_session_autocommit",
        SESSIONS,
        '"autocommit", False) is True',
        '"autocommit", False) is None',
        (f"{OBJECTS}::test_autocommit_and_other_databases_are_refused[postgresql]",),
    ),
    Fault(
        "transaction_handed_for_good",
        "resilient_mw/wsgi/idempotency_handing.py",
        "start_anew)\n    finally:\n        HANDED.reset(token)\n",
        "start_anew)\n    finally:\n        pass\n",
        (
            "tests/wsgi/test_idempotency_in_transaction.py::test_the_key_the_caller_and_the_payload_are_the_middlewares[False]",
        ),
    ),
    Fault(
        "transaction_refused_after_the_head",
        HANDING,
        "        if sending.started:",
        "        if sending is None:",
        (f"{HANDED}::test_a_handler_that_has_begun_its_answer_fails",),
    ),
    Fault(
        "transaction_asgi_refused_after_the_head",
        ASGI,
        "if not isinstance(error, IdempotencyRefused) or exchange.started:",
        "if not isinstance(error, IdempotencyRefused):",
        (f"{ANSWERS}::test_asgi_after_the_head",),
    ),
    Fault(
        "transaction_wsgi_refusal_counted_as_lost_caller",
        WSGI,
        "    run.complete = True\n    run.context.complete(started=True)\n    return body\n",
        "    return body\n",
        (f"{ANSWERS}::test_wsgi[function]",),
    ),
)
