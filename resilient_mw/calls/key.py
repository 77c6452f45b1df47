"""The idempotency key of a call: one for all its attempts, so that the dependency recognises a repeat."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from resilient_mw.calls.config import require_methods
from resilient_mw.core.checks import require_header_name

if TYPE_CHECKING:
    from random import Random

KEY_FIELD = "Idempotency-Key"
_TEXT = re.compile(r"[\x20-\x7e]{1,255}")
_ONES_12, _ONES_48, _ONES_62 = (1 << 12) - 1, (1 << 48) - 1, (1 << 62) - 1
UUID4 = 4
_VERSIONS = (UUID4, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKeys:
    """Which calls get an idempotency key, and of what form.

    By default POST and PATCH get one in `Idempotency-Key`, a UUID of version 7, and may then be repeated.

    A request that carries the field already keeps it. So does one whose caller gives a key in
    `extensions={"idempotency_key": ...}`. In a job the key comes from the job's record, the same at every delivery.

    Attributes:
        header: the field.
        methods: the methods that get a key.
        version: of the UUID: 7 begins with the time, so that keys of one hour lie together in the dependency's index; 4
            tells nothing about when it was made. In a job, version 8 instead of 7, a hash.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    header: str = KEY_FIELD
    methods: Collection[str] = ("POST", "PATCH")
    version: Literal[4, 7] = 7

    def __post_init__(self) -> None:
        require_header_name("IdempotencyKeys.header", self.header)
        require_methods("IdempotencyKeys.methods", self.methods)
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))
        if self.version not in _VERSIONS:
            raise ValueError(f"IdempotencyKeys.version={self.version!r} is not allowed: it must be 4 or 7")


def new_key(version: int, seconds: float, random: Random) -> str:
    """Return a new key.

    Args:
        version: of the UUID, 4 or 7.
        seconds: since 1970.
        random: source of randomness; the system's, so that processes do not make the same keys.
    """
    bits = random.getrandbits(122)
    return str(uuid4(bits) if version == UUID4 else uuid7(seconds, bits))


def uuid4(bits: int) -> UUID:
    """Return a UUID of 122 random bits (RFC 9562 5.4)."""
    return UUID(
        int=(bits >> 74 & _ONES_48) << 80
        | 4 << 76
        | (bits >> 62 & _ONES_12) << 64
        | 2 << 62
        | bits & _ONES_62
    )


def uuid8(bits: int) -> UUID:
    """Return a UUID of 122 bits of our own (RFC 9562 5.8)."""
    return UUID(int=uuid4(bits).int & ~(15 << 76) | 8 << 76)


def uuid7(seconds: float, bits: int) -> UUID:
    """Return a UUID of 48 bits of milliseconds since 1970 and 74 random bits (RFC 9562 5.7)."""
    time = int(seconds * 1000) & _ONES_48
    return UUID(int=time << 80 | 7 << 76 | (bits >> 62 & _ONES_12) << 64 | 2 << 62 | bits & _ONES_62)


def derived_key(version: int, *parts: str) -> str:
    """Return the key that belongs to some texts: the same for the same ones, in any process, and no other.

    Args:
        version: 4: in the form of a UUID of version 4, for a dependency that takes no other; 7: of version 8, a hash (RFC 9562
            5.8), since no time is known.
        parts: the texts.
    """
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(b"%d:" % len(data))  # no two lists of texts are one
        hashed.update(data)
    bits = int.from_bytes(hashed.digest()) >> 134
    return str(uuid4(bits) if version == UUID4 else uuid8(bits))


def format_key(key: str) -> str:
    """Return a key as the value of its field: a structured string, which the draft asks for.

    Raises:
        ValueError: it is not 1 to 255 printable ASCII characters, or blanks only.
    """
    if _TEXT.fullmatch(key) is None or not key.strip(" "):
        raise ValueError(
            f"the idempotency key {key!r} is not allowed: it must be 1 to 255 printable ASCII characters, not only blanks"
        )
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
