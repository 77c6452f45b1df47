"""Which media type a caller would rather read, and what names his request: whole grammars, against slower readers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.core.headers.accept import parse_accept, prefers_plain_text
from resilient_mw.core.headers.correlation import parse_request_id, parse_traceparent

any_text = st.text(st.characters(max_codepoint=0x17F)) | st.text(
    st.sampled_from('\t\n\r ",;=*/.+\\qQ01259texplainajcohrs\xe9')
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text/plain", True),
        ("TEXT/Plain", True),
        ("text/*", True),
        ("text/plain;charset=utf-8", True),
        ('text/plain ; Charset="us-ascii" ; Q=0.1', True),
        (",, text/plain ,", True),
        ("text/plain, */*;q=0.8", True),
        ("text/plain;q=1.000, application/problem+json;q=0.999", True),
        ("text/plain, application/problem+json;q=0", True),
        ("*/*, application/*;q=0.5", True),
        ("*/*, application/problem+json;q=0", True),
        ("text/plain;q=0.5;level=1", True),
        ("text/plain;;q=0.5;", True),
        ("text/plain;q=0., text/plain;q=1.", True),
        # the document wins, and so it does where both are the same to the caller
        ("", False),
        (" ", False),
        (",", False),
        ("*/*", False),
        ("application/json, text/plain, */*", False),
        ("application/json, text/plain;q=0.9", False),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8", False),
        ("text/html", False),
        ("image/png", False),
        ("text/plain;q=0", False),
        ("text/*, text/plain;q=0", False),
        ("text/plain, application/problem+json", False),
        ("text/plain;q=0.5, application/*", False),
        ("text/plain;format=flowed", False),
        ("text/plain;format=flowed, text/plain;q=0.1, */*;q=0.2", False),
        # outside the grammar, so as if absent
        ("text/plain, *", False),
        ("text", False),
        ("text/", False),
        ("/plain", False),
        ("text/plain text/html", False),
        ("text/plain;q", False),
        ("text/plain;q=", False),
        ("text/plain;q=1.1", False),
        ("text/plain;q=0.1234", False),
        ("text/plain;q=.5", False),
        ("text/plain;q=-1", False),
        ("text/plain;q=nan", False),
        ('text/plain;q="1"', False),
        ("text/plain;q=1;q=1", False),
        ("text/plain;a=b c", False),
        ('text/plain;charset="utf-8', False),
        ("text/plain;q = 1", False),
        ("text/pl\xe4in", False),
        ("text/plain\n", False),
        ("text/plain;q=\u0661", False),
        ("text/plain" + " " * 1015, False),
    ],
)
def test_who_gets_plain_text(value: str, text: bool) -> None:
    assert prefers_plain_text(value) is text


def test_the_longest_field_that_counts() -> None:
    assert prefers_plain_text("text/plain" + "," * 1014)
    assert not prefers_plain_text("text/plain" + "," * 1015)


@given(any_text)
def test_any_text_is_read_or_left(value: str) -> None:
    ranges = parse_accept(value)
    assert prefers_plain_text(value) in {True, False}
    if ranges is None:
        assert not prefers_plain_text(value)
        return
    for kind, subtype, _, quality in ranges:
        assert f"{kind}/{subtype}" in value.lower()
        assert 0 <= quality <= 1
    # A field that is read can be split and put together again.
    assert parse_accept(f"{value},{value}") == ranges + ranges


TYPES = [
    "application/problem+json",
    "application/json",
    "application/*",
    "*/*",
    "text/plain",
    "text/*",
    "image/png",
]
blanks = st.text(" \t", max_size=2)
elements = st.tuples(
    st.sampled_from(TYPES),
    st.sampled_from(["", "charset=x", 'charset="a,b;c"', "v=1"]),
    st.integers(0, 1000) | st.none(),
)


@given(st.lists(elements, max_size=6), st.data())
def test_what_is_written_by_the_grammar_is_read_as_it_was_meant(
    wanted: list[tuple[str, str, int | None]], data: st.DataObject
) -> None:
    written, read = [], []
    for kind, parameter, quality in wanted:
        shown = kind if data.draw(st.booleans()) else kind.upper()
        if parameter:
            shown += f"{data.draw(blanks)};{data.draw(blanks)}{parameter}"
        if quality is not None:
            shown += f"{data.draw(blanks)};{data.draw(blanks)}{data.draw(st.sampled_from('qQ'))}={quality / 1000:.3f}"
        written.append(data.draw(blanks) + shown + data.draw(blanks))
        read.append((*kind.split("/"), parameter == "v=1", 1.0 if quality is None else quality / 1000))
    assert parse_accept(",".join(written)) == read
    assert prefers_plain_text(",".join(written)) is (
        _by_hand(wanted, TYPES[4:6]) > _by_hand(wanted, TYPES[:3])
    )


def _by_hand(wanted: list[tuple[str, str, int | None]], names: list[str]) -> int:
    """Return the quality in thousandths: names from the most to the least exact, anything at last."""
    for name in [*names, "*/*"]:
        qualities = [
            1000 if quality is None else quality
            for kind, parameter, quality in wanted
            if kind == name and parameter != "v=1"
        ]
        if qualities:
            return max(qualities)
    return 0


# -- traceparent -------------------------------------------------------------------------------------------------------

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    "value", [VALID, f" {VALID}\t", f"cc-{TRACE}-{PARENT}-01", f"01-{TRACE}-{PARENT}-00-more, or less"]
)
def test_the_trace_id_is_found(value: str) -> None:
    assert parse_traceparent(value) == TRACE


@pytest.mark.parametrize(
    "value",
    [
        "",
        TRACE,
        VALID.upper(),
        f"{VALID}-",
        f"{VALID}-more",
        f"{VALID},{VALID}",
        f"{VALID}\n",
        f"ff-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01more",
        f"01-{TRACE}-{PARENT}-01,{VALID}",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0",
        f"00-{TRACE}-{PARENT}-0g",
        f"0-{TRACE}-{PARENT}-01",
        f"00_{TRACE}-{PARENT}-01",
        f"00-{TRACE[:-1]}\u0661-{PARENT}-01",
    ],
)
def test_what_is_no_traceparent_has_no_trace_id(value: str) -> None:
    assert parse_traceparent(value) is None


hexes = st.text("0123456789abcdef", min_size=0, max_size=34)


@given(st.tuples(hexes, hexes, hexes, hexes).map("-".join) | any_text)
def test_a_trace_id_is_32_hex_digits_or_none(value: str) -> None:
    found = parse_traceparent(value)
    assert found is None or (re.fullmatch("[0-9a-f]{32}", found) and found.strip("0") and found in value)


@given(st.text(st.characters(max_codepoint=0x17F), max_size=140))
def test_a_request_id_is_visible_ascii_of_bounded_length_or_none(value: str) -> None:
    text = value.strip(" \t")
    valid = 1 <= len(text) <= 128 and all(0x21 <= ord(each) <= 0x7E for each in text)
    assert parse_request_id(value) == (text if valid else None)


def test_the_longest_request_id() -> None:
    assert parse_request_id("x" * 128) == "x" * 128
    assert parse_request_id("x" * 129) is None
