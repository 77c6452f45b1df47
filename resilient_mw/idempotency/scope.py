"""The scope of a key: whose it is and for what. Hashed to a record key of one size, so that nobody's name is stored."""

from __future__ import annotations

import hashlib

KEY_DIGITS = 64
"""Hexadecimal digits of a record key, a caller key and a fingerprint."""


def record_key(key: str, *, caller: str, method: str, route: str) -> str:
    """Return the key of the record: 64 hexadecimal digits.

    The same key of another caller, method or route is another record.

    Args:
        key: as `parse_idempotency_key` returns it.
        caller: who sends it; empty for an API with a single tenant.
        method: the HTTP method, in capitals.
        route: the template, so that `/orders/{id}` is one route; the path where no route is known.
    """
    return _digest("record", key, caller, method, route)


def caller_key(caller: str) -> str:
    """Return what a caller's records are counted by: 64 hexadecimal digits, or nothing for nobody."""
    return _digest("caller", caller) if caller else ""


def _digest(*parts: str) -> str:
    # Each part with its length before it: no two lists of parts are the same text.
    whole = "".join([f"{len(part)}:{part}" for part in parts])
    if whole.isascii():  # nearly always, and then as many bytes as characters
        return hashlib.sha256(whole.encode()).hexdigest()
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return hashlib.sha256(b"".join([b"%d:%b" % (len(data), data) for data in encoded])).hexdigest()
