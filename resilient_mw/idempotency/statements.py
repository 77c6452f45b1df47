"""The statements by which a user's own transaction takes and completes a key, in the tables of the stores.

Parameters stand in them as `:name`. Everything is decided by the statements, on the clock of the database.
"""

# ruff: noqa: S608 -- nothing but the names in this file is put into a statement.

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TABLE: Final = "resilient_mw_idempotency"
_PARAMETER: Final = re.compile(r":(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What is said to one kind of database.

    Attributes:
        bound: has locks waited for `ms` at most, to the end of the transaction, and returns what held before; empty: by other means.
        unbound: has `was` hold again.
        insert: takes the key if nobody has it. One row, or none.
        clear: removes a record that has expired, or may be taken. Changes one row, or none.
        read: returns what is known: state, fingerprint, seconds left of its lease, answer.
        full: returns the number of the caller's live records, and the seconds until the first of them expires.
        complete: records the answer. Changes one row, or none.
    """

    bound: str
    unbound: str
    insert: str
    clear: str
    read: str
    full: str
    complete: str

    def formatted(self) -> Statements:
        """Return them with parameters as `%(name)s`."""
        each = {name: _PARAMETER.sub(r"%(\1)s", getattr(self, name)) for name in self.__slots__}
        return Statements(**each)


def _statements(now: str, later: str, left: str, *, bound: str = "", unbound: str = "") -> Statements:
    """Return the statements of a database.

    Args:
        now: its clock.
        later: the instant `{}` seconds from now.
        left: the seconds until the instant `{}`.
        bound, unbound: as of `Statements`.
    """

    def text(name: str) -> str:
        return f"CAST(:{name} AS text)"

    lease, keep = "CAST(:lease AS double precision)", "CAST(:keep AS double precision)"
    unknown = f"(state = 'unknown' OR (state = 'running' AND lease_until <= {now}))"
    own = f"SELECT expires FROM {TABLE} WHERE caller = {text('caller')} AND expires > {now}"
    alike = f"(fingerprint IS NULL OR {text('fingerprint')} IS NULL OR fingerprint = {text('fingerprint')})"
    return Statements(
        bound=bound,
        unbound=unbound,
        insert=(
            f"INSERT INTO {TABLE} (record, state, token, completed_by, fingerprint, began, lease_until, expires, caller, "
            "about_key, about_method, about_route, about_caller) "
            f"SELECT {text('record')}, 'running', {text('token')}, '', {text('fingerprint')}, {now}, {later.format(lease)}, "
            f"{later.format(f'({lease} + {keep})')}, {text('caller')}, {text('key')}, {text('method')}, {text('route')}, "
            f"{text('shown')} WHERE {text('caller')} = '' OR "
            f"(SELECT count(*) FROM ({own} LIMIT CAST(:most AS integer)) AS its) < CAST(:most AS integer) "
            "ON CONFLICT (record) DO NOTHING"
        ),
        clear=(
            f"DELETE FROM {TABLE} WHERE record = {text('record')} AND (expires <= {now} OR "
            f"(CAST(:take AS integer) = 1 AND {unknown} AND {alike}))"
        ),
        read=(
            f"SELECT CASE WHEN {unknown} THEN 'unknown' ELSE state END, fingerprint, {left.format('lease_until')}, answer "
            f"FROM {TABLE} WHERE record = {text('record')} AND expires > {now}"
        ),
        full=(
            f"SELECT count(*), {left.format('min(its.expires)')} "
            f"FROM ({own} ORDER BY expires LIMIT CAST(:most AS integer)) AS its"
        ),
        complete=(
            f"UPDATE {TABLE} SET state = 'completed', token = '', completed_by = token, answer = :answer, "
            f"lease_until = {now}, expires = {later.format(keep)} "
            f"WHERE record = {text('record')} AND token = {text('token')} AND state = 'running'"
        ),
    )


_SQLITE_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
SQLITE: Final = _statements(_SQLITE_NOW, f"({_SQLITE_NOW} + {{}})", f"({{}} - {_SQLITE_NOW})")
# Not the time at which the transaction began: one that has waited for another must see what is true afterwards.
POSTGRES: Final = _statements(
    "clock_timestamp()",
    "(clock_timestamp() + make_interval(secs => {}))",
    "CAST(extract(epoch FROM {} - clock_timestamp()) AS double precision)",
    bound="SELECT current_setting('lock_timeout'), set_config('lock_timeout', CAST(:ms AS text), true)",
    unbound="SELECT set_config('lock_timeout', CAST(:was AS text), true)",
)
