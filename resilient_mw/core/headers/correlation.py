"""What names one request in the logs of several services: the trace id of `traceparent`, or `X-Request-Id`."""

from __future__ import annotations

import re
from typing import Final

# W3C Trace Context: a version above 00 may say more behind a dash; version ff and ids of zeros are forbidden.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


def parse_traceparent(value: str) -> str | None:
    """Return the trace id of a `traceparent` field, 32 lower-case hex digits; None outside the grammar."""
    text = value.strip(" \t")
    found = _TRACEPARENT.fullmatch(text)
    if found is None or (found[1] == "00" and found[3] is not None):
        return None
    return found[2]


def parse_request_id(value: str) -> str | None:
    """Return a request id of 1 to 128 visible ASCII characters; None for anything else."""
    text = value.strip(" \t")
    return text if _REQUEST_ID.fullmatch(text) else None
