"""B32: random sequences of heads, messages, disconnects and cancels in virtual time, every invariant checked after each.

`python -m tests.asgi.fuzz SEED` plays one of them again; `make prove ARGS=fuzz` runs 100,000.
"""

from __future__ import annotations

import os

import pytest

from tests.asgi.fuzz import run

BLOCKS = 3
SEQUENCES = int(os.environ.get("FUZZ_SEQUENCES", "1500")) // BLOCKS
FIRST = int(os.environ.get("FUZZ_FIRST", "0"))


@pytest.mark.parametrize("block", range(BLOCKS))
def test_b32_every_invariant_holds_after_every_sequence(block: int) -> None:
    seen = run(FIRST + block * SEQUENCES, SEQUENCES)
    # It is no test of what never happens in it.
    assert {
        "status 200", "status 503", "status 504", "status None", "queue_full", "queue_timeout", "pushed_out",
        "expired_on_arrival", "expired_in_queue", "insufficient_budget", "exempt_limit", "draining",
        "left while waiting", "late", "cancelled by the server", "ended by itself", "ended by deadline",
        "ended by client_disconnect", "ended by shutdown", "stream_limit", "streams", "sections", "reloaded",
    } <= {name for name, count in seen.items() if count}  # fmt: skip
