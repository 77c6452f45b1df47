"""Run the conformance vectors: every case as given and as its UTF-8 bytes look when decoded as latin-1.

The vectors lie in tests/vectors; the 'about' text of each file is its specification.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.core.headers import (
    WirePriority,
    parse_deadline,
    parse_idempotency_key,
    parse_priority,
    parse_request_start,
    parse_retry_after,
)

VECTORS = Path(__file__).parents[2] / "vectors"
SHARED_VECTORS = Path(__file__).parents[3].parent / "shared" / "vectors"
NAMES = (
    "deadline_headers.json",
    "idempotency_key.json",
    "priority_header.json",
    "request_start.json",
    "retry_after.json",
)


def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / name).read_text(encoding="utf-8"))
    return document


def field_lines(case: dict[str, Any]) -> list[str]:
    value = case["in"]
    return value if isinstance(value, list) else [value]


def cases(name: str) -> list[Any]:
    """Give (field lines, case) twice for every case: as given, and as servers hand non-ASCII over."""
    params: list[Any] = []
    for number, case in enumerate(load(name)["cases"]):
        given = field_lines(case)
        decoded = [line.encode("utf-8").decode("latin-1") for line in given]
        label = f"{number}-{case.get('format', '')}-{case['why'][:40]}"
        params += [
            pytest.param(given, case, id=f"{label}-given"),
            pytest.param(decoded, case, id=f"{label}-latin1"),
        ]
    return params


@pytest.mark.parametrize(("values", "case"), cases("deadline_headers.json"))
def test_deadline_headers(values: list[str], case: dict[str, Any]) -> None:
    seconds = parse_deadline(case["format"], values)
    if case["want"] == "invalid":
        assert seconds is None
        return
    assert isinstance(seconds, float)
    assert seconds == pytest.approx(case["want"] / 1000, rel=1e-15, abs=0)
    if "ns" in case:
        assert seconds == case["ns"] / 10**9  # the double nearest to the exact value


@pytest.mark.parametrize(("values", "case"), cases("retry_after.json"))
def test_retry_after(values: list[str], case: dict[str, Any]) -> None:
    now = float(load("retry_after.json")["now_epoch"])
    seconds = parse_retry_after(values, now)
    assert seconds == (None if case["want"] == "invalid" else case["want"])


@pytest.mark.parametrize(("values", "case"), cases("request_start.json"))
def test_request_start(values: list[str], case: dict[str, Any]) -> None:
    document = load("request_start.json")
    seconds = parse_request_start(
        values,
        document["now_epoch_ms"] * 1_000_000,
        future_skew=document["future_skew_ms"] / 1000,
        max_age=document["max_age_ms"] / 1000,
    )
    if case["want"] == "ignored":
        assert seconds is None
        return
    assert seconds is not None
    assert seconds * 1000 == pytest.approx(case["want"], rel=0, abs=0.001)


@pytest.mark.parametrize(("values", "case"), cases("priority_header.json"))
def test_priority(values: list[str], case: dict[str, Any]) -> None:
    assert parse_priority(values) == WirePriority(urgency=case["want"]["u"], incremental=case["want"]["i"])


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(("values", "case"), cases("idempotency_key.json"))
def test_idempotency_key(values: list[str], case: dict[str, Any], *, strict: bool) -> None:
    want = case["want_strict" if strict else "want"]
    assert parse_idempotency_key(values, strict=strict) == (None if want == 400 else want)


def test_every_vector_file_is_run() -> None:
    assert sorted(path.name for path in VECTORS.glob("*.json")) == sorted(NAMES)


@pytest.mark.skipif(not SHARED_VECTORS.is_dir(), reason="no shared vectors beside this checkout")
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_verbatim_copies(name: str) -> None:
    assert (VECTORS / name).read_bytes() == (SHARED_VECTORS / name).read_bytes()
