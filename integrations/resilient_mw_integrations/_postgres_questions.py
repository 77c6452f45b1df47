"""The transitions of idempotency keys as SQL: each a few statements in one message, and one transaction."""

# ruff: noqa: S608 -- names of tables are checked, and every value is a parameter.

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from resilient_mw.idempotency.answers import StoredAnswer, decode_answer, encode_answer
from resilient_mw.idempotency.record import (
    About,
    Begun,
    Claim,
    Ending,
    Found,
    Full,
    Outcome,
    Record,
    State,
)
from resilient_mw_integrations._postgres_messages import Message
from resilient_mw_integrations._store_questions import Question

TABLE: Final = "resilient_mw_idempotency"
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,49}")
# A statement is what decides, so each reads the clock when it runs: one that has waited for another looks again.
_NOW: Final = "clock_timestamp()"
# Only what is the same for a whole statement can be looked for in an index.
_ARRIVAL: Final = "statement_timestamp()"
_STATE: Final = f"CASE WHEN state = 'running' AND lease_until <= {_NOW} THEN 'unknown' ELSE state END"
_SHOWN: Final = (
    f"record, {_STATE}, fingerprint, fence, extract(epoch FROM {_NOW} - began)::float8, "
    f"extract(epoch FROM lease_until - {_NOW})::float8, extract(epoch FROM expires - {_NOW})::float8, "
    "about_key, about_method, about_route, about_caller"
)
_LEASE: Final = f"{_NOW} + make_interval(secs => %(lease)s)"
_LEASE_AND_KEEP: Final = f"{_NOW} + make_interval(secs => %(lease)s + %(keep)s)"
_KEEP: Final = f"{_NOW} + make_interval(secs => %(keep)s)"
_HELD: Final = f"record = %(record)s AND token = %(token)s AND state = 'running' AND expires > {_NOW}"
_NEAR: Final = 100
"""So many records before its bound the begins of one caller queue up, so that together they do not pass it."""
_SWEPT: Final = 2
"""Expired records that each new one removes: more than come in, so that they cannot pile up."""


def schema(*, table: str = TABLE, schema: str | None = None) -> str:
    """Return the statements that make the table, for those who create tables by hand.

    Args:
        table: its name.
        schema: that it is in; None: the first one of the search path.

    Raises:
        ValueError: a name is not made of small letters, digits and underscores.
    """
    text = files("resilient_mw_integrations").joinpath("postgres.sql").read_text("utf-8")
    where = qualified(table, schema)
    return re.sub(rf"\b{TABLE}(_by_\w+)?\b", lambda name: table + name[1] if name[1] else where, text)


def qualified(table: str, schema: str | None) -> str:
    """Return the name of a table as it stands in statements.

    Raises:
        ValueError: a name is not made of small letters, digits and underscores.
    """
    for what, name in (("table", table), ("schema", schema)):
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError(f"{what} must be up to 50 small letters, digits and underscores, got {name!r}")
    return f'"{table}"' if schema is None else f'"{schema}"."{table}"'


