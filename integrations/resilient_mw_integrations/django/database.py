"""Statements of Django's ORM under the budget of their request.

A statement of a request that is over is not sent, and PostgreSQL is told how long each may take. So the next statement of
a view that works on after its deadline fails, and the transaction around it is rolled back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError

from resilient_mw.core.deadline import FOREVER
from resilient_mw.runtime.context import current
from resilient_mw_integrations.django.options import budgeted_aliases

SLACK = 1.1
"""A timeout that is set may be larger than the budget by this factor, so that not every statement sets it anew."""
SLACK_MS = 50
"""And by these milliseconds."""
LONGEST_MS = 2_147_483_647


@contextmanager
def budgeted(connection: Any) -> Iterator[None]:
    """Have the statements inside obey the budget, for a connection that `RESILIENT_MW["databases"]` does not name.

        with budgeted(connections["reports"]):
            rows = list(Row.objects.using("reports").all())

    Raises:
        DeadlineExceeded: a statement was to be sent, or was cut off, when the time was over.
        RequestCancelled: a statement was to be sent when the request was cancelled for another cause.
    """
    with connection.execute_wrapper(StatementBudget()):
        yield


def keep_budget(sender: object, connection: Any, **more: object) -> None:  # noqa: ARG001  a receiver of a signal
    """Have all statements of a connection that has just been made obey the budget, where the settings say so."""
    if connection.alias in budgeted_aliases() and not any(
        isinstance(each, StatementBudget) for each in connection.execute_wrappers
    ):
        connection.execute_wrappers.append(StatementBudget())


class StatementBudget:
    """An execute wrapper of one Django connection, which one thread uses at a time."""

    __slots__ = ("_default", "_on", "_set")

    def __init__(self) -> None:
        self._on: object = None
        self._default = 0
        self._set = 0

    def __call__(
        self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: dict[str, Any]
    ) -> Any:
        """Run a statement within what the request has left.

        Raises:
            DeadlineExceeded, RequestCancelled: the request is over.
        """
        if isinstance(sql, str) and sql[:8].upper() == "ROLLBACK":
            return execute(sql, params, many, context)  # to a savepoint: the clean-up of a failed block
        request = current()
        request.check()
        connection = context["connection"]
        if connection.vendor == "postgresql":
            self._tell(connection, request.remaining())
        try:
            return execute(sql, params, many, context)
        except OperationalError:
            request.check()  # the server has cut it off: the request is over, rather than the database broken
            raise

    def _tell(self, connection: Any, seconds: float) -> None:
        """Have PostgreSQL end a statement that takes longer."""
        if self._on is not connection.connection:
            self._on, self._set = connection.connection, 0
            self._default = int(_ask(connection, DEFAULT) or 0)
        wanted = 0 if seconds == FOREVER else min(max(1, math.ceil(seconds * 1000)), LONGEST_MS)
        if self._default and not 0 < wanted < self._default:
            wanted = 0  # what the project has set itself is shorter
        if not connection.get_autocommit():
            # It ends with the transaction, and what a rollback to a savepoint does to it nobody tells us.
            if wanted:
                _ask(connection, f"SET LOCAL statement_timeout = {wanted}")
            return
        if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            return  # behind a pooler of transactions the session is not ours
        if not wanted:
            if self._set:
                _ask(connection, "RESET statement_timeout")
        elif not wanted <= self._set <= wanted * SLACK + SLACK_MS:
            _ask(connection, f"SET statement_timeout = {wanted}")
        else:
            return
        self._set = wanted


DEFAULT = "SELECT reset_val FROM pg_settings WHERE name = 'statement_timeout'"


def _ask(connection: Any, statement: str) -> Any:
    """Run a statement of ours by the driver itself: Django's cursors would come back here."""
    with connection.wrap_database_errors, connection.connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None
