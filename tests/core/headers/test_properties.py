"""Properties of the header readers: total, linear, inverse to the writers, equal to independent readers."""

from __future__ import annotations

import calendar
import itertools
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import http_sf
import pytest
import retryheader
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st

from resilient_mw.core.headers import (
    DEADLINE_PARSERS,
    WirePriority,
    format_retry_after,
    format_timeout_ms,
    parse_deadline,
    parse_idempotency_key,
    parse_priority,
    parse_request_start,
    parse_retry_after,
)
from resilient_mw.core.headers.http_date import parse_http_date
from resilient_mw.core.headers.structured import SfType, SfValue, parse_dictionary, parse_item

NOW = 1_795_953_600
NOW_NS = NOW * 10**9

# Every code point, lone surrogates included, but mostly what a grammar cares about.
any_text = st.text(st.characters()) | st.text(
    st.sampled_from('\t\n\r \x00"\\%()*+,-./0123456789:;=?@ASHMTtumniu_~\xa0\xb2\xe9')
)
any_lines = st.lists(any_text, max_size=3)

READERS: dict[str, Callable[[list[str]], object]] = {
    **{name: lambda values, name=name: parse_deadline(name, values) for name in DEADLINE_PARSERS},  # type: ignore[misc]
    "retry-after": lambda values: parse_retry_after(values, NOW),
    "x-request-start": lambda values: parse_request_start(values, NOW_NS),
    "priority": parse_priority,
    "idempotency-key": parse_idempotency_key,
    "idempotency-key strict": lambda values: parse_idempotency_key(values, strict=True),
    "dictionary": lambda values: parse_dictionary(", ".join(values)),
    "item": lambda values: parse_item(", ".join(values)),
}


# --- total, linear


@pytest.mark.parametrize("reader", READERS)
@given(values=any_lines)
@example(values=["\ud800"])
@example(values=["\udcff=1", "u=\udfff"])
def test_no_text_makes_a_reader_raise(reader: str, values: list[str]) -> None:
    READERS[reader](values)


@given(values=any_lines)
def test_results_stay_in_their_ranges(values: list[str]) -> None:
    for name in DEADLINE_PARSERS:
        seconds = parse_deadline(name, values)
        assert seconds is None or 0 <= seconds <= 99_999_999 * 3600
    delay = parse_retry_after(values, NOW)
    assert delay is None or 0 <= delay <= 2**31
    spent = parse_request_start(values, NOW_NS)
    assert spent is None or 0 <= spent <= 3600
    priority = parse_priority(values)
    assert type(priority.urgency) is int
    assert 0 <= priority.urgency <= 7
    assert type(priority.incremental) is bool
    key = parse_idempotency_key(values)
    assert key is None or (1 <= len(key) <= 255 and all(" " <= char <= "~" for char in key))


HOSTILE = {
    "digits": "9",
    "zeros": "0",
    "blanks": " ",
    "letters": "a",
    "members": "a,",
    "parameters": ";a",
    "value with parameters": "a=1;b=2,",
    "opening": "a=(",
    "inner list": "a=(1 ",
    "quotes": '"',
    "escapes": '\\"',
    "backslashes": "\\",
    "percents": '%"%ff',
    "colons": ":AA",
    "minus": "-",
    "date": "Sun, 29 Nov 2026 12:02:00 GMT ",
    "surrogates": "\ud800",
}


