"""Fallbacks: what is answered instead of an error, and which answers may be kept for it.

In this order: the last good answer, if there is one that may be used; the function; the value. Never for writes.

A kept answer is used by the rules of a shared cache (RFC 9111) that serves stale only on error (RFC 5861): the process
has many callers, so what is meant for one of them is not kept. Pure and not thread-safe: the owner of the dependency locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from resilient_mw.core.checks import require_integer, require_number

UNSET: Any = object()
"""There is no value: None is one."""

READS = frozenset({"GET", "HEAD"})
HARMLESS = READS | {"OPTIONS", "TRACE"}
KEPT = frozenset({200, 203})
"""Statuses of answers that are kept."""
REPLACED = frozenset({500, 502, 503, 504})
"""Statuses that are errors for `stale-if-error` (RFC 5861 section 4)."""
FORBIDDING = frozenset({"no-store", "private", "no-cache", "must-revalidate", "proxy-revalidate"})
"""Directives that forbid to keep an answer, or to use it when it is stale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What is answered instead of the error of a call: the first of stale answer, function and value that is there.

    One of the three must be given. Kept answers take at most 8 MiB by default, in each process.

    Attributes:
        stale_for: seconds; the age up to which the last good answer is used. None: none is kept.
        function: called with the error and the seconds that are left; what it returns is the answer, None: it has none.
        value: the answer.
        entries: most kept answers.
        max_bytes: most bytes of them, and an eighth of it is the most of one.
        credentials: request fields that say who asks; what was answered to a request with one of them is kept only if
            the answer says `public`, and nothing else is served to such a request.

    Raises:
        ValueError: naming the field, the value and the allowed range; also if it could never answer.
    """

    stale_for: float | None = None
    function: Callable[[Exception, float], Any] | None = field(default=None)
    value: Any = UNSET
    entries: int = 256
    max_bytes: int = 8_388_608
    credentials: Collection[str] = ("authorization", "proxy-authorization", "cookie", "x-api-key")

    def __post_init__(self) -> None:
        if self.stale_for is not None:
            require_number("Fallback.stale_for", self.stale_for, low=0.001, high=31_536_000)
        if self.function is not None and not callable(self.function):
            raise ValueError(
                f"Fallback.function={self.function!r} is not allowed: it must be a function of the error and the "
                "seconds that are left"
            )
        require_integer("Fallback.entries", self.entries, low=1, high=1_000_000)
        require_integer("Fallback.max_bytes", self.max_bytes, low=1024)
        names: object = self.credentials
        if isinstance(names, str) or not all(isinstance(name, str) for name in self.credentials):
            raise ValueError(
                f"Fallback.credentials={names!r} is not allowed: it must hold names of header fields"
            )
        object.__setattr__(self, "credentials", frozenset(name.lower() for name in self.credentials))
        if self.stale_for is None and self.function is None and self.value is UNSET:
            raise ValueError("Fallback() has no answer: give it stale_for, function or value")

    @property
    def largest(self) -> int:
        """The most bytes of one kept answer."""
        return self.max_bytes // 8


@dataclass(frozen=True, slots=True)
class Kept:
    """The last good answer.

    Attributes:
        answer: whatever it is.
        at: the instant at which it was new.
        size: its bytes.
        until: the instant after which the answer itself forbids its use; inf: it says nothing.
        public: whether it may be served to whoever asks.
        varies: the request fields that it was chosen by, with their values.
    """

    answer: Any
    at: float
    size: int = 0
    until: float = float("inf")
    public: bool = True
    varies: tuple[tuple[str, str | None], ...] = ()


class LastGood:
    """The last good answers of one dependency, the least recently used one given up first.

    Args:
        policy: age and bounds.
    """

    def __init__(self, policy: Fallback) -> None:
        self._policy = policy
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: Hashable, kept: Kept) -> None:
        """Keep an answer in place of the one before, within the bounds."""
        self.forget(key)
        if kept.size > self._policy.largest:
            return
        self._kept[key] = kept
        self.size += kept.size
        while len(self._kept) > self._policy.entries or self.size > self._policy.max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.size -= oldest.size

    def forget(self, key: Hashable) -> None:
        """Keep this answer no longer."""
        before = self._kept.pop(key, None)
        if before is not None:
            self.size -= before.size

    def find(self, key: Hashable, now: float, fields: Mapping[str, str] | None = None) -> Kept | None:
        """Return the answer that may be used now; None if there is none.

        Args:
            key: which one.
            now: the instant.
            fields: the request's fields, names in lower case.
        """
        kept = self._kept.get(key)
        if kept is None or self._policy.stale_for is None:
            return None
        if now > kept.at + self._policy.stale_for or now > kept.until:
            self.forget(key)
            return None
        fields = fields or {}
        if not kept.public and any(name in fields for name in self._policy.credentials):
            return None
        if any(fields.get(name) != value for name, value in kept.varies):
            return None
        self._kept.move_to_end(key)
        return kept


def directives(value: str) -> dict[str, str]:
    """Return the directives of a `Cache-Control`, names in lower case."""
    found: dict[str, str] = {}
    for part in value.split(","):
        name, _, argument = part.partition("=")
        found.setdefault(name.strip().lower(), argument.strip().strip('"'))
    return found


def may_keep(
    policy: Fallback,
    method: str,
    status: int,
    *,
    asked: Mapping[str, str],
    told: Mapping[str, str],
    now: float,
) -> Kept | None:
    """Return how an answer may be kept, without the answer itself; None: it may not.

    Args:
        policy: the fallback.
        method: of the request.
        status: of the answer.
        asked: the request's fields, names in lower case, several lines of one joined by commas.
        told: the answer's fields in the same form.
        now: the instant.
    """
    if policy.stale_for is None or method not in READS or status not in KEPT:
        return None
    if "range" in asked or "no-store" in directives(asked.get("cache-control", "")):
        return None
    control = directives(told.get("cache-control", ""))
    vary = {name.strip().lower() for name in told.get("vary", "").split(",")} - {""}
    if FORBIDDING & control.keys() or "*" in vary or "set-cookie" in told:
        return None
    public = "public" in control
    if not public and any(name in asked for name in policy.credentials):
        return None
    at = now - (_seconds(told.get("age", "")) or 0)
    until = float("inf")
    error = _seconds(control.get("stale-if-error", ""))
    if error is not None:
        until = (
            at + (_seconds(control.get("s-maxage", "")) or _seconds(control.get("max-age", "")) or 0) + error
        )
    varies = tuple((name, asked.get(name)) for name in sorted(vary))
    return Kept(None, at, until=until, public=public, varies=varies)


def _seconds(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 10 else None
