"""Idempotency-Key: the name that a caller gives to one piece of work.

The draft (draft-ietf-httpapi-idempotency-key-header) asks for a structured-field String. Nearly everybody
sends the bare text instead, and a bare UUID is no structured field of any one type, so the lenient reading
has a grammar of its own. Quoted and bare forms of the same text are the same key.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from resilient_mw.core.headers.structured import parse_item

_MAX_KEY_LENGTH: Final = 255
# Every character of a key may be escaped; the rest is for parameters.
_MAX_FIELD_LENGTH: Final = 1024
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~+/=:\-]*+")


def parse_idempotency_key(values: Sequence[str], *, strict: bool = False) -> str | None:
    """Read Idempotency-Key.

    Args:
        values: One entry per field line, latin-1 decoded.
        strict: Accept the draft's quoted form only. By default bare keys of letters, digits and `._~+/=:-`,
            beginning with a letter or digit, are accepted, too.

    Returns:
        The key, 1 to 255 characters, without quotes and escapes; None if the field is absent, repeated or
        invalid, which includes keys of blanks only.
    """
    if len(values) != 1:
        return None
    text = values[0].strip(" \t")
    if len(text) > _MAX_FIELD_LENGTH:
        return None
    if text.startswith('"'):
        item = parse_item(text)
        key = item if isinstance(item, str) else ""
    elif not strict and _BARE_KEY.fullmatch(text):
        key = text
    else:
        return None
    return key if len(key) <= _MAX_KEY_LENGTH and key.strip(" ") else None
