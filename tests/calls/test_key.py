"""Idempotency keys: two versions of UUID, and the form in which they are sent."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.calls.key import IdempotencyKeys, format_key, new_key, uuid4, uuid7
from resilient_mw.core.headers.idempotency_key import parse_idempotency_key

BITS = st.integers(0, (1 << 122) - 1)


@given(milliseconds=st.integers(0, (1 << 48) - 1), bits=BITS)
def test_version_7_is_time_and_74_random_bits(milliseconds: int, bits: int) -> None:
    made = uuid7((milliseconds + 0.5) / 1000, bits)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    if milliseconds < 1 << 40:  # beyond it a float holds no half of a millisecond
        assert made.int >> 80 == milliseconds
    assert made.int & (1 << 62) - 1 == bits & (1 << 62) - 1
    assert made.int >> 64 & 0xFFF == bits >> 62 & 0xFFF


def test_version_7_of_the_rfc() -> None:
    # RFC 9562 A.6
    bits = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    assert str(uuid7(0x017F22E279B0 / 1000, bits)) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"


@given(bits=BITS)
def test_version_4_holds_all_122_bits(bits: int) -> None:
    made = uuid4(bits)
    assert (made.version, made.variant) == (4, "specified in RFC 4122")
    high, middle, low = made.int >> 80, made.int >> 64 & 0xFFF, made.int & (1 << 62) - 1
    assert high << 74 | middle << 62 | low == bits


@pytest.mark.parametrize("version", [4, 7])
def test_keys_are_new_and_7_sorts_by_time(version: int) -> None:
    random = Random(1)
    keys = [new_key(version, 1_700_000_000 + second, random) for second in range(500)]
    assert len(set(keys)) == 500
    assert {UUID(key).version for key in keys} == {version}
    assert (keys == sorted(keys)) is (version == 7)


@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255))
def test_what_is_sent_is_read_as_the_same_key(key: str) -> None:
    if not key.strip(" "):
        with pytest.raises(ValueError, match="not only blanks"):
            format_key(key)
        return
    assert parse_idempotency_key([format_key(key)], strict=True) == key


def test_the_keys_of_the_vectors_can_be_sent() -> None:
    vectors = json.loads((Path(__file__).parent.parent / "vectors" / "idempotency_key.json").read_text())
    keys = {case["want"] for case in vectors["cases"] if isinstance(case["want"], str)}
    assert len(keys) > 5
    for key in keys:
        assert parse_idempotency_key([format_key(key)]) == key


@pytest.mark.parametrize("key", ["", "  ", "a" * 256, "a\nb", "a\n", "café", "a\0"])
def test_what_is_no_key_is_not_sent(key: str) -> None:
    with pytest.raises(ValueError, match="1 to 255 printable ASCII"):
        format_key(key)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"header": "a b"}, "header"),
        ({"header": 3}, "header"),
        ({"methods": "POST"}, "methods"),
        ({"methods": ["PO ST"]}, "methods"),
        ({"version": 1}, "version"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=f"IdempotencyKeys.{text}"):
        IdempotencyKeys(**fields)  # type: ignore[arg-type]
