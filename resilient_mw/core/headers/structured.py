"""Structured Field Values (RFC 9651 section 4.2): dictionaries and items, read strictly.

What may live here: the grammar. Every construct is checked to the end, because one fault anywhere voids the
whole field; but only the types that our fields use (Boolean, Integer, String) come out as values. Members of
other types come out as a `SfType`, and parameters are checked and dropped: no field that we read gives either
a meaning.

Fields defined by the older RFC 8941 are read with this grammar, too; it only adds two types.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final, TypeAlias


class SfType(Enum):
    """The type of a member whose value nobody here reads."""

    DECIMAL = "decimal"
    TOKEN = "token"
    BYTE_SEQUENCE = "byte sequence"
    DATE = "date"
    DISPLAY_STRING = "display string"
    INNER_LIST = "inner list"


SfValue: TypeAlias = bool | int | str | SfType
"""Boolean, Integer, String, or the type of anything else. Mind that a `bool` is an `int`."""


class _MalformedError(Exception):
    """The text leaves the grammar; never seen outside this file."""


# Repetitions are possessive where input decides their length: no text makes the matcher go back over it.
_BARE_ITEM: Final = re.compile(
    r"(?P<integer>-?[0-9]{1,15}(?![0-9.]))"
    r"|(?P<decimal>-?[0-9]{1,12}\.[0-9]{1,3}(?![0-9]))"
    r'|"(?P<string>[ !#-\[\]-~]*+(?:\\["\\][ !#-\[\]-~]*+)*+)"'
    r"|(?P<token>[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/\-]*+)"
    r"|\?(?P<boolean>[01])"
    r"|:(?P<byte_sequence>[A-Za-z0-9+/]*+)(?P<padding>={0,2}+):"
    r"|(?P<date>@-?[0-9]{1,15}(?![0-9.]))"
    r'|%"(?P<display_string>[ !#$&-~]*+(?:%[0-9a-f]{2}[ !#$&-~]*+)*+)"'
)
_KEY: Final = re.compile(r"[a-z*][a-z0-9_.*\-]*+")
_SP: Final = " "
_OWS: Final = " \t"
_ESCAPED: Final = re.compile(r"\\(.)")
_PERCENT_ENCODED: Final = re.compile(r"%([0-9a-f]{2})")


def parse_dictionary(text: str) -> dict[str, SfValue] | None:
    """Read a dictionary, with all field lines already joined by commas.

    Returns:
        Key -> value, the last one of a repeated key; empty for a blank field; None if the text is malformed.
    """
    members: dict[str, SfValue] = {}
    position = _skip(_SP, text, 0)
    try:
        while position < len(text):
            key, position = _key(text, position)
            members[key], position = _member_value(text, position)
            position = _skip(_OWS, text, position)
            if position == len(text):
                break
            if text[position] != ",":
                return None
            position = _skip(_OWS, text, position + 1)
            if position == len(text):
                return None
    except _MalformedError:
        return None
    return members


def parse_item(text: str) -> SfValue | None:
    """Read a single item.

    Returns:
        Its value without parameters; None if the text is malformed.
    """
    try:
        value, position = _item(text, _skip(_SP, text, 0))
    except _MalformedError:
        return None
    return value if _skip(_SP, text, position) == len(text) else None


def _member_value(text: str, position: int) -> tuple[SfValue, int]:
    if not text.startswith("=", position):
        return True, _skip_parameters(text, position)
    position += 1
    if text.startswith("(", position):
        return SfType.INNER_LIST, _skip_inner_list(text, position + 1)
    return _item(text, position)


def _skip_inner_list(text: str, position: int) -> int:
    while True:
        position = _skip(_SP, text, position)
        if text.startswith(")", position):
            return _skip_parameters(text, position + 1)
        _, position = _item(text, position)
        if not text.startswith((" ", ")"), position):
            raise _MalformedError


def _item(text: str, position: int) -> tuple[SfValue, int]:
    value, position = _bare_item(text, position)
    return value, _skip_parameters(text, position)


def _skip_parameters(text: str, position: int) -> int:
    while text.startswith(";", position):
        _, position = _key(text, _skip(_SP, text, position + 1))
        if text.startswith("=", position):
            _, position = _bare_item(text, position + 1)
    return position


def _bare_item(text: str, position: int) -> tuple[SfValue, int]:
    found = _BARE_ITEM.match(text, position)
    if found is None:
        raise _MalformedError
    value: SfValue
    match found.lastgroup:
        case "integer":
            value = int(found["integer"])
        case "boolean":
            value = found["boolean"] == "1"
        case "string":
            value = _ESCAPED.sub(r"\1", found["string"])
        case "token":
            value = SfType.TOKEN
        case "decimal":
            value = SfType.DECIMAL
        case "date":
            value = SfType.DATE
        case "padding":
            _check_base64(found["byte_sequence"], found["padding"])
            value = SfType.BYTE_SEQUENCE
        case _:
            _check_percent_encoded_utf8(found["display_string"])
            value = SfType.DISPLAY_STRING
    return value, found.end()


def _check_base64(encoded: str, padding: str) -> None:
    # Missing padding and stray bits are allowed (section 4.2.7 says that parsers should not fail on them),
    # but one character left over holds no byte, and padding pads something.
    if len(encoded) % 4 == 1 or (padding and not encoded):
        raise _MalformedError


def _check_percent_encoded_utf8(display_string: str) -> None:
    octets = _PERCENT_ENCODED.sub(lambda match: chr(int(match[1], 16)), display_string)
    try:
        octets.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _MalformedError from error


def _key(text: str, position: int) -> tuple[str, int]:
    match = _KEY.match(text, position)
    if match is None:
        raise _MalformedError
    return match[0], match.end()


def _skip(blanks: str, text: str, position: int) -> int:
    while position < len(text) and text[position] in blanks:
        position += 1
    return position
