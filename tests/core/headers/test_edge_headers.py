"""Content-Length and X-Forwarded-For: what is read, and that nothing else is."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.core.headers.forwarded_for import parse_forwarded_for


@pytest.mark.parametrize(
    ("value", "size"),
    [
        ("0", 0), ("000", 0), ("5", 5), (" 5\t", 5), ("0005", 5), ("9" * 18, 10**18 - 1), ("9" * 19, 10**18),
        ("1" + "0" * 5_000, 10**18), ("0" * 5_000 + "7", 7),
    ],
)  # fmt: skip
def test_a_content_length_is_read(value: str, size: int) -> None:
    assert parse_content_length([value]) == size


@pytest.mark.parametrize(
    "value", ["", "-1", "+5", "1_000", "5.0", "5, 5", "5,5", "0x10", "²", "٥", "5\n", "\xa05", "a"]
)
def test_anything_else_is_no_content_length(value: str) -> None:
    assert parse_content_length([value]) is None


def test_a_content_length_that_stands_twice_is_none() -> None:
    assert parse_content_length(["5", "5"]) is None
    assert parse_content_length([]) is None


@pytest.mark.parametrize(
    ("values", "hops", "peer"),
    [
        (["203.0.113.9"], 1, "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9"], 1, "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9, 10.0.0.1"], 2, "203.0.113.9"),
        (["6.6.6.6, 203.0.113.9", "10.0.0.1"], 2, "203.0.113.9"),
        (["6.6.6.6", "203.0.113.9", "10.0.0.1"], 2, "203.0.113.9"),
        (["203.0.113.9", "10.0.0.1,10.0.0.2"], 3, "203.0.113.9"),
        (["nonsense,\t203.0.113.9 "], 1, "203.0.113.9"),
        (["203.0.113.9:4711"], 1, "203.0.113.9"),
        (["2001:db8::1"], 1, "2001:db8::1"),
        (["[2001:db8::1]"], 1, "2001:db8::1"),
        (["[2001:db8::1]:443"], 1, "2001:db8::1"),
    ],
)
def test_the_address_that_the_outermost_proxy_added_is_read(values: list[str], hops: int, peer: str) -> None:
    assert parse_forwarded_for(values, hops) == peer


@pytest.mark.parametrize(
    ("values", "hops"),
    [
        ([], 1), ([""], 1), (["203.0.113.9"], 2), (["203.0.113.9", "10.0.0.1"], 3), (["203.0.113.9,"], 1),
        (["unknown"], 1), (["_hidden"], 1), (["203.0.113"], 1), (["203.0.113.9:"], 1), (["203.0.113.9:x"], 1),
        (["203.0.113.9:123456"], 1), (["[203.0.113.9]"], 1), (["[2001:db8::1"], 1), (["[2001:db8::1]x"], 1),
        (["[2001:db8::1]:"], 1), (["fe80::1%eth0"], 1), (['"203.0.113.9"'], 1), (["10.0.0.1, bad, 10.0.0.2"], 2),
        (["1" * 70], 1), (["203.0.113.9\x00"], 1), (["１０.0.0.1"], 1),
    ],
)  # fmt: skip
def test_what_is_no_address_at_that_place_is_none(values: list[str], hops: int) -> None:
    assert parse_forwarded_for(values, hops) is None


@given(st.lists(st.text(alphabet=st.characters(max_codepoint=255)), max_size=4), st.integers(1, 5))
def test_no_text_makes_a_reader_raise(values: list[str], hops: int) -> None:
    peer = parse_forwarded_for(values, hops)
    assert peer is None or str(ip_address(peer))
    size = parse_content_length(values)
    assert size is None or 0 <= size <= 10**18


@given(st.lists(st.ip_addresses().map(str), min_size=1, max_size=8), st.data())
def test_it_is_always_the_one_at_that_place_from_the_right_however_the_lines_are_cut(
    peers: list[str], data: st.DataObject
) -> None:
    hops = data.draw(st.integers(1, len(peers)))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(peers) - 1)))))
    lines = [
        ", ".join(peers[begin:end])
        for begin, end in zip([0, *cuts], [*cuts, len(peers)], strict=True)
        if begin < end
    ]
    assert parse_forwarded_for(lines, hops) == peers[-hops]
    assert parse_forwarded_for(["6.6.6.6", *lines], hops) == peers[-hops], "whatever the caller wrote first"
