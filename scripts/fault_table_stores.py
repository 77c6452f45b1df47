"""Faults of the stores in PostgreSQL and Redis, and of statements under a budget, for `plant_faults.py`."""

from __future__ import annotations

from fault_table import Fault

SQLITE_TABLE = "resilient_mw/stores/sqlite.sql"
HERE = "integrations/resilient_mw_integrations"
SQL = f"{HERE}/_postgres_questions.py"
LINES = f"{HERE}/_postgres_lines.py"
MESSAGES = f"{HERE}/_postgres_messages.py"
LUA = f"{HERE}/redis.lua"
REDIS_LINES = f"{HERE}/_redis_lines.py"
FACES = f"{HERE}/_store_faces.py"
BUDGET = f"{HERE}/_psycopg_budget.py"
POSTGRES = "tests/stores/test_postgres_idempotency.py::test_"
SESSIONS = "tests/stores/test_postgres_sessions.py::test_"
REDIS = "tests/stores/test_redis_idempotency.py::test_"
IN_POSTGRES = "tests/stores/test_postgres_suite.py::"
IN_REDIS = "tests/stores/test_redis_suite.py::"
STATEMENTS = "tests/integrations/test_psycopg_budget.py::test_"

FAULTS = (
    Fault("postgres_isolation_of_the_role", MESSAGES, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; ", "SELECT; ", (
        f"{IN_POSTGRES}TestPool::test_a_new_key_begins_and_a_repeat_finds_it_at_work",
    )),
    Fault("postgres_waits_for_a_silent_server", LINES, "if not ready and clock.now() >= until:", "if not ready and clock.now() >= until + 1000:", (
        f"{POSTGRES}a_server_that_stops_without_a_word",
    )),
    Fault("postgres_pool_over_a_fork", LINES, "        self._given = self._own = None\n        self._lock = threading.Lock()\n\n    def send", "        self._lock = threading.Lock()\n\n    def send", (
        f"{POSTGRES}a_forked_child_does_not_use_the_pool_that_was_given",
    )),
    Fault("store_begin_not_undone", FACES, "            asked.add_done_callback(lambda done: self._undo(claim, done, timeout))\n", "", (
        f"{IN_REDIS}test_a_cancelled_begin_leaves_nothing",
    )),
    Fault("redis_late_complete", LUA, "state == 'running' and own == token", "state == 'running'", (
        f"{IN_REDIS}TestBlocking::test_the_late_write_of_the_old_attempt_is_refused",
    )),
    Fault("redis_begin_again_is_another", LUA, "  if held(token) then\n    local fence", "  if false then\n    local fence", (
        f"{REDIS}a_begin_whose_answer_was_lost_may_be_asked_again",
    )),
    Fault("redis_fence_from_one", LUA, "math.max(micros, tonumber", "math.max(1, tonumber", (
        f"{REDIS}a_server_that_is_stopped_is_said_to_be_away_and_found_again",
    )),
    Fault("redis_names_left", LUA, "    redis.call('ZREM', by_expiry, name)\n    redis.call('ZREM', by_key, name)\n  end", "    redis.call('ZREM', by_expiry, name)\n  end", (
        f"{REDIS}nothing_is_left_of_what_has_expired",
    )),
    Fault("redis_script_not_handed_over", REDIS_LINES, "            connection.send_command(*whole(payload))\n            return connection", "            connection.send_command(*by_name(payload))\n            return connection", (
        f"{REDIS}b85_of_several_processes_one_begins",
    )),
    Fault("redis_waits_as_the_client", REDIS_LINES, "            bound(connection, left)\n        except IndexError", "            pass\n        except IndexError", (
        f"{REDIS}a_server_that_does_not_answer_is_waited_for_within_the_time",
    )),
    Fault("statement_time_not_told", BUDGET, '            return f"SET LOCAL statement_timeout = {wanted or default}"', "            return None", (
        f"{STATEMENTS}a_smaller_budget_inside_a_transaction_ends_with_its_scope",
    )),
    Fault("statement_of_a_thread_not_cancelled", BUDGET, "        request.on_cancel(watch)\n", "", (
        f"{STATEMENTS}b20_what_a_thread_waits_for_is_cancelled_with_its_request",
    )),
    Fault("postgres_bound_without_a_queue", SQL, "SELECT pg_advisory_xact_lock(hashtextextended(%(caller)s, 0)) WHERE", "SELECT %(caller)s::text WHERE", (
        f"{POSTGRES}a_begin_near_the_bound_waits_for_others_of_its_caller",
    )),
    Fault("postgres_bound_of_a_few", SQL, "(%(most)s <= {_NEAR} OR EXISTS", "(EXISTS", (
        f"{POSTGRES}a_begin_near_the_bound_waits_for_others_of_its_caller",
    )),
    Fault("postgres_bound_queues_always", SQL, "(%(most)s <= {_NEAR} OR EXISTS", "(true OR EXISTS", (
        f"{POSTGRES}a_begin_far_from_the_bound_waits_for_nobody",
    )),
    Fault("postgres_conflict_takes_what_is_held", SQL, 'f"WHERE {free} RETURNING 1), "', '"RETURNING 1), "', (
        f"{POSTGRES}a_key_that_another_transaction_has_inserted_is_judged_by_what_it_leaves",
        f"{POSTGRES}of_two_that_take_a_record_over_at_one_time_one_has_it",
    )),
    Fault("postgres_statement_without_a_time", MESSAGES, "SET LOCAL statement_timeout = %(timeout)s; ", "SET LOCAL statement_timeout = 0; ", (
        f"{POSTGRES}a_row_that_somebody_else_holds_is_waited_for_within_the_time",
    )),
    Fault("postgres_statement_time_left", MESSAGES, "SET LOCAL statement_timeout", "SET statement_timeout", (
        f"{SESSIONS}the_time_of_the_store_is_not_left_on_a_session",
    )),
    Fault("postgres_idle_connection", LINES, "if connection is None or not connection.closed or self._clock.now() >= until:\n                    raise _translated(error) from error\n\n    def close", "if True:\n                    raise _translated(error) from error\n\n    def close", (
        f"{POSTGRES}connections_that_were_closed_while_idle_cost_nobody_an_error",
    )),
    Fault("postgres_idle_connection_async", LINES, "if connection is None or not connection.closed or self._clock.now() >= until:\n                    raise _translated(error) from error\n\n    async def close", "if True:\n                    raise _translated(error) from error\n\n    async def close", (
        f"{POSTGRES}connections_that_were_closed_while_idle_cost_nobody_an_error",
    )),
    Fault("postgres_prepares_nothing", MESSAGES, "        return self._wanted and message.short", "        return False and message.short", (
        f"{SESSIONS}a_session_prepares_each_statement_once",
    )),
    Fault("postgres_prepares_always", MESSAGES, "        return self._wanted and message.short", "        return message.short", (
        f"{SESSIONS}a_session_prepares_nothing_where_that_is_not_wanted",
    )),
    Fault("postgres_prepares_in_any_pool", MESSAGES, " and connection.prepare_threshold is not None", "", (
        f"{SESSIONS}a_session_prepares_nothing_where_that_is_not_wanted",
    )),
    Fault("postgres_prepares_without_a_time", MESSAGES, 'f"{_HEAD}PREPARE {name} {body}"', 'f"SELECT %(timeout)s; PREPARE {name} {body}"', (
        f"{SESSIONS}a_table_that_somebody_else_has_is_waited_for_within_the_time",
    )),
    Fault("postgres_prepared_is_gone", LINES, "(psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)", "(psycopg.errors.FeatureNotSupported,)", (
        f"{SESSIONS}what_was_prepared_may_be_gone",
    )),
    Fault("postgres_prepared_goes_on", MESSAGES, "        self._wanted = False\n", "", (
        f"{SESSIONS}what_was_prepared_may_be_gone",
    )),
    Fault("postgres_prepared_for_another_table", LINES, "(psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)", "(psycopg.errors.InvalidSqlStatementName,)", (
        f"{SESSIONS}a_table_may_change_under_a_prepared_statement",
    )),
    Fault("postgres_prepared_twice", LINES, "with suppress(psycopg.errors.DuplicatePreparedStatement):\n                        cursor.", "with suppress():\n                        cursor.", (
        f"{SESSIONS}what_was_prepared_elsewhere_is_used",
    )),
    Fault("postgres_prepared_twice_async", LINES, "with suppress(psycopg.errors.DuplicatePreparedStatement):\n                        await", "with suppress():\n                        await", (
        f"{SESSIONS}what_was_prepared_elsewhere_is_used",
    )),
    Fault("redis_idle_connection", REDIS_LINES, "if not idle or self._clock.now() >= until:", "if True:", (
        f"{REDIS}connections_that_were_closed_while_idle_cost_nobody_an_error",
    )),
    Fault("redis_idle_connection_async", REDIS_LINES, "            if not idle:\n", "            if True:\n", (
        f"{REDIS}connections_that_were_closed_while_idle_cost_nobody_an_error",
    )),
    Fault("redis_bound_by_one_more", LUA, "redis.call('ZCARD', caller_key) >= most", "redis.call('ZCARD', caller_key) > most", (
        f"{REDIS}the_begins_of_one_caller_at_one_time_do_not_pass_its_bound",
    )),
    Fault("sqlite_two_records_of_a_key", SQLITE_TABLE, "TEXT NOT NULL UNIQUE", "TEXT NOT NULL", (
        "tests/stores/test_sqlite_idempotency.py::test_the_table_has_no_room_for_a_second_record_of_a_key",
    )),
)  # fmt: skip
