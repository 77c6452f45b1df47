"""Takes path templates with named parameters, such as `/items/{id:int}`, apart."""

from __future__ import annotations

import re
from collections.abc import Callable


class PathTemplate:
    """One path template.

    Args:
        written: the template as its author wrote it.
        parameter: finds the parameters in it: the first group is the name, the second one the convertor's `:name`.
        convertor: returns the expression of a convertor, and whether its values are not empty and hold no slash.

    Attributes:
        written: as given.
        label: without the convertors: `/items/{id}`.
        regex: the text of the expression that a path has to match.
        index: the leading segments that can be told from others, and whether any segments may follow.
        fixed: it holds no parameter.
    """

    __slots__ = ("fixed", "index", "label", "regex", "written")

    def __init__(
        self,
        written: str,
        parameter: re.Pattern[str],
        convertor: Callable[[str], tuple[str, bool]],
    ) -> None:
        label, regex, position = "", "^", 0
        head: str | None = None
        for found in parameter.finditer(written):
            name, kind = found.group(1), (found.group(2) or ":str").removeprefix(":")
            literal = written[position : found.start()]
            position = found.end()
            expression, one_segment = convertor(kind)
            label += literal
            if head is None and not one_segment:
                head = label.rpartition("/")[0]
            label += f"{{{name}}}"
            regex += f"{re.escape(literal)}(?P<{name}>{expression})"
        self.written = written
        self.label = label + written[position:]
        self.regex = f"{regex}{re.escape(written[position:])}$"
        self.index = (self.label, False) if head is None else (head, True)
        self.fixed = position == 0
