"""Scope, fingerprint and stored answers: what is the same, what is not, and what is never kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_mw.idempotency.answers import (
    NEVER_KEPT,
    Capture,
    StoredAnswer,
    decode_answer,
    encode_answer,
    kept_headers,
)
from resilient_mw.idempotency.fingerprint import Fingerprint
from resilient_mw.idempotency.scope import KEY_DIGITS, caller_key, record_key

TEXTS = st.text("ab:1é", max_size=3)
LINES = st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=6)


def fingerprint(
    *pieces: bytes, canonical_json: int = 0, target: str = "/x", headers: dict[str, list[str]] | None = None
) -> str:
    lines = headers or {}
    made = Fingerprint(target, lines, lambda name: lines[name], canonical_json)
    for piece in pieces:
        made.update(piece)
    return made.digest()


class TestScope:
    @given(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), st.tuples(TEXTS, TEXTS, TEXTS, TEXTS))
    def test_another_part_is_another_record(
        self, one: tuple[str, str, str, str], other: tuple[str, str, str, str]
    ) -> None:
        """However the parts are cut: (ab, c) is not (a, bc)."""
        keys = [record_key(each[0], caller=each[1], method=each[2], route=each[3]) for each in (one, other)]
        assert (keys[0] == keys[1]) is (one == other)
        assert {len(key) for key in keys} == {KEY_DIGITS}

    def test_the_cut_between_parts_counts(self) -> None:
        assert record_key("ab", caller="c", method="", route="") != record_key(
            "a", caller="bc", method="", route=""
        )

    def test_a_caller(self) -> None:
        assert caller_key("") == ""
        assert len(caller_key("alice")) == KEY_DIGITS
        assert caller_key("alice") != record_key("alice", caller="", method="", route="")


class TestFingerprint:
    @given(st.binary(max_size=40), st.integers(0, 40), st.sampled_from([0, 5, 100]))
    def test_the_cut_into_pieces_does_not_count(self, body: bytes, cut: int, canonical_json: int) -> None:
        pieces = body[:cut], body[cut:]
        assert fingerprint(*pieces, canonical_json=canonical_json) == fingerprint(
            body, canonical_json=canonical_json
        )

    def test_what_counts(self) -> None:
        """Body, path and query, and the chosen header fields, line by line."""
        made = [
            fingerprint(b"a"),
            fingerprint(b"b"),
            fingerprint(b""),
            fingerprint(b"a", target="/y"),
            fingerprint(b"a", headers={"x-a": []}),
            fingerprint(b"a", headers={"x-a": ["1"]}),
            fingerprint(b"a", headers={"x-a": ["1", "2"]}),
            fingerprint(b"a", headers={"x-a": ["12"]}),
            fingerprint(b"a", headers={"x-b": ["1"]}),
        ]
        assert len(set(made)) == len(made)

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (b'{"a": 1, "b": [1, 2]}', b'{"b":[1,2],"a":1}'),
            (b'"caf\\u00e9"', '"café"'.encode()),
            (b" [ ] ", b"[]"),
        ],
    )
    def test_json_by_its_meaning(self, one: bytes, other: bytes) -> None:
        assert fingerprint(one, canonical_json=1000) == fingerprint(other, canonical_json=1000)
        assert fingerprint(one) != fingerprint(other), "only where that is asked for"

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (b'{"a": 1}', b'{"a": 1.0}'),
            (b'{"a": 1}', b'{"a": "1"}'),
            (b"[1, 2]", b"[2, 1]"),
            (b"1e400", b"2e400"),
            (b"9007199254740993", b"9007199254740992"),
            (b'{"a": 1, "a": 2}', b'{"a": 2}'),
            (b"true", b"1"),
            (b"null", b'"null"'),
            (b"{} x", b"{}"),
            (b'{"a": 1}', b"json;"),
        ],
    )
    def test_json_of_another_meaning(self, one: bytes, other: bytes) -> None:
        assert fingerprint(one, canonical_json=1000) != fingerprint(other, canonical_json=1000)

    def test_large_json_is_compared_by_its_bytes(self) -> None:
        """Its buffer has a bound."""
        spaced, tight = b'{"a": 1}', b'{"a":1}'
        assert fingerprint(spaced, canonical_json=8) == fingerprint(tight, canonical_json=8)
        assert fingerprint(spaced, canonical_json=7) != fingerprint(tight, canonical_json=7)
        assert fingerprint(spaced, canonical_json=7) == fingerprint(
            *[bytes([each]) for each in spaced], canonical_json=7
        )

    def test_deep_json_is_compared_by_its_bytes(self) -> None:
        deep = b"[" * 100_000
        assert fingerprint(deep, canonical_json=1 << 20) != fingerprint(deep + b"]", canonical_json=1 << 20)

    def test_looking_twice(self) -> None:
        made = Fingerprint("/x", canonical_json=100)
        made.update(b"{}")
        first = made.digest()
        assert made.digest() == first
        made.update(b" ")
        assert made.digest() == first
        assert made.size == 3


class TestAnswers:
    @given(st.integers(100, 999), LINES, st.none() | st.binary(max_size=20))
    def test_they_come_back(self, status: int, lines: list[tuple[bytes, bytes]], body: bytes | None) -> None:
        answer = StoredAnswer(status, tuple(lines), body)
        assert decode_answer(encode_answer(answer)) == answer
        assert decode_answer(memoryview(encode_answer(answer))) == answer  # type: ignore[arg-type]  # as drivers give it

    @given(LINES, st.integers(0, 200))
    def test_half_of_one_is_none(self, lines: list[tuple[bytes, bytes]], cut: int) -> None:
        data = encode_answer(StoredAnswer(200, tuple(lines), None))
        if cut < len(data):
            with pytest.raises(ValueError, match="cut off"):
                decode_answer(data[:cut])

    def test_another_format(self) -> None:
        with pytest.raises(ValueError, match="format 2 is not known"):
            decode_answer(b"\x02" + encode_answer(StoredAnswer(200))[1:])

    def test_b89_what_is_kept_of_the_headers(self) -> None:
        """Order, repeats, commas, latin-1 and empty values stay; cookies, credentials and what was of that moment go."""
        kept = (
            (b"Link", b"</a>; rel=next, </b>; rel=prev"),
            (b"link", b"</c>"),
            (b"Vary", b"Accept, Origin"),
            (b"ETag", b'"x"'),
            (b"Location", b"/payments/1"),
            (b"Content-Encoding", b"gzip"),
            (b"X-Latin", b"caf\xe9"),
            (b"X-Empty", b""),
        )
        gone = [
            (b"Set-Cookie", b"a=1; expires=Wed, 21 Oct 2026 07:28:00 GMT"),
            (b"set-cookie", b"b=2"),
            (b"WWW-Authenticate", b"Basic"),
            (b"Authorization", b"Bearer x"),
            (b"Proxy-Authenticate", b"Basic"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Connection", b"close, X-Hop"),
            (b"X-Hop", b"1"),
            (b"Date", b"Wed, 21 Oct 2026 07:28:00 GMT"),
            (b"Server", b"x"),
            (b"Retry-After", b"3"),
            (b"X-Request-ID", b"1"),
            (b"traceparent", b"00-1-2-3"),
            (b"Content-Length", b"5"),
        ]
        mixed = [line for pair in itertools.zip_longest(kept, gone) for line in pair if line is not None]
        assert kept_headers(mixed) == kept
        assert kept_headers([(b"X-Own", b"1")], frozenset({b"x-own"})) == ()
        assert all(name == name.lower() for name in NEVER_KEPT)

    def test_the_headers_of_a_replay(self) -> None:
        replay = StoredAnswer(200, ((b"ETag", b"a"),), b"abc").replay_headers()
        assert replay == [(b"ETag", b"a"), (b"Content-Length", b"3"), (b"Idempotency-Replayed", b"true")]
        for status in (204, 304):
            names = [name for name, _ in StoredAnswer(status).replay_headers()]
            assert names == [b"Idempotency-Replayed"]

    def test_a_capture_keeps_what_fits(self) -> None:
        capture = Capture(4)
        with pytest.raises(RuntimeError):
            capture.answer()
        capture.head(500, [(b"a", b"b")])
        capture.head(200, [(b"c", b"d")])
        for piece in (b"ab", b"", b"cd"):
            capture.piece(piece)
        assert capture.answer() == StoredAnswer(200, ((b"c", b"d"),), b"abcd")
        capture.piece(b"e")
        capture.piece(b"f")
        assert capture.answer().body is None
