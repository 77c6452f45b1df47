"""What a request says at the edge: until when it is worth working on, whose word counts for that, and how large it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.headers.content_length import parse_content_length
from resilient_mw.core.headers.forwarded_for import parse_forwarded_for
from resilient_mw.core.headers.request_start import parse_request_start
from resilient_mw.core.headers.wish import DEADLINE_FIELDS, read_wish

REQUEST_START = "x-request-start"
"""When a proxy took the request in."""
FORWARDED_FOR = "x-forwarded-for"
"""For whom a proxy speaks."""
OLDEST_START = 60.0
"""Seconds after which the instant at which a proxy took a request in is not believed; a route that may take longer than
that has its maximum."""


class Edge:
    """What a policy says of peers and of time that was spent before a request was seen.

    Args:
        policy: the policy.
        trusts: whether a peer is trusted. It must not raise.
        somebody: whether anybody can be trusted at all.

    Attributes:
        fields: lower-case names of the header fields to look at.
    """

    __slots__ = ("_hops", "_trusts", "fields")

    def __init__(self, policy: ServerPolicy, trusts: Callable[[str | None], bool], *, somebody: bool) -> None:
        self._hops = policy.trusted_hops
        self._trusts = trusts
        # When the proxy took a request in is asked only where some proxy would be believed.
        self.fields = (*DEADLINE_FIELDS, REQUEST_START) if somebody else DEADLINE_FIELDS

    def deadline_at(  # noqa: PLR0917  the facts of an arrival, as the shells find them
        self,
        now: float,
        wall_ns: int,
        entry: RouteEntry,
        fields: Sequence[tuple[str, str]],
        peer: str | None,
        forwarded: Sequence[str],
        lag: float,
    ) -> tuple[float, tuple[str, ...]]:
        """Return the instant at which a request stops being worth the work, and the fields that were ignored.

        What it has spent before now is charged, except to exempt requests, which are not refused for load.

        Args:
            now: the instant of arrival.
            wall_ns: the same on the wall clock, in nanoseconds.
            entry: how it is treated.
            fields: its header lines whose names are in `fields`, as (lower-case name, value).
            peer: the address of the peer; None: not known.
            forwarded: its `X-Forwarded-For` lines.
            lag: seconds that it has waited for this process already.
        """
        wish, ignored = read_wish(field for field in fields if field[0] != REQUEST_START)
        starts = [value for name, value in fields if name == REQUEST_START]
        believed = (wish is not None or bool(starts)) and self._trusts(peer)
        spent = lag
        if starts and believed:
            oldest = max(OLDEST_START, entry.deadline.maximum or 0.0)
            age = parse_request_start(starts, wall_ns, max_age=oldest)
            if age is None:
                ignored += (REQUEST_START,)
            else:
                spent = max(age, lag)  # the proxy's stamp is older than all that happened here
        if believed and self._hops and wish is not None:
            peer = parse_forwarded_for(forwarded, self._hops)
            if peer is None and forwarded:
                ignored += (FORWARDED_FOR,)
            believed = self._trusts(peer)
        if wish == 0.0:
            return now, ignored
        if entry.rank < 0:
            spent = 0.0
        return now - spent + entry.deadline.budget(wish, trusted=believed), ignored


def is_too_large(entry: RouteEntry, lengths: Sequence[str]) -> bool:
    """Return whether a request says that its body is larger than its route takes.

    Args:
        entry: how it is treated.
        lengths: its `Content-Length` lines.
    """
    if entry.max_body is None:
        return False
    size = parse_content_length(lengths)
    return size is not None and size > entry.max_body
