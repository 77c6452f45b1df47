"""The transitions of idempotency keys as calls of one Lua script."""

from __future__ import annotations

import hashlib
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
from resilient_mw_integrations._store_questions import Question

SCRIPT: Final = files("resilient_mw_integrations").joinpath("redis.lua").read_bytes()
SHA: Final = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest()  # the name that the server gives it
PREFIX: Final = "resilient-mw"
_PREFIX: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_PAGE: Final = 500
"""Names that one call for the list looks at: it keeps everybody else waiting."""
_SWEPT: Final = 1_000
"""Records that one call takes away."""


class RedisQuestions:
    """Questions to Redis: a payload is the keys of a call and its arguments.

    Args:
        prefix: of all keys, and their hash tag.

    Raises:
        ValueError: it is not made of letters, digits and `._:-`.
    """

    def __init__(self, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"prefix must be up to 100 letters, digits and any of ._:-, got {prefix!r}")
        self._records = f"{{{prefix}}}:record:"
        self._callers = f"{{{prefix}}}:caller:"
        self._common = tuple(f"{{{prefix}}}:{name}" for name in ("keys", "expiry", "fence"))

    def begin(self, claim: Claim) -> Question[Outcome]:
        """As of `Questions`."""
        about = claim.about
        more = (self._callers + claim.caller,) if claim.caller else ()
        facts = (
            claim.token,
            _ms(claim.lease),
            _ms(claim.keep),
            int(claim.take_unknown),
            claim.fingerprint or "",
            claim.most,
            about.key,
            about.method,
            about.route,
            about.caller,
        )

        def read(answer: Any) -> Outcome:
            match answer:
                case [b"begun", fence, taken]:
                    return Begun(int(fence), taken == b"1")
                case [b"full", left]:
                    return Full(max(0.0, int(left) / 1000))
            _, shown, raw = answer
            return Found(_record(claim.record, shown, raw))

        return self._question("begin", claim.record, facts, read, more)

    def renew(self, claim: Claim) -> Question[bool]:
        """As of `Questions`."""
        return self._question("renew", claim.record, (claim.token, _ms(claim.lease), _ms(claim.keep)), bool)

    def complete(self, claim: Claim, answer: StoredAnswer, fingerprint: str | None) -> Question[bool]:
        """As of `Questions`."""
        facts = (claim.token, _ms(claim.keep), fingerprint or "", encode_answer(answer))
        return self._question("complete", claim.record, facts, bool)

    def abandon(self, claim: Claim, ending: Ending) -> Question[bool]:
        """As of `Questions`."""
        return self._question("abandon", claim.record, (claim.token, _ms(claim.keep), ending), bool)

    def look(self, record: str) -> Question[Record | None]:
        """As of `Questions`."""
        return self._question("look", record, (), lambda answer: _record(record, *answer) if answer else None)

    def release(self, record: str, running: bool) -> Question[bool]:
        """As of `Questions`."""
        return self._question("release", record, (int(running),), bool)

    def records(self, state: State | None, after: str, limit: int) -> Question[Sequence[Record]]:
        """As of `Questions`. One call for each five hundred names, so that others get their turn between."""
        found: list[Record] = []

        def ask(after: str) -> Question[Sequence[Record]]:
            wanted = "" if state is None else state.value
            facts = (_PAGE, self._records, wanted, limit - len(found))
            return self._question("records", after, facts, read)

        def read(answer: Any) -> Sequence[Record] | Question[Sequence[Record]]:
            last, page = answer
            found.extend(_record(name.decode(), shown, None) for name, shown in page)
            return found if not last or len(found) >= limit else ask(last.decode())

        return ask(after)

    def purge(self, limit: int) -> Question[int]:
        """As of `Questions`. The server has removed the records already: this is about what pointed to them."""
        removed = 0

        def ask() -> Question[int]:
            return self._question("purge", min(_SWEPT, limit - removed), (), read)

        def read(answer: Any) -> int | Question[int]:
            nonlocal removed
            removed += int(answer)
            return ask() if int(answer) == _SWEPT and removed < limit else removed

        return ask()

    def create(self) -> Question[None]:
        """As of `Questions`: nothing is missing, a server that is asked for the first time is handed the script."""
        return self.ping()

    def ping(self) -> Question[None]:
        """As of `Questions`."""
        return self._question("look", "ping", (), lambda _: None)

    def _question(
        self, what: str, record: str | int, facts: tuple[Any, ...], read: Any, more: tuple[str, ...] = ()
    ) -> Question[Any]:
        keys = (f"{self._records}{record}", *self._common, *more)
        return Question((keys, (what, record, *facts)), read)


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _record(record: str, shown: Sequence[bytes], raw: bytes | None) -> Record:
    state, age, lease_left, expires_in, fingerprint, fence, *about = (each.decode() for each in shown)
    return Record(
        record=record,
        state=State(state),
        fingerprint=fingerprint or None,
        fence=int(fence),
        age=max(0.0, int(age) / 1000),
        lease_left=max(0.0, int(lease_left) / 1000) if state == "running" else 0.0,
        expires_in=max(0.0, int(expires_in) / 1000),
        answer=None if raw is None else decode_answer(raw),
        about=About(key=about[0], method=about[1], route=about[2], caller=about[3]),
    )
