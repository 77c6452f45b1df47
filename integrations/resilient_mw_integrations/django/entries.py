"""The views of a URLconf in the order in which Django tries them, each with the patterns that lead to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from django.urls import converters
from django.urls.resolvers import LocalePrefixPattern, RegexPattern, RoutePattern
from django.utils.functional import Promise

LANGUAGE = "<language>/"
"""What stands for the prefix of a language in labels."""

ONE_SEGMENT = frozenset(
    {
        converters.IntConverter,
        converters.StringConverter,
        converters.SlugConverter,
        converters.UUIDConverter,
    }
)
BUILT_IN = ONE_SEGMENT | {converters.PathConverter}
PARAMETER = re.compile(r"<(?:[^>:]+:)?([^>]+)>")
PLAIN = re.compile(r"\^((?:[\w/~ -]|\\[./-])+)")
"""The fixed text at the beginning of a regular expression."""
QUANTIFIERS = frozenset("*+?{")
DECORATION = re.compile(r"\^|\\Z|(?<!\\)[$?]|\\(?=\W)")


class Leaf:
    """One view, or what is included again by itself and is not looked into.

    Args:
        patterns: what its path has to match, one after the other.
        entries: the `path()` objects that lead to it, the innermost first.
        view: the view; None: whatever is below.
    """

    __slots__ = ("entries", "localized", "patterns", "view")

    def __init__(self, patterns: tuple[Any, ...], entries: tuple[object, ...], view: object) -> None:
        self.patterns = patterns
        self.entries = entries
        self.view = view
        self.localized = any(_is_localized(pattern) for pattern in patterns)

    def matches(self, path: str) -> bool:
        """Return whether Django would come here with a path, written without the first slash."""
        rest: str | None = path
        for pattern in self.patterns:
            rest = _rest(pattern, rest)
            if rest is None:
                return False
        return True

    def template(self) -> str:
        """Return the label, in the language that is active."""
        text = "/" + "".join(_label(pattern) for pattern in self.patterns)
        return text if self.view is not None else f"{text}*"

    def indexed(self) -> tuple[str, bool]:
        """Return a pattern for a `PathIndex`, and whether what is below it may match."""
        text = "/"
        for pattern in self.patterns:
            fixed, whole = _indexed(pattern)
            text += fixed
            if not whole:
                return text[: text.rindex("/")], True
        return (text, False) if self.view is not None else (text[: text.rindex("/")], True)


def leaves(
    resolver: Any, patterns: tuple[Any, ...] = (), entries: tuple[Any, ...] = (), inside: tuple[Any, ...] = ()
) -> Iterator[Leaf]:
    """Yield the views of a URLconf.

    Args:
        resolver: the root, or what was included.
        patterns, entries: what has led to it.
        inside: the URLconfs that it stands in.
    """
    for entry in resolver.url_patterns:
        so_far, around = (*patterns, entry.pattern), (entry, *entries)
        if not hasattr(entry, "url_patterns"):
            yield Leaf(so_far, around, entry.callback)
        elif any(each is entry.url_patterns for each in (*inside, resolver.url_patterns)):
            yield Leaf(so_far, around, None)
        else:
            yield from leaves(entry, so_far, around, (*inside, resolver.url_patterns))


def _rest(pattern: Any, path: str | None) -> str | None:
    """Return what a pattern leaves of a path; None if it does not match."""
    if path is None:
        return None
    foreign = {name for name, each in pattern.converters.items() if type(each) not in BUILT_IN}
    if not foreign:
        match = pattern.match(path)
        return None if match is None else str(match[0])
    found = pattern.regex.search(path)
    if found is None:
        return None
    for name, value in found.groupdict().items():
        if name not in foreign:
            try:
                pattern.converters[name].to_python(value)
            except ValueError:
                return None
    return path[found.end() :]


def _label(pattern: Any) -> str:
    text = str(pattern)
    if isinstance(pattern, LocalePrefixPattern):
        return LANGUAGE if text else ""
    return _readable(text) if isinstance(pattern, RegexPattern) else text


def _readable(expression: str) -> str:
    """Return a regular expression as a path: its groups as parameters, without what is no text."""
    text, names, position = "", 0, 0
    while position < len(expression):
        if expression[position] == "(" and not text.endswith("\\"):
            end = _group_end(expression, position)
            named = re.match(r"\(\?P<(\w+)>", expression[position:])
            if named is not None:
                text += f"<{named[1]}>"
            elif not expression.startswith("(?", position):
                names += 1
                text += f"<arg{names}>"
            position = end
        else:
            text += expression[position]
            position += 1
    return DECORATION.sub("", text)


def _group_end(expression: str, start: int) -> int:
    depth, position = 0, start
    while position < len(expression):
        letter = expression[position]
        if letter == "\\":
            position += 1
        elif letter == "[":
            close = expression.find("]", position + 2)
            position = len(expression) if close < 0 else close
        elif letter in "()":
            depth += 1 if letter == "(" else -1
            if not depth:
                return position + 1
        position += 1
    return len(expression)


def _indexed(pattern: Any) -> tuple[str, bool]:
    """Return the fixed text of a pattern for the index, and whether that is all of it."""
    if _is_localized(pattern):
        return "", False
    text = str(pattern)
    if isinstance(pattern, RoutePattern):
        for parameter in PARAMETER.finditer(text):
            if type(pattern.converters[parameter[1]]) not in ONE_SEGMENT:
                return PARAMETER.sub("{}", text[: parameter.start()]), False
        return PARAMETER.sub("{}", text), True
    begins = PLAIN.match(text) if "|" not in text else None
    if not isinstance(pattern, RegexPattern) or begins is None:
        return "", False
    fixed = begins[1]
    if text[begins.end() : begins.end() + 1] in QUANTIFIERS:
        fixed = fixed[:-1]  # the last one may be missing
    return fixed.replace("\\", ""), False


def _is_localized(pattern: Any) -> bool:
    """Return whether what a pattern matches depends on the language."""
    # Private names: without them, translated patterns are matched in the language of the settings.
    texts = (getattr(pattern, "_route", ""), getattr(pattern, "_regex", ""))
    return isinstance(pattern, LocalePrefixPattern) or any(isinstance(text, Promise) for text in texts)
