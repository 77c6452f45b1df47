"""Who retries, and answers that say that a retry is useless."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from resilient_mw.core.headers.no_retry import parse_pushback
from resilient_mw.core.headers.retry_owner import RetryOwner, parse_retry_owner

OWNER, ATTEMPT = "x-retry-owner", "x-retry-attempt"
ENVOY, GRPC = "x-envoy-attempt-count", "grpc-previous-rpc-attempts"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({OWNER: ["edge"]}, RetryOwner("edge", 1)),
        ({OWNER: [" edge\t"], ATTEMPT: [" 3 "]}, RetryOwner("edge", 3)),
        ({OWNER: ["edge"], ATTEMPT: ["-3"]}, RetryOwner("edge", 1)),
        ({OWNER: ["edge"], ATTEMPT: ["0"]}, RetryOwner("edge", 1)),
        ({OWNER: ["edge"], ATTEMPT: ["٣"]}, RetryOwner("edge", 1)),
        ({OWNER: ["edge"], ATTEMPT: ["9" * 10]}, RetryOwner("edge", 1_000_000)),
        ({OWNER: ["edge"], ATTEMPT: ["9" * 5000]}, RetryOwner("edge", 1)),
        ({OWNER: ["edge"], ATTEMPT: ["2", "3"]}, RetryOwner("edge", 1)),
        ({ATTEMPT: ["3"]}, None),
        # Whatever is said, somebody says that he retries; what cannot be passed on is not.
        ({OWNER: [""]}, RetryOwner("unknown", 1)),
        ({OWNER: ["a b"]}, RetryOwner("unknown", 1)),
        ({OWNER: ["a\r\nX-Evil: 1"]}, RetryOwner("unknown", 1)),
        ({OWNER: ["edge\n"]}, RetryOwner("unknown", 1)),
        ({OWNER: ["é"]}, RetryOwner("unknown", 1)),
        ({OWNER: ["a" * 64]}, RetryOwner("a" * 64, 1)),
        ({OWNER: ["a" * 65]}, RetryOwner("unknown", 1)),
        ({OWNER: ["edge", "gateway"], ATTEMPT: ["2"]}, RetryOwner("unknown", 2)),
        # Envoy counts a first attempt whether or not a second may follow.
        ({ENVOY: ["1"]}, None),
        ({ENVOY: ["2"]}, RetryOwner("envoy", 2)),
        ({ENVOY: ["x"]}, None),
        ({GRPC: ["0"]}, None),
        ({GRPC: ["1"]}, RetryOwner("grpc", 2)),
        ({GRPC: ["-1"]}, None),
        ({ENVOY: ["3"], GRPC: ["1"]}, RetryOwner("envoy", 3)),
        ({OWNER: ["edge"], ENVOY: ["3"]}, RetryOwner("edge", 1)),
    ],
)
def test_who_retries(fields: dict[str, list[str]], expected: RetryOwner | None) -> None:
    def values(name: str) -> Sequence[str]:
        return fields.get(name, ())

    assert parse_retry_owner(values, OWNER, ATTEMPT) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["0"], 0.0),
        (["250"], 0.25),
        ([" 250 "], 0.25),
        (["-1"], None),
        (["-0"], None),
        (["soon"], None),
        ([""], None),
        (["1.5"], None),
        (["250", "250"], None),
        (["9" * 11], None),
        (["٣"], None),
    ],
)
def test_pushback(values: list[str], expected: float | None) -> None:
    assert parse_pushback(values) == expected
