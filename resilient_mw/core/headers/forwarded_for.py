"""X-Forwarded-For: who a proxy says that it speaks for.

Each proxy adds the address of its own peer at the right, so only what stands at the right was written by a proxy that
is known; what stands at the left was written by whoever sent the request, and says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_MAX_LENGTH: Final = 64
"""Characters of one address, brackets and port included: IPv6 takes 45."""


def parse_forwarded_for(values: Sequence[str], hops: int) -> str | None:
    """Read the address that the outermost of `hops` proxies has added: the `hops`-th one from the right.

    Args:
        values: One entry per field line in their order, latin-1 decoded. Several lines are one list.
        hops: How many proxies there are, 1 or more.

    Returns:
        An IPv4 or IPv6 address without brackets and port; None if there are fewer, or at that place there is none.
    """
    seen = 0
    for value in reversed(values):
        parts = value.rsplit(",", hops - seen)
        # With as many commas as were asked for, the first part is the rest of the line, which nobody looks at.
        whole = parts if len(parts) <= hops - seen else parts[1:]
        if seen + len(whole) >= hops:
            return _address(whole[0])
        seen += len(whole)
    return None


def _address(text: str) -> str | None:
    text = text.strip(" \t")
    if len(text) > _MAX_LENGTH or "%" in text:
        return None
    if text.startswith("["):
        text, bracket, port = text[1:].partition("]")
        if not bracket or ":" not in text or not _is_port(port):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    from ipaddress import ip_address  # loaded only by those who name proxies

    try:
        ip_address(text)
    except ValueError:
        return None
    return text


def _is_port(text: str) -> bool:
    """Return whether nothing, or a colon and a port, stands behind an address."""
    digits = text[1:]
    return not text or (text[0] == ":" and 1 <= len(digits) <= 5 and digits.isascii() and digits.isdigit())
