"""One warning. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Warn:
    """One warning.

    Attributes:
        code: a stable name.
        application: the policy's name; None: it is about no single one.
        subject: the route, rule, mark, field or dependency.
        text: what is wrong, and what to change.
    """

    code: str
    application: str | None
    subject: str
    text: str
