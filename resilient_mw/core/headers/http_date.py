"""HTTP-date: the three forms that RFC 9110 section 5.6.7 obliges a recipient to read.

What may live here: this one strict reader. Nothing lenient: no other zone, no other case, no text behind the
date.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Final

_DAY_NAME: Final = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY_NAME: Final = "(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH: Final = f"(?P<month>{'|'.join(_MONTHS)})"
_DAY: Final = "(?P<day>[0-9]{2})"
_YEAR: Final = "(?P<year>[0-9]{4})"
_TIME: Final = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"

_FORMS: Final = (
    re.compile(f"{_DAY_NAME}, {_DAY} {_MONTH} {_YEAR} {_TIME} GMT"),
    re.compile(f"{_LONG_DAY_NAME}, {_DAY}-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(f"{_DAY_NAME} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} {_YEAR}"),
)
# "Wednesday, 01-Jan-70 00:00:00 GMT" is the longest form.
_MAX_LENGTH: Final = 33

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  HTTP-dates are UTC by definition
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_YEARS_AHEAD: Final = 50


def parse_http_date(text: str, now: float) -> int | None:
    """Read an HTTP-date: IMF-fixdate, the RFC 850 form or the asctime form.

    The weekday must be a weekday and is otherwise ignored. A leap second, which can only be 23:59:60, counts
    as the second after it. A two-digit year that would be more than 50 years ahead of `now` lies in the past.

    Args:
        text: The date, without surrounding blanks.
        now: Seconds since the Unix epoch; read only for two-digit years.

    Returns:
        Seconds since the Unix epoch, negative before 1970; None if the text is not such a date or no such
        day exists.

    Raises:
        OverflowError: `now` is outside the years 1 to 9999 (and a two-digit year asks for it).
        ValueError: `now` is NaN (and a two-digit year asks for it).
    """
    if len(text) > _MAX_LENGTH:
        return None
    for form in _FORMS:
        match = form.fullmatch(text)
        if match is not None:
            return _epoch_seconds(match, now)
    return None


def _epoch_seconds(match: re.Match[str], now: float) -> int | None:
    month = _MONTHS.index(match["month"]) + 1
    day, hour, minute, second = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _full_year(year, (month, day, hour, minute, second), now)
    leap_second = (hour, minute, second) == (23, 59, 60)
    if leap_second and (year, month, day) == (9999, 12, 31):
        return None  # The second after it is in no year that can be told.
    if hour > 23 or minute > 59 or (second > 59 and not leap_second):
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        return None
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _full_year(two_digits: int, rest: tuple[int, int, int, int, int], now: float) -> int:
    """Find the latest year with these last digits that puts the date at most 50 years ahead of now."""
    today = _EPOCH + timedelta(seconds=now)
    last_year = today.year + _YEARS_AHEAD
    year = last_year - (last_year - two_digits) % 100
    last_moment = (last_year, today.month, today.day, today.hour, today.minute, today.second)
    return year - 100 if (year, *rest) > last_moment else year
