"""Route groups: parts of one dependency that are judged each on its own, with a breaker and attempt times of their own.

Two kinds. Named groups are patterns on method and path, a handful of them, and their names are metric labels. Keyed
groups come from a function of the request, such as its host: there may be any number of keys, so the states are bounded
and no key becomes a label.

A keyed state is forgotten when it was idle for `IDLE` seconds, or when a new key needs its place: the one that was used
longest ago first. One that has attempts under way, or whose circuit is not closed, keeps its place: forgetting it would
forgive the dependency. An open circuit whose time is over long ago (`IDLE`) is forgotten like others, or keys that are
never asked for again would fill the table for good. New keys that find no place share one state.

Pure and not thread-safe: the owner of the dependency locks, around `at` only; keys are computed outside the lock.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from resilient_mw.calls.breaker import Breaker, BreakerState
from resilient_mw.calls.latency import LatencyModel
from resilient_mw.calls.match import Target
from resilient_mw.calls.timeout import AdaptiveTimeout
from resilient_mw.core.checks import require_function, require_name

KeyOf = Callable[[str, Target], str | None]
"""From the method and the target of a request to the key of its group; None: it belongs to none."""

OTHERS = "others"
"""The label of all requests that no named group takes."""
KEYED = "keyed"
"""The label of all keyed groups together."""
MOST_STATES = 1000
"""Keyed states of one dependency."""
IDLE = 600.0
"""Seconds without use after which a keyed state is forgotten."""
LONGEST_KEY = 256
"""Characters of a key that count."""
LOOKED_AT = 8
"""States that are looked at for one that can go, for each new key."""

_METHOD = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ-")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """One pattern: `GET /search/*`, or `/search/*` for every method.

    Attributes:
        method: upper case; None: every method.
        path: the path, or what comes before `*`.
        below: whether every path that begins like this matches.
    """

    method: str | None
    path: str
    below: bool

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request belongs here."""
        if self.method is not None and method != self.method:
            return False
        return path.startswith(self.path) if self.below else path == self.path


def parse_group_rule(pattern: object) -> GroupRule:
    """Return the rule that a pattern stands for.

    Raises:
        ValueError: naming the pattern and what is allowed.
    """
    problem = (
        f"groups: {pattern!r} is not allowed: it must be like 'GET /search/*', '/search/*' or 'POST /orders'"
    )
    if not isinstance(pattern, str):
        raise ValueError(problem)
    method, space, path = pattern.rpartition(" ")
    below = path.endswith("*")
    path = path.removesuffix("*")
    if (space and not method) or not _METHOD.issuperset(method):
        raise ValueError(problem)
    if not path.startswith("/") or set("*?#") & set(path) or (below and not path.endswith("/")):
        raise ValueError(problem)
    return GroupRule(method or None, path, below)


class GroupRules:
    """Says which group a request belongs to. Has no state, so it needs no lock.

    Args:
        groups: patterns by the name of their group; the first one that matches is the one.
        key: `host` for a group of each host and port, or a function of method and target; asked where no pattern
            matches.

    Raises:
        ValueError: naming what is not allowed.

    Attributes:
        names: the named groups, in their order.
    """

    __slots__ = ("_key", "_rules", "names")

    def __init__(
        self, groups: Mapping[str, str | Sequence[str]] | None, key: Literal["host"] | KeyOf | None
    ) -> None:
        if groups is not None and not isinstance(groups, Mapping):
            raise ValueError(f"groups={groups!r} is not allowed: it must be patterns by name")
        rules: list[tuple[str, GroupRule]] = []
        for name, patterns in (groups or {}).items():
            require_name("groups: the name", name)
            if name in (OTHERS, KEYED):
                raise ValueError(
                    f"groups: the name {name!r} is not allowed: it stands for all other requests"
                )
            each = (patterns,) if isinstance(patterns, str) else patterns
            if not each or not hasattr(each, "__iter__"):
                raise ValueError(f"groups: {name!r} must have a pattern, or several, and has {patterns!r}")
            rules.extend((name, parse_group_rule(pattern)) for pattern in each)
        if key is not None and key != "host":
            require_function("group_key", key, "the method and the target of a request")
        self.names = tuple(groups or ())
        self._rules = tuple(rules)
        self._key: KeyOf | None = host_key if key == "host" else key

    def group(self, method: str, target: Target) -> Group | None:
        """Return the group of a request; None: the state of the dependency itself.

        Raises:
            TypeError: the function of the user returned something else than text or None.
            Exception: of that function.
        """
        for name, rule in self._rules:
            if rule.matches(method, target.path):
                return Group(name, keyed=False)
        if self._key is None:
            return None
        key = self._key(method, target)
        if key is None:
            return None
        if not isinstance(key, str):
            raise TypeError(f"group_key returned {key!r}: it must return text, or None for no group")
        return Group(key[:LONGEST_KEY], keyed=True)


