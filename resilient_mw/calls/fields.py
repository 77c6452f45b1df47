"""The header fields that a dependency's requests get, in the forms in which they are needed: made once, used by each call."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.key import KEY_FIELD, IdempotencyKeys
from resilient_mw.calls.ownership import RetryOwnership
from resilient_mw.core.headers.retry_owner import RetryOwner

Line = tuple[bytes, bytes, bytes]
"""A header field: name, name in lower case, value."""
Lines = tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class CallFields:
    """See the module.

    Attributes:
        deadline: the name of the field that tells what is left, as it is sent and in lower case; None: none is sent.
        key, key_name: the field of the idempotency key, as it is sent and in lower case.
        key_methods: methods whose requests get a key; none, if the dependency does not ask for keys.
        key_version: of the UUID.
        heard: the lower-case names of the fields that name who retries and count his attempts; None: not looked at.
        tells: whether the dependency is told who retries.
        told_names: the lower-case names of the fields that tell it.
        named: the lower-case names of all fields of a caller that mean something here.
        retry_if: the user's own rule about what may pass.
    """

    deadline: tuple[bytes, bytes] | None
    key: str
    key_name: bytes
    key_methods: Collection[str]
    key_version: int
    heard: tuple[str, str] | None
    tells: bool
    told_names: frozenset[bytes]
    named: frozenset[bytes]
    retry_if: Callable[[Any], bool] | None
    _owner: tuple[bytes, bytes, bytes]
    _attempt: tuple[bytes, bytes]
    _retries: bool
    _first: Lines

    def repeats(self, number: int) -> RetryOwner | None:
        """Return who retries a function that is called for the so manieth time: this service, if it does and says so."""
        if self.heard is None or not self._retries:
            return None
        return RetryOwner(self._owner[2].decode("ascii"), number)

    def owner_lines(self, above: RetryOwner | None, number: int) -> Lines:
        """Return what tells who retries: whoever does so above, unchanged, or this service, if it does.

        Args:
            above: who retries above this service; None: nobody.
            number: of the attempt of this service.
        """
        if above is not None:
            name, attempt = above.name.encode("ascii"), b"%d" % above.attempt
            return (*self._owner[:2], name), (*self._attempt, attempt)
        if number == 1 or not self._retries:
            return self._first
        return self._owner, (*self._attempt, b"%d" % number)


def prepare_fields(
    *,
    deadline_header: str | None,
    trusted: bool,
    retry: RetryPolicy | None,
    keys: IdempotencyKeys | None,
    ownership: RetryOwnership | None,
) -> CallFields:
    """Return the fields of one dependency."""
    key = KEY_FIELD if keys is None else keys.header
    said = ownership or RetryOwnership()
    heard = (said.owner_header.lower(), said.attempt_header.lower())
    retries = retry is not None and retry.attempts > 1
    owner = (*_both(said.owner_header), said.owner.encode("ascii"))
    attempt = _both(said.attempt_header)
    deadline = None if deadline_header is None else _both(deadline_header)
    told_names = frozenset({owner[1], attempt[1]})
    return CallFields(
        deadline=deadline,
        key=key,
        key_name=_both(key)[1],
        key_methods=frozenset() if keys is None else keys.methods,
        key_version=7 if keys is None else keys.version,
        heard=None if ownership is None else heard,
        tells=trusted and ownership is not None,
        told_names=told_names,
        named=told_names | {_both(key)[1], *(() if deadline is None else deadline[1:])},
        retry_if=None if retry is None else retry.retry_if,
        _owner=owner,
        _attempt=attempt,
        _retries=retries,
        _first=(owner, (*attempt, b"1")) if retries else (),
    )


def _both(name: str) -> tuple[bytes, bytes]:
    """Return the name of a field as it is sent, and in lower case."""
    return name.encode("ascii"), name.lower().encode("ascii")