@pytest.mark.parametrize("opening", ["", 'a="', 'a=%"', "a=:", "a=(", '"', "t=", "a=1;b=", " "])
@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_mebibyte_is_read_in_linear_time(piece: str, opening: str) -> None:
    # Linear readers need a second at most, a quadratic one needs hours.
    text = (opening + piece * (2**20 // len(piece)))[: 2**20]
    started = time.perf_counter()
    for reader in READERS.values():
        reader([text])
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("name", DEADLINE_PARSERS)
def test_a_deadline_field_has_exactly_one_line(name: str) -> None:
    value = "10S" if name == "grpc-timeout" else "10000"
    assert parse_deadline(name, [value]) == 10.0
    assert parse_deadline(name.title(), [value]) == 10.0
    assert parse_deadline(name, []) is None
    assert parse_deadline(name, [value, value]) is None


@pytest.mark.parametrize("name", DEADLINE_PARSERS)
def test_zero_has_expired_except_in_the_field_where_it_means_no_limit(name: str) -> None:
    zero = parse_deadline(name, ["0S" if name == "grpc-timeout" else "0"])
    assert zero == (None if name == "x-envoy-expected-rq-timeout-ms" else 0.0)


def test_an_unknown_deadline_field_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(KeyError):
        parse_deadline("x-other", ["1"])


# --- writers


@given(milliseconds=st.integers(0, 9_999_999_999))
@example(milliseconds=1001)
@example(milliseconds=9_999_999_999)
@example(milliseconds=9_999_999_998)
def test_timeout_survives_the_round_trip(milliseconds: int) -> None:
    seconds = parse_deadline("x-request-timeout-ms", [str(milliseconds)])
    assert seconds is not None
    assert format_timeout_ms(seconds) == str(milliseconds)


@given(seconds=st.floats())
@example(seconds=math.nan)
@example(seconds=math.inf)
@example(seconds=-math.inf)
@example(seconds=-0.0)
@example(seconds=5e-324)
@example(seconds=math.nextafter(9_999_999.999, 0))
@example(seconds=math.nextafter(0.117, 0))  # times 1000 it is rounded up to 117
def test_a_written_timeout_never_grows_and_loses_less_than_a_millisecond(seconds: float) -> None:
    text = format_timeout_ms(seconds)
    back = parse_deadline("x-request-timeout-ms", [text])
    assert back is not None
    if not seconds > 0:
        assert text == "0"
    elif seconds >= 9_999_999.999:
        assert text == "9999999999"
    else:
        assert back <= seconds < (int(text) + 1) / 1000


@given(seconds=st.floats())
@example(seconds=math.nan)
@example(seconds=math.inf)
@example(seconds=1.0000000001)
def test_a_written_delay_is_readable_and_never_early(seconds: float) -> None:
    delay = parse_retry_after([format_retry_after(seconds)], NOW)
    assert delay is not None
    assert 1 <= delay <= 2**31
    if 1 <= seconds <= 2**31:
        assert seconds <= delay < seconds + 1


# --- Retry-After against an independent reader


MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def imf_fixdate(moment: datetime) -> str:
    day, month = DAYS[moment.weekday()][:3], MONTHS[moment.month - 1]
    return f"{day}, {moment:%d} {month} {moment.year:04} {moment:%H:%M:%S} GMT"


def rfc_850(moment: datetime) -> str:
    return (
        f"{DAYS[moment.weekday()]}, {moment:%d}-{MONTHS[moment.month - 1]}-{moment:%y} {moment:%H:%M:%S} GMT"
    )


def asctime(moment: datetime) -> str:
    day = f"{moment.day:2}"
    return f"{DAYS[moment.weekday()][:3]} {MONTHS[moment.month - 1]} {day} {moment:%H:%M:%S} {moment.year:04}"


moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)
# Far enough from both ends of the calendar for the 50-year rule to stay inside it.
instants = st.datetimes(datetime(1970, 1, 1), datetime(9900, 1, 1), timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=0)
)


def epoch(moment: datetime) -> int:
    return calendar.timegm(moment.timetuple())


def peer_delay(text: str, now: datetime) -> int | None:
    """Ask the other reader; it rejects a wrong weekday, which ours ignores, so every weekday is tried."""
    spellings = [text]
    for name in re.findall("^(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day(?=,)", text):
        spellings += [day + text[len(name) :] for day in DAYS]
    for name in re.findall("^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?=[, ])", text):
        spellings += [day[:3] + text[len(name) :] for day in DAYS]
    for spelling in spellings:
        try:
            delay = retryheader.parse_retry_after(spelling, now=now, strict=True)
        except retryheader.RetryAfterError:
            continue
        return int(min(delay, 2**31))
    return None


