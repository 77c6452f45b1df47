"""From the request of the caller to the request of one attempt: who it is for, how long it may take, what it says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from resilient_mw.calls.attempt import USUAL, Facts, ShortAttempt
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency, check_dependencies
from resilient_mw.calls.events import Start
from resilient_mw.calls.fields import CallFields
from resilient_mw.calls.groups import GroupRules
from resilient_mw.calls.key import format_key
from resilient_mw.calls.match import MatchRule, target
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.headers.deadlines import DEADLINE_PARSERS, format_timeout_ms, parse_deadline
from resilient_mw.runtime.context import CURRENT, NO_REQUEST, RequestContext
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.runtime.running_job import RUNNING_JOB
from resilient_mw.transport.library import Library
from resilient_mw.transport.scope import Scope
from resilient_mw.transport.timeouts import timeouts_of
from resilient_mw.transport.trace import Trace

OWN_KEY = "idempotency_key"
"""The extension of a request that holds its key: of the caller, or, once it was made, of us. A redirect and an
authentication flow copy it, so that the same work keeps its key."""
MILLISECONDS = "x-request-timeout-ms"


Candidates = tuple[tuple[MatchRule, DependencyOwner], ...]
"""The rules for one scheme, host and port, in order."""


class Directory:
    """Finds the dependency that a request goes to; the first one that matches is the one.

    Raises:
        ValueError: the dependencies do not go together.
    """

    MOST_ORIGINS = 1_000
    """Origins that are remembered; a client that calls more of them looks some of them up again."""

    def __init__(self, dependencies: Sequence[Dependency]) -> None:
        self._rules = [
            (rule, owner_of(each)) for each in check_dependencies(dependencies) for rule in each.rules
        ]
        self._origins: dict[tuple[str, bytes, int | None], Candidates] = {}

    def find(self, url: Any) -> DependencyOwner | None:
        """Return who owns the state of the dependency; None: the request goes to none of them."""
        origin = (url.scheme, url.raw_host, url.port)
        candidates = self._origins.get(origin)
        if candidates is None:
            candidates = self._remember(origin)
        if not candidates:
            return None
        rule, owner = candidates[0]
        if rule.below and rule.path == "/":
            return owner
        path = url.raw_path.partition(b"?")[0].decode("ascii", "replace") or "/"
        return next((owner for rule, owner in candidates if rule.takes(path)), None)

    def is_alone(self, url: Any) -> bool:
        """Return whether whatever goes to the scheme, host and port of a URL goes to the first dependency that is there."""
        first = next(iter(self._origins.get((url.scheme, url.raw_host, url.port), ())), None)
        return first is not None and first[0].below and first[0].path == "/"

    def _remember(self, origin: tuple[str, bytes, int | None]) -> Candidates:
        scheme, host, port = origin
        place = target(scheme, host.decode("ascii"), port, "/")
        found = tuple(
            (rule, owner) for rule, owner in self._rules if rule.is_at(place.scheme, place.host, place.port)
        )
        if len(self._origins) >= self.MOST_ORIGINS:
            self._origins.clear()
        self._origins[origin] = found
        return found


class Sending:
    """What the attempts of one call have in common.

    Args:
        library: the client library.
        owner: the owner of the dependency's state.
        request: the request of the caller. It is not changed.
        upload: wraps a request body that cannot be sent a second time, so that it is known whether it was begun.
        begun: the first attempt; if it has begun on the short way, the call goes on with it.

    Attributes:
        dependency: who it is for.
        call: the call machine.
        consumed: whether such a body has been begun.
        keyed: whether the request carries an idempotency key.
    """

    __slots__ = (
        "_above", "_caller_until", "_clock", "_header", "_key", "_library", "_lines", "_once", "_says", "_stream", "_tells",
        "call", "dependency", "keyed", "request",
    )  # fmt: skip

    def __init__(
        self,
        library: Library,
        owner: DependencyOwner,
        request: Any,
        upload: Any,
        begun: ShortAttempt | None = None,
    ) -> None:
        self.dependency = owner.dependency
        self.request = request
        self._library = library
        self._clock = owner.clock
        self._header = self.dependency.deadline_header
        self._key: str | None = None
        fields = self.dependency.fields
        self._stream = request.stream
        self._once: Any = None
        if not can_repeat(library, request.stream):
            self._stream = self._once = upload(request.stream)
        now = owner.clock.now()
        # One look at all names: asking the library for a field that is not there costs more than the rest of this.
        self._lines = library.lines(request.headers)
        self._tells = fields.tells
        self._caller_until = math.inf
        named, says, keyed = fields.named, False, False
        for _, name, _ in self._lines:
            if name in named:
                says = True
                break
        if says:
            keyed = self._read(fields, now)
        self._says = says
        if not keyed and request.method in fields.key_methods:
            self._key = _key_of(request, fields.key_version, owner)
            keyed = True
        context, above = CURRENT.get(), None
        if context is not NO_REQUEST and fields.heard is not None:
            above = context.retry_owner(fields.heard)
        self._above = above
        self.keyed = keyed
        deadline_at = None if begun is None else begun.deadline_at
        if deadline_at is None:
            deadline_at = _deadline_at(self.dependency, context, now)
        self.call = Call(
            owner.state if begun is None or begun.deadline_at is None else begun.way.state,
            request.method,
            deadline_at=deadline_at,
            replayable=self._once is None,
            keyed=keyed,
            owned=above is not None,
            facts=USUAL if self.dependency.grouping is None else facts_of(self.dependency.grouping, request),
        )
        if begun is not None and begun.deadline_at is not None:
            self.call.take_over(begun)

    def _read(self, fields: CallFields, now: float) -> bool:
        """Read what the caller himself says in fields of ours; return whether he gave the request a key."""
        headers = self.request.headers
        names = {name for _, name, _ in self._lines}
        if self._header is not None and fields.deadline is not None and fields.deadline[1] in names:
            self._caller_until = now + _told(headers, self._header)
        self._tells = fields.tells and fields.told_names.isdisjoint(names)
        return fields.key_name in names and bool(headers[fields.key].strip())

    @property
    def consumed(self) -> bool:
        """Whether a request body that cannot be sent a second time has been begun."""
        return self._once is not None and self._once.begun

    def scope(self, start: Start) -> Scope:
        """Return what the layers below may know about an attempt that begins now."""
        return Scope(self._clock, self._clock.now() + start.timeout)

    def attempt(self, start: Start, trace: Any) -> Any:
        """Return the request of one attempt: a copy with its own timeouts and what is left of the budget."""
        request = self.request
        fields = self.dependency.fields
        caller = request.extensions.get("timeout")
        extensions = {
            **request.extensions,
            "timeout": timeouts_of(caller, start.timeout, start.connect_timeout),
            "trace": trace,
        }
        lines, replaced = self._lines, []
        left = start.timeout  # What the call's budget allows, too.
        if self._caller_until != math.inf:
            left = min(left, self._caller_until - self._clock.now())
        if fields.deadline is not None and left != math.inf:
            replaced.append((*fields.deadline, format_timeout_ms(left).encode("ascii")))
        if self._key is not None:
            replaced.append((fields.key.encode("ascii"), fields.key_name, self._key.encode("ascii")))
        if replaced and self._says:
            names = [name for _, name, _ in replaced]
            lines = [line for line in lines if line[1] not in names]
        if self._tells:
            replaced += fields.owner_lines(self._above, start.number)
        return self._library.copy(request, [*lines, *replaced], self._stream, extensions)

    def allow_hedges(self) -> None:
        """Say that whoever drives the call can have several attempts under way."""
        retry = self.dependency.retry
        self.call.allow_hedges(
            self.request.method, keyed=self.keyed, insist=retry is not None and retry.insist
        )

    def trace(self, scope: Scope, number: int = 0) -> Trace:
        """Return what follows an attempt on its way through the library. 0: one that has none beside it."""
        allowance = partial(self.allowance, number) if number else self.allowance
        return Trace(scope, self.dependency.fields.deadline, allowance, self.request.extensions.get("trace"))

    def allowance(self, number: int = 0) -> str | None:
        """Return what to tell the dependency in this instant; None: nothing, there is no bound. 0: of the last attempt."""
        if self._header is None:
            return None
        now = self._clock.now()
        left = min(self.call.budget(now, number), self._caller_until - now)
        return None if left == math.inf else format_timeout_ms(left)


def can_hedge(library: Library, dependencies: Sequence[Dependency]) -> bool:
    """Return whether attempts through a library may run side by side; warn of hedges that are not made because not."""
    if hasattr(getattr(library.module, "Response", None), "iter_raw"):
        return True
    for dependency in dependencies:
        if dependency.hedge is not None:
            warnings.warn(
                f"Dependency({dependency.name!r}).hedge is not used by this client, which is none of httpx: its attempts "
                "come one after the other",
                ResilienceWarning,
                stacklevel=4,
            )
    return False


def facts_of(grouping: GroupRules, request: Any) -> Facts:
    """Return which route group a request belongs to."""
    url = request.url
    path = url.raw_path.partition(b"?")[0].decode("ascii", "replace")
    place = target(url.scheme, url.raw_host.decode("ascii"), url.port, path)
    return Facts(grouping.group(request.method, place))


def can_repeat(library: Library, stream: object) -> bool:
    """Return whether a request body can be sent a second time: bytes, or a form of bytes."""
    if isinstance(stream, library.bytes_stream):
        return True
    fields = getattr(stream, "fields", None)
    if type(stream).__name__ != "MultipartStream" or not isinstance(fields, list):
        return False
    return all(isinstance(getattr(field, "file", b""), bytes | str) for field in fields)


def _key_of(request: Any, version: int, owner: DependencyOwner) -> str:
    """Return the value of the key's field; a new key is kept in the request's extensions.

    Raises:
        ValueError: the caller's key is none.
    """
    key = request.extensions.get(OWN_KEY)
    if key is None:
        job = RUNNING_JOB.get()
        if job is None:
            key = owner.new_key(version)
        else:
            path = request.url.raw_path.partition(b"?")[0].decode("ascii", "replace")
            key = job.next_call(version, owner.dependency.name, request.method, path)
        request.extensions[OWN_KEY] = key
    return format_key(str(key))


def _deadline_at(dependency: Dependency, context: RequestContext, now: float) -> float:
    left = math.inf if context is NO_REQUEST else context.remaining()
    if left == math.inf and dependency.total_timeout is not None:
        left = dependency.total_timeout
    return now + left


def _told(headers: Any, name: str) -> float:
    """Return the smallest budget in seconds that the caller himself wrote into the field; inf if none is valid."""
    known = name if name.lower() in DEADLINE_PARSERS else MILLISECONDS
    read = (parse_deadline(known, [value]) for value in headers.get_list(name))
    return min((seconds for seconds in read if seconds is not None), default=math.inf)
