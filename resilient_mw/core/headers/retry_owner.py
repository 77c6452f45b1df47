"""Who retries: what a layer that may retry says to the ones below, so that attempts do not multiply.

`X-Retry-Owner` names it, `X-Retry-Attempt` counts its attempts from 1. `x-envoy-attempt-count` (from 1) and
`grpc-previous-rpc-attempts` (absent, then from 1) say the same once a second attempt has been made; a first one of Envoy
is counted whether or not a second may follow, and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

ENVOY_ATTEMPTS: Final = "x-envoy-attempt-count"
GRPC_ATTEMPTS: Final = "grpc-previous-rpc-attempts"
UNKNOWN: Final = "unknown"
"""Stands for an owner whose name cannot be passed on."""

OWNER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z:/-]{1,64}")
_MOST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class RetryOwner:
    """The layer that retries.

    Attributes:
        name: how it calls itself.
        attempt: the number of its attempt, from 1.
    """

    name: str
    attempt: int = 1


def parse_retry_owner(
    values: Callable[[str], Sequence[str]], owner_field: str, attempt_field: str
) -> RetryOwner | None:
    """Read who retries.

    Whatever stands in the owner's field, somebody says that he retries: a name that cannot be passed on becomes
    `unknown`, an attempt that is no number becomes 1. Anybody can be believed, because all he can do is to have us
    retry less on his own behalf.

    Args:
        values: returns the lines of a field of the request, by its lower-case name, latin-1 decoded.
        owner_field, attempt_field: lower-case names.

    Returns:
        The owner; None: nobody above says that he retries.
    """
    owners = values(owner_field)
    if owners:
        name = owners[0].strip(" \t")
        known = len(owners) == 1 and OWNER_NAME.fullmatch(name) is not None
        return RetryOwner(name if known else UNKNOWN, max(1, _number(values(attempt_field))))
    attempt = _number(values(ENVOY_ATTEMPTS))
    if attempt >= 2:
        return RetryOwner("envoy", attempt)
    before = _number(values(GRPC_ATTEMPTS))
    return RetryOwner("grpc", before + 1) if before >= 1 else None


def _number(lines: Sequence[str]) -> int:
    """Return a small number; 0 if the field holds none."""
    text = lines[0].strip(" \t") if len(lines) == 1 else ""
    return min(int(text), _MOST) if text.isascii() and text.isdigit() and len(text) <= 10 else 0