@dataclass(frozen=True, slots=True)
class Group:
    """The group of a request: a name, or a key."""

    name: str
    keyed: bool


def host_key(method: str, target: Target) -> str:  # noqa: ARG001
    """Return the host and port of a target, whose spelling is the one of `match`."""
    return f"{target.host}:{target.port}"


class GroupState:
    """What is judged on its own: the breaker and the attempt times of a group, or of the whole dependency.

    Attributes:
        breaker: None: there is none.
        timeout: the measured timeout; None: only the fixed one.
        heads: the times until the response head, for hedges; None: they are not needed.
        under_way: attempts under way.
        used: the instant of the last use.
    """

    __slots__ = ("breaker", "heads", "timeout", "under_way", "used")

    def __init__(
        self, breaker: Breaker | None, timeout: AdaptiveTimeout | None, heads: LatencyModel | None = None
    ) -> None:
        self.breaker = breaker
        self.timeout = timeout
        self.heads = heads
        self.under_way = 0
        self.used = -math.inf

    def pinned(self, now: float) -> bool:
        """Return whether the state must be kept although it is not used at the moment."""
        if self.under_way:
            return True
        breaker = self.breaker
        if breaker is None or breaker.state is BreakerState.CLOSED:
            return False
        return now - self.used < IDLE or breaker.closed_for(now) is not None


class GroupStates:
    """The states of all groups of one dependency.

    Args:
        names: the named groups; their states exist from the beginning.
        make: makes the state of a group.
        most: keyed states at once.

    Attributes:
        named: the states of the named groups.
        overflow: the state that keys share which found no place.
        evicted: keyed states that were forgotten.
        shared: lookups that had to be served by `overflow`.
    """

    __slots__ = ("_keyed", "_make", "_most", "evicted", "named", "overflow", "shared")

    def __init__(self, names: Sequence[str], make: Callable[[], GroupState], most: int = MOST_STATES) -> None:
        self._make = make
        self._most = most
        self._keyed: OrderedDict[str, GroupState] = OrderedDict()
        self.named = {name: make() for name in names}
        self.overflow = make()
        self.evicted = 0
        self.shared = 0

    def __len__(self) -> int:
        """Return how many keyed states there are."""
        return len(self._keyed)

    def keyed(self) -> Iterator[GroupState]:
        """Iterate over the keyed states, the one used longest ago first."""
        return iter(self._keyed.values())

    def all(self) -> Iterator[GroupState]:
        """Iterate over the states of all groups."""
        return chain(self.named.values(), self.keyed(), (self.overflow,))

    def at(self, now: float, group: Group) -> GroupState:
        """Return the state of a group, made on first use."""
        if not group.keyed:
            return self.named[group.name]
        keyed = self._keyed
        state = keyed.get(group.name)
        if state is not None:
            keyed.move_to_end(group.name)
        elif self._has_place(now):
            state = keyed[group.name] = self._make()
        else:
            state = self.overflow
            self.shared += 1
        state.used = now
        return state

    def _has_place(self, now: float) -> bool:
        """Make room: idle states go in any case, two for each new one; a used one only where there is no place."""
        keyed = self._keyed
        for looked_at in range(LOOKED_AT):
            key = next(iter(keyed), None)
            if key is None:
                return self._most > 0
            state = keyed[key]
            full = len(keyed) >= self._most
            if not full and (looked_at >= 2 or now - state.used < IDLE):
                return True
            if state.pinned(now):
                keyed.move_to_end(key)  # Not looked at again before all others.
            else:
                del keyed[key]
                self.evicted += 1
        return len(keyed) < self._most
