"""Messages to PostgreSQL: a few statements that are one transaction, as text and as what a session has prepared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

# What the server's or the role's defaults say of a transaction does not count: the statements are made for this level, at which
# each sees what others have committed before it.
_HEAD: Final = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL statement_timeout = %(timeout)s; "
)
HEAD_RESULTS: Final = 2
"""Results that come before those of the statements."""
_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_TYPES: Final = {
    "answer": "bytea",
    "caller": "text",
    "fingerprint": "text",
    "keep": "float8",
    "key": "text",
    "lease": "float8",
    "method": "text",
    "most": "bigint",
    "record": "text",
    "route": "text",
    "shown": "text",
    "take": "boolean",
    "token": "text",
}


class Message:
    """Statements that are sent together. They take the parameter `timeout`, in milliseconds, beside their own.

    Args:
        statements: with `%(name)s` for each parameter.
        often: whether it is worth while to have a session prepare them.

    Attributes:
        text: what is sent to a session that has not prepared them.
        short: what is sent to one that has; None: they are not prepared.
        preparations: what each of them is prepared with, by its name.
    """

    def __init__(self, statements: Sequence[str], *, often: bool = False) -> None:
        self.text = _HEAD + "; ".join(statements)
        self.short: str | None = None
        self.preparations: dict[str, str] = {}
        if often:
            calls = [self._prepare(each) for each in statements]
            self.short = _HEAD + "; ".join(calls)

    def _prepare(self, statement: str) -> str:
        """Note what prepares a statement, and return what runs it then."""
        names = list(dict.fromkeys(_PARAMETER.findall(statement)))
        numbered = _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement)
        body = f"({', '.join(_TYPES[each] for each in names)}) AS {numbered}"
        # By what it does, so that whatever has this name in a session is this, whoever has put it there.
        name = f"resilient_mw_{hashlib.sha256(body.encode()).hexdigest()[:24]}"
        self.preparations[name] = f"{_HEAD}PREPARE {name} {body}"
        return f"EXECUTE {name} ({', '.join(f'%({each})s' for each in names)})"


class Sessions:
    """What the sessions behind the connections of a line have prepared.

    Args:
        wanted: whether they prepare anything.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._known: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()

    def prepare(self, connection: Any, message: Message) -> bool:
        """Return whether a message is sent as `short` on this connection.

        `prepare_threshold` is how psycopg is told that a connection must not prepare statements.
        """
        return self._wanted and message.short is not None and connection.prepare_threshold is not None

    def missing(self, connection: Any, message: Message) -> list[tuple[str, str]]:
        """Return the names of what has to be prepared first, and what does it."""
        known = self._known.setdefault(connection, set())
        return [each for each in message.preparations.items() if each[0] not in known]

    def has(self, connection: Any, name: str) -> None:
        """Note that a statement of this name is there."""
        self._known[connection].add(name)

    def give_up(self) -> None:
        """Prepare nothing any more: what was prepared has gone, as it does behind a pooler of transactions."""
        self._wanted = False
