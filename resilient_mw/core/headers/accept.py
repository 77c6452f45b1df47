"""Accept: whether a caller would rather read plain text, or HTML, than a problem document (RFC 9110, section 12.5.1).

The problem document is the default: it is left only for a caller who says that plain text has the higher quality.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

MediaRange = tuple[str, str, bool, float]
"""Type, subtype, whether it asks for parameters that no answer of ours has, quality."""

_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_QUOTED: Final = r'"(?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*+"'
_RANGE: Final = re.compile(rf"({_TOKEN})/({_TOKEN})")
# Not possessive as a whole: before CPython 3.11.5 the groups of an attempt that failed would then be kept.
_PARAMETER: Final = re.compile(rf"[ \t]*+;[ \t]*+(?:({_TOKEN})=({_TOKEN}|{_QUOTED}))?")
_BETWEEN: Final = re.compile(r"[ \t,]*+")
_BLANKS: Final = re.compile(r"[ \t]*+")
_QUALITY: Final = re.compile(r"0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?")
_LONGEST: Final = 1024

# The more exact a range, the higher its number. The document is JSON, so who asks for JSON can read it.
_DOCUMENT: Final = {
    ("application", "problem+json"): 4,
    ("application", "json"): 3,
    ("application", "*"): 2,
    ("*", "*"): 1,
}
_TEXT: Final = {("text", "plain"): 4, ("text", "*"): 2, ("*", "*"): 1}
_HTML: Final = {("text", "html"): 4, ("application", "xhtml+xml"): 3, ("text", "*"): 2, ("*", "*"): 1}


def prefers_plain_text(value: str) -> bool:
    """Return whether an Accept field rates plain text above a problem document.

    Args:
        value: the field's value, several lines joined by commas. Outside the grammar or longer than 1,024 characters:
            as if absent.
    """
    return len(value) <= _LONGEST and _prefers(value)


def prefers_html(value: str) -> bool:
    """Return whether an Accept field rates HTML above a problem document, as browsers do. Arguments as above."""
    if len(value) > _LONGEST:
        return False
    ranges = parse_accept(value)
    return ranges is not None and _best(ranges, _HTML) > _best(ranges, _DOCUMENT)


@lru_cache(maxsize=256)
def _prefers(value: str) -> bool:
    ranges = parse_accept(value)
    return ranges is not None and _best(ranges, _TEXT) > _best(ranges, _DOCUMENT)


def parse_accept(value: str) -> list[MediaRange] | None:
    """Return the media ranges of an Accept field; None if it is outside its grammar.

    The charset is no condition: our answers are ASCII. What follows the quality is ignored, as it was never used.
    """
    ranges: list[MediaRange] = []
    at, end = _skip(_BETWEEN, value, 0), len(value)
    while at < end:
        found = _RANGE.match(value, at)
        if found is None:
            return None
        at = found.end()
        quality: str | None = None
        asks_more = False
        parameter = _PARAMETER.match(value, at)
        while parameter is not None:
            at = parameter.end()
            name = (parameter[1] or "").lower()
            if name == "q":
                if quality is not None or not _QUALITY.fullmatch(parameter[2]):
                    return None
                quality = parameter[2]
            elif name not in {"", "charset"} and quality is None:
                asks_more = True
            parameter = _PARAMETER.match(value, at)
        at = _skip(_BLANKS, value, at)
        if at < end and value[at] != ",":
            return None
        at = _skip(_BETWEEN, value, at)
        ranges.append(
            (found[1].lower(), found[2].lower(), asks_more, 1.0 if quality is None else float(quality))
        )
    return ranges


def _best(ranges: list[MediaRange], offer: Mapping[tuple[str, str], int]) -> float:
    """Return the quality of what we offer: that of the most exact range that it fits, 0 if it fits none."""
    exactness, quality = 0, 0.0
    for kind, subtype, asks_more, each in ranges:
        fits = 0 if asks_more else offer.get((kind, subtype), 0)
        if fits:
            exactness, quality = max((exactness, quality), (fits, each))
    return quality


def _skip(pattern: re.Pattern[str], value: str, at: int) -> int:
    found = pattern.match(value, at)
    return at if found is None else found.end()
