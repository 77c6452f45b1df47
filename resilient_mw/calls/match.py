"""Which requests go to which dependency: by scheme, host, port and the beginning of the path.

A host is compared without regard to case, a trailing dot or a port that its scheme implies, international names in their
ASCII form and IPv6 addresses in their short one, so one dependency is never two because of spelling. User information
never counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}

DEVIATIONS = frozenset("ßς\u200c\u200d")
"""Characters whose ASCII form depends on the version of the standard (UTS 46): two hosts, and nobody can tell which."""

_ANY_HOST = re.compile(r"\*(\.[a-z0-9_-]+)*")
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:.]*:[0-9a-f:.]+")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    Attributes:
        scheme, host: in their one spelling, see the module.
        port: as a number, also where the scheme implies it.
        path: as sent.
    """

    scheme: str
    host: str
    port: int
    path: str


def target(scheme: str, host: str, port: int | None, path: str) -> Target:
    """Return a request's target in its one spelling; a host that has none stays as it is and matches nothing."""
    scheme = scheme.lower()
    return Target(scheme, one_spelling(host), PORTS.get(scheme, 0) if port is None else port, path or "/")


def one_spelling(host: str) -> str:
    """Return the one spelling of a host."""
    host = host.lower().removesuffix(".")
    if not host.isascii():
        if DEVIATIONS & set(host):
            return host
        try:
            return host.encode("idna").decode("ascii").lower().removesuffix(".")
        except UnicodeError:
            return host
    if ":" in host:
        from ipaddress import ip_address  # loaded only by those who name addresses

        try:
            return str(ip_address(host.strip("[]")))
        except ValueError:
            return host
    return host


@dataclass(frozen=True, slots=True)
class MatchRule:
    """One pattern: `http://prices/*`, `https://api.example/v1/*`, `http://prices/price` (exactly this path).

    `https://*.example/*` means every host below `example`, `https://*/*` every host; without a port, on every port.

    Attributes:
        pattern: as it was written.
        scheme, host, port: of the target; a host that begins with `*` stands for many, and port 0 for all ports then.
        path: the path, or what comes before `*`.
        below: whether every path that begins like this matches.
    """

    pattern: str
    scheme: str
    host: str
    port: int
    path: str
    below: bool

    def matches(self, other: Target) -> bool:
        """Return whether a request goes here."""
        return self.is_at(other.scheme, other.host, other.port) and self.takes(other.path)

    def is_at(self, scheme: str, host: str, port: int) -> bool:
        """Return whether requests to a scheme, host and port may go here, depending on their path."""
        if scheme != self.scheme:
            return False
        if self.host.startswith("*"):
            return host.endswith(self.host[1:]) and host != "" and self.port in (0, port)
        return host == self.host and port == self.port

    def takes(self, path: str) -> bool:
        """Return whether a request for a path at this rule's scheme, host and port goes here."""
        return path.startswith(self.path) if self.below else path == self.path

    def covers(self, other: MatchRule) -> bool:
        """Return whether every request that `other` matches is matched by this rule."""
        if not self.is_at(other.scheme, other.host, other.port):
            return False
        return other.path.startswith(self.path) if self.below else not other.below and other.path == self.path


def parse_rule(pattern: object) -> MatchRule:
    """Return the rule that a pattern stands for.

    Raises:
        ValueError: naming the pattern and what is allowed.
    """
    problem = f"match={pattern!r} is not allowed: it must be like 'http://prices/*' or 'https://api.example:8443/v1/*'"
    if not isinstance(pattern, str):
        raise ValueError(problem)
    try:
        parts = urlsplit(pattern)
        port, host = parts.port, parts.hostname or ""
    except ValueError:
        raise ValueError(problem) from None
    if DEVIATIONS & set(host):
        raise ValueError(f"match={pattern!r} is not allowed: write this host in its ASCII form (xn--...)")
    path = parts.path or "/*"
    below = path.endswith("*")
    path = path.removesuffix("*")
    place = target(parts.scheme, host, port, path)
    many = _ANY_HOST.fullmatch(place.host) is not None
    if parts.scheme not in PORTS or not (many or _HOST.fullmatch(place.host)) or "*" in path:
        raise ValueError(problem)
    if parts.query or parts.fragment or "@" in parts.netloc or (below and not path.endswith("/")):
        raise ValueError(problem)
    port = 0 if many and port is None else place.port
    return MatchRule(pattern, place.scheme, place.host, port, place.path, below)
