"""Names of hosts and their addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any


def is_address(host: str) -> bool:
    """Return whether a host is given as an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def unique(found: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return each address once, in the order in which they were found."""
    return list(dict.fromkeys(entry[4][0] for entry in found))


def unknown(host: str, error: Exception) -> str:
    """Return the message about a name that was not resolved."""
    return f"the name {host!r} was not resolved: {error}"