@pytest.mark.parametrize("form", [imf_fixdate, asctime])
@given(moment=moments)
@example(moment=datetime(1, 1, 1, tzinfo=UTC))
@example(moment=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
@example(moment=datetime(2000, 2, 29, tzinfo=UTC))
def test_dates_survive_the_round_trip(form: Callable[[datetime], str], moment: datetime) -> None:
    assert parse_http_date(form(moment), NOW) == epoch(moment)


@given(now=instants, ahead=st.timedeltas(timedelta(days=-36_000), timedelta(days=36_000)))
@example(now=datetime(2026, 3, 1, 12, tzinfo=UTC), ahead=datetime(2076, 2, 29, 13) - datetime(2026, 3, 1, 12))
@example(now=datetime(2026, 3, 1, 12, tzinfo=UTC), ahead=datetime(2076, 3, 1, 12) - datetime(2026, 3, 1, 12))
@example(now=datetime(2026, 3, 1, 12, tzinfo=UTC), ahead=datetime(2076, 3, 1, 13) - datetime(2026, 3, 1, 12))
@example(now=datetime(2099, 12, 31, tzinfo=UTC), ahead=timedelta(days=2))
@example(now=datetime(2050, 6, 1, tzinfo=UTC), ahead=timedelta(0))
def test_a_two_digit_year_is_at_most_50_years_ahead(now: datetime, ahead: timedelta) -> None:
    assume(timedelta(0) <= now + ahead - datetime(1, 1, 1, tzinfo=UTC))
    moment = (now + ahead).replace(microsecond=0)
    text = rfc_850(moment)
    read = parse_http_date(text, epoch(now))
    assert (None if read is None else max(0, min(read - epoch(now), 2**31))) == peer_delay(text, now)
    if timedelta(days=-49 * 365) < ahead < timedelta(days=50 * 365):
        assert read == epoch(moment)


LEAP = [(23, "6", True), (24, "0", True)]
edit = st.tuples(st.integers(0, 40), st.sampled_from(["", *"0123569 :,-GMTJanFebSuy\t\n\xa0"]), st.booleans())


@given(
    form=st.sampled_from([imf_fixdate, rfc_850, asctime]), moment=moments, edits=st.lists(edit, max_size=3)
)
@example(form=imf_fixdate, moment=datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), edits=LEAP)
@example(form=imf_fixdate, moment=datetime(2026, 12, 31, 22, 59, 59, tzinfo=UTC), edits=LEAP)
@example(form=imf_fixdate, moment=datetime(2026, 12, 31, 23, 58, 59, tzinfo=UTC), edits=LEAP)
def test_damaged_dates_are_judged_as_by_the_other_reader(
    form: Callable[[datetime], str], moment: datetime, edits: list[tuple[int, str, bool]]
) -> None:
    text = form(moment)
    for position, piece, replace in edits:
        text = text[:position] + piece + text[position + replace :]
    now = datetime.fromtimestamp(NOW, UTC)
    # The other reader cannot hold the second after its last day.
    assume("9999 23:59:60" not in text and "23:59:60 9999" not in text)
    assert parse_retry_after([text], NOW) == peer_delay(text, now)


@given(text=st.text(st.sampled_from("0123456789 \t+-._e\xb2\uff11"), max_size=30))
def test_delays_are_judged_as_by_the_other_reader(text: str) -> None:
    assert parse_retry_after([text], NOW) == peer_delay(text, datetime.fromtimestamp(NOW, UTC))


def test_leading_zeros_do_not_make_a_delay_long() -> None:
    assert parse_retry_after(["0" * 5000], NOW) == 0
    assert parse_retry_after(["0" * 5000 + "5"], NOW) == 5


def test_a_date_is_rounded_up_to_whole_seconds() -> None:
    text = "Sun, 29 Nov 2026 12:02:00 GMT"
    assert parse_retry_after([text], NOW + 0.25) == 120
    assert parse_retry_after([text], NOW + 119.75) == 1
    assert parse_retry_after([text], NOW + 120.25) == 0


# --- X-Request-Start