class PostgresQuestions:
    """Questions to PostgreSQL: a payload is a message, its parameters by name; the answer, the rows of each statement."""

    def __init__(self, table: str, schema_name: str | None) -> None:
        where = self._table = qualified(table, schema_name)
        self._schema = schema(table=table, schema=schema_name)
        takes = (
            f"(%(take)s AND (have.state = 'unknown' OR (have.state = 'running' AND have.lease_until <= {_NOW})) AND "
            "(have.fingerprint IS NULL OR %(fingerprint)s::text IS NULL OR have.fingerprint = %(fingerprint)s))"
        )
        free = f"(have.expires <= {_NOW} OR {takes})"
        live = f"SELECT FROM {where} AS have WHERE have.record = %(record)s AND have.expires > {_NOW}"
        own = f"SELECT expires FROM {where} WHERE caller = %(caller)s AND expires > {_ARRIVAL}"
        queue = (
            f"SELECT pg_advisory_xact_lock(hashtextextended(%(caller)s, 0)) WHERE NOT EXISTS ({live}) AND "
            f"(%(most)s <= {_NEAR} OR EXISTS ({own} OFFSET greatest(%(most)s - {_NEAR}, 0)))"
        )
        room = f"EXISTS ({live}) OR (SELECT count(*) FROM ({own} LIMIT %(most)s) AS its) < %(most)s"
        # A repeat ends at the first condition, and writes nothing. Whoever passes it at the same time as another meets it
        # at the unique key, waits for it there, and is judged by what it has left.
        insert = (
            f"WITH got AS (INSERT INTO {where} AS have (record, state, token, fingerprint, began, lease_until, expires, "
            "caller, about_key, about_method, about_route, about_caller) "
            f"SELECT %(record)s, 'running', %(token)s, %(fingerprint)s::text, {_NOW}, {_LEASE}, {_LEASE_AND_KEEP}, %(caller)s, "
            "%(key)s, %(method)s, %(route)s, %(shown)s "
            f"WHERE NOT EXISTS ({live} AND NOT {takes}) AND (%(caller)s = '' OR {room}) "
            "ON CONFLICT (record) DO UPDATE SET fence = DEFAULT, state = 'running', token = excluded.token, "
            f"taken = have.expires > {_NOW}, completed_by = '', answer = NULL, "
            f"fingerprint = CASE WHEN have.expires > {_NOW} THEN coalesce(have.fingerprint, excluded.fingerprint) "
            "ELSE excluded.fingerprint END, "
            f"caller = CASE WHEN have.expires > {_NOW} THEN have.caller ELSE excluded.caller END, "
            f"began = {_NOW}, lease_until = {_LEASE}, expires = {_LEASE_AND_KEEP}, about_key = excluded.about_key, "
            "about_method = excluded.about_method, about_route = excluded.about_route, about_caller = excluded.about_caller "
            f"WHERE {free} RETURNING 1), "
            f"gone AS (DELETE FROM {where} WHERE record = ANY(ARRAY(SELECT record FROM {where} WHERE expires <= {_ARRIVAL} "
            f"AND record <> %(record)s AND EXISTS (SELECT FROM got) ORDER BY expires LIMIT {_SWEPT} FOR UPDATE SKIP LOCKED))) "
            "SELECT FROM got"
        )
        whole = f"SELECT {_SHOWN}, answer, token, taken FROM {where} WHERE record = %(record)s AND expires > {_NOW}"
        full = (
            f"SELECT count(*), extract(epoch FROM min(its.expires) - {_NOW})::float8 "
            f"FROM ({own} ORDER BY expires LIMIT %(most)s) AS its WHERE NOT EXISTS ({live})"
        )

        self._unbounded = Message([insert, whole], often=True)
        self._bounded = Message([queue, insert, whole, full], often=True)
        self._look = Message([whole])
        lasting = f"SET lease_until = {_LEASE}, expires = {_LEASE_AND_KEEP}"
        self._renew = Message([f"UPDATE {where} {lasting} WHERE {_HELD} RETURNING 1"], often=True)
        update = (
            f"UPDATE {where} SET state = 'completed', token = '', completed_by = token, answer = %(answer)s, "
            f"fingerprint = coalesce(fingerprint, %(fingerprint)s::text), lease_until = {_NOW}, expires = {_KEEP} WHERE {_HELD}"
        )
        said = f"SELECT 1 FROM {where} WHERE record = %(record)s AND completed_by = %(token)s AND expires > {_NOW}"
        self._complete = Message([update, said], often=True)

    def begin(self, claim: Claim) -> Question[Outcome]:
        """As of `Questions`."""
        bound = bool(claim.caller)
        message = self._bounded if bound else self._unbounded
        about = claim.about
        facts = {
            "take": claim.take_unknown,
            "caller": claim.caller,
            "most": claim.most,
            "fingerprint": claim.fingerprint,
            "key": about.key,
            "method": about.method,
            "route": about.route,
            "shown": about.caller,
        }

        def read(answer: list[list[Any]]) -> Outcome | Question[Outcome]:
            for *shown, raw, token, taken in answer[bound + 1]:
                if token == claim.token:
                    return Begun(shown[3], taken)
                return Found(_record(shown, raw))
            if bound:
                ((live, first),) = answer[-1]
                if live >= claim.most:
                    return Full(max(0.0, first))
            return question  # what was in the way has gone meanwhile

        question: Question[Outcome] = Question((message, _about(claim) | facts), read)
        return question

    def renew(self, claim: Claim) -> Question[bool]:
        """As of `Questions`."""
        return Question((self._renew, _about(claim)), lambda rows: bool(rows[0]))

    def complete(self, claim: Claim, answer: StoredAnswer, fingerprint: str | None) -> Question[bool]:
        """As of `Questions`."""
        facts = {"answer": encode_answer(answer), "fingerprint": fingerprint}
        return Question((self._complete, _about(claim) | facts), lambda rows: bool(rows[1]))

    def abandon(self, claim: Claim, ending: Ending) -> Question[bool]:
        """As of `Questions`."""
        if ending == "forget":
            return self._change(f"DELETE FROM {self._table} WHERE {_HELD} RETURNING 1", _about(claim))
        change = f"SET state = 'unknown', token = '', lease_until = {_NOW}, expires = {_KEEP}"
        return self._change(f"UPDATE {self._table} {change} WHERE {_HELD} RETURNING 1", _about(claim))

    def look(self, record: str) -> Question[Record | None]:
        """As of `Questions`."""

        def read(answer: list[list[Any]]) -> Record | None:
            for *shown, raw, _, _ in answer[0]:
                return _record(shown, raw)
            return None

        return Question((self._look, {"record": record}), read)

    def release(self, record: str, running: bool) -> Question[bool]:
        """As of `Questions`."""
        what = f"record = %(record)s AND expires > {_NOW} AND (%(running)s OR {_STATE} <> 'running')"
        return self._change(
            f"DELETE FROM {self._table} WHERE {what} RETURNING 1", {"record": record, "running": running}
        )

    def records(self, state: State | None, after: str, limit: int) -> Question[Sequence[Record]]:
        """As of `Questions`."""
        listing = (
            f"SELECT {_SHOWN} FROM {self._table} WHERE record > %(after)s AND expires > {_NOW} "
            f"AND (%(state)s::text IS NULL OR {_STATE} = %(state)s) ORDER BY record LIMIT %(limit)s"
        )
        facts = {"after": after, "state": None if state is None else state.value, "limit": limit}
        return Question((Message([listing]), facts), lambda rows: [_record(row, None) for row in rows[0]])

    def purge(self, limit: int) -> Question[int]:
        """As of `Questions`. Rows that somebody else is at are left to it."""
        purging = (
            f"WITH gone AS (DELETE FROM {self._table} WHERE record = ANY(ARRAY(SELECT record FROM {self._table} "
            f"WHERE expires <= {_ARRIVAL} ORDER BY expires LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1) "
            "SELECT count(*) FROM gone"
        )
        return Question((Message([purging]), {"limit": limit}), lambda rows: int(rows[0][0][0]))

    def create(self) -> Question[None]:
        """As of `Questions`. Who may not create is not asked to while the table is there."""
        # Of several that create at one time, each but the first finds it done.
        queue = "SELECT pg_advisory_xact_lock(hashtextextended(%(table)s, 0))"
        making = Message([queue, self._schema])
        made: Question[None] = Question((making, {"table": self._table}), lambda _: None)
        there = "SELECT to_regclass(%(table)s) IS NOT NULL"
        look = Message([there])
        return Question((look, {"table": self._table}), lambda rows: None if rows[0][0][0] else made)

    def ping(self) -> Question[None]:
        """As of `Questions`."""
        return Question((Message([f"SELECT FROM {self._table} LIMIT 1"]), {}), lambda _: None)

    def _change(self, statement: str, facts: dict[str, Any]) -> Question[bool]:
        return Question((Message([statement]), facts), lambda rows: bool(rows[0]))


def _about(claim: Claim) -> dict[str, Any]:
    return {"record": claim.record, "token": claim.token, "lease": claim.lease, "keep": claim.keep}


def _record(shown: Sequence[Any], raw: bytes | None) -> Record:
    record, state, fingerprint, fence, age, lease_left, expires_in, *about = shown
    return Record(
        record=record,
        state=State(state),
        fingerprint=fingerprint,
        fence=fence,
        age=max(0.0, age),
        lease_left=max(0.0, lease_left) if state == "running" else 0.0,
        expires_in=max(0.0, expires_in),
        answer=None if raw is None else decode_answer(raw),
        about=About(key=about[0], method=about[1], route=about[2], caller=about[3]),
    )