@given(
    age_ns=st.integers(0, 3600 * 10**9),
    unit=st.sampled_from([(1, 9), (10**3, 6), (10**6, 3), (10**9, 0)]),
    prefix=st.sampled_from(["", "t="]),
)
def test_request_start_keeps_nanoseconds_in_every_unit(
    age_ns: int, unit: tuple[int, int], prefix: str
) -> None:
    units_per_second, digits = unit
    start_ns = NOW_NS - age_ns
    whole, rest = divmod(start_ns, 10**9 // units_per_second)
    text = f"{prefix}{whole}" + (f".{rest:0{digits}}" if digits else "")
    assert parse_request_start([text], NOW_NS) == age_ns / 10**9


@pytest.mark.parametrize("units_per_second", [1, 10**3, 10**6, 10**9])
def test_request_start_bounds_are_exact(units_per_second: int) -> None:
    step = 10**9 // units_per_second

    def spent(start_ns: int) -> float | None:
        return parse_request_start([str(start_ns // step)], NOW_NS, future_skew=2.0, max_age=10.0)

    assert spent(NOW_NS - 10 * 10**9) == 10.0
    assert spent(NOW_NS - 10 * 10**9 - step) is None
    assert spent(NOW_NS + 2 * 10**9) == 0.0
    assert spent(NOW_NS + 2 * 10**9 + step) is None


# --- structured fields against an independent reader


def peer_value(value: Any) -> SfValue:
    if isinstance(value, list):
        return SfType.INNER_LIST
    if isinstance(value, http_sf.DisplayString):
        return SfType.DISPLAY_STRING
    if isinstance(value, http_sf.Token):
        return SfType.TOKEN
    if isinstance(value, bytes):
        return SfType.BYTE_SEQUENCE
    if isinstance(value, Decimal):
        return SfType.DECIMAL
    if isinstance(value, datetime):
        return SfType.DATE
    assert isinstance(value, (bool, int, str))
    return value


def peer_read(text: str, kind: str) -> Any:
    try:
        return http_sf.parse(text.encode("utf-8", "surrogatepass"), tltype=kind)
    except http_sf.StructuredFieldError as error:
        # The other reader holds dates as datetimes; the grammar also allows those beyond year 9999.
        if "Date value out of range" in str(error):
            reject()
        return None


def typed(value: SfValue) -> tuple[type, SfValue]:
    """Make True and 1 differ."""
    return type(value), value


def check_dictionary(text: str) -> None:
    want = peer_read(text, "dictionary")
    got = parse_dictionary(text)
    if want is None:
        assert got is None
        return
    assert got is not None
    assert {key: typed(value) for key, value in got.items()} == {
        key: typed(peer_value(value)) for key, (value, _) in want.items()
    }


def check_item(text: str) -> None:
    want = peer_read(text, "item")
    got = parse_item(text)
    if want is None:
        assert got is None
        return
    assert got is not None
    assert typed(got) == typed(peer_value(want[0]))


def percent_encode(text: str) -> str:
    octets = text.encode("utf-8", "surrogatepass")  # a surrogate makes bytes that are not UTF-8
    return '%"' + "".join(f"%{octet:02x}" for octet in octets) + '"'


keys = st.from_regex(r"[a-z*][a-z0-9_.*\-]{0,3}", fullmatch=True) | st.sampled_from(["u", "i"])
bare_items = st.one_of(
    st.integers(-(10**16), 10**16).map(str),
    st.integers(-2, 9).map(str),
    st.from_regex(r"-?[0-9]{0,14}\.[0-9]{0,4}", fullmatch=True),
    st.from_regex(r'"[ !\\"a~\t]{0,6}"', fullmatch=True),
    st.from_regex(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/\-]{0,4}", fullmatch=True),
    st.sampled_from(["?0", "?1", "?2", "?", "1", "01", "-", "1.", "-0", "true"]),
    st.from_regex(r":[A-Za-z0-9+/]{0,5}={0,3}:", fullmatch=True),
    st.from_regex(r"@-?[0-9]{1,11}", fullmatch=True),
    st.from_regex(r'%"[ a&~]{0,2}(%[0-9a-f]{2}){0,3}"', fullmatch=True),
    st.text(max_size=6).map(percent_encode),
)
parameters = st.lists(
    st.tuples(st.sampled_from([";", "; ", ";\t"]), keys, st.none() | bare_items), max_size=2
).map(
    lambda pairs: "".join(blank + key + ("" if value is None else f"={value}") for blank, key, value in pairs)
)
items = st.tuples(bare_items, parameters).map("".join)
inner_lists = st.tuples(
    st.lists(items, max_size=3),
    st.sampled_from([" ", "  ", "", "\t"]),
    st.sampled_from(["", " "]),
    parameters,
).map(lambda parts: f"({parts[2]}{parts[1].join(parts[0])}{parts[2]}){parts[3]}")
members = st.tuples(keys, st.one_of(parameters, items.map("={}".format), inner_lists.map("={}".format))).map(
    "".join
)
dictionaries = st.tuples(
    st.sampled_from(["", " ", "\t"]),
    st.lists(members, max_size=4),
    st.sampled_from([",", ", ", " ,\t", ",,"]),
    st.sampled_from(["", " ", "\t", ","]),
).map(lambda parts: parts[0] + parts[2].join(parts[1]) + parts[3])
structured_text = st.text(st.sampled_from('aiu*1A09 \t",;=()?:@%.-\\/_\x7f\xe9'), max_size=12)


@given(text=dictionaries | structured_text)
@example(text='a=%"%e2%82%ac"')
@example(text='a=%"%e2%82"')
@example(text="a=:=:")
@example(text="a=:A:")
@example(text="a=:AQ===:")
@example(text="a=1.2.3")
@example(text="a=1234567890123.1")
@example(text="a=123456789012.1234")
@example(text="a=@1.0")
@example(text="a=1234567890123456")
@example(text="a=-123456789012345")
@example(text='a=%"%C3%A9"')
@example(text="a=(1\t2)")
def test_dictionaries_are_read_as_by_the_other_reader(text: str) -> None:
    check_dictionary(text)


@given(text=items | structured_text)
def test_items_are_read_as_by_the_other_reader(text: str) -> None:
    check_item(text)


def test_all_short_dictionaries_are_read_as_by_the_other_reader() -> None:
    for length in range(5):
        for characters in itertools.product('a1=,;( )"?', repeat=length):
            check_dictionary("".join(characters))


@given(text=dictionaries)
def test_priority_is_what_the_other_reader_makes_of_it(text: str) -> None:
    read = peer_read(text.strip(" \t"), "dictionary") or {}
    urgency, incremental = (read.get(key, (None, {}))[0] for key in ("u", "i"))
    assert parse_priority([text]) == WirePriority(
        urgency if type(urgency) is int and 0 <= urgency <= 7 else 3,
        incremental if type(incremental) is bool else False,
    )


@given(lines=st.lists(dictionaries, max_size=3))
def test_priority_lines_are_one_dictionary(lines: list[str]) -> None:
    assert parse_priority(lines) == parse_priority([", ".join(line.strip(" \t") for line in lines)])


def test_a_priority_of_unreasonable_length_is_ignored() -> None:
    for length, want in ((1024, WirePriority(1)), (1025, WirePriority())):
        assert parse_priority(["u=1, x" + "x" * (length - 6)]) == want


# --- Idempotency-Key


@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=260))
def test_a_quoted_key_survives_the_round_trip(key: str) -> None:
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    want = key if 1 <= len(key) <= 255 and key.strip() else None
    assert parse_idempotency_key([quoted]) == want
    assert parse_idempotency_key([f" {quoted};v=1\t"], strict=True) == want


@given(key=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._~+/=:\-]{0,40}", fullmatch=True))
def test_quoted_and_bare_forms_are_the_same_key(key: str) -> None:
    assert parse_idempotency_key([key]) == parse_idempotency_key([f'"{key}"']) == key
    assert parse_idempotency_key([key], strict=True) is None
