"""The policy of idempotency keys of one application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from resilient_mw.core.checks import (
    require_flag,
    require_function,
    require_header_name,
    require_integer,
    require_name,
    require_number,
)
from resilient_mw.core.events import Event
from resilient_mw.core.head import RequestHead
from resilient_mw.core.idempotent import (
    IdempotencyRule,
    OnUnknown,
    StoreDown,
    Use,
    Wait,
    check_rule,
    require_statuses,
)
from resilient_mw.core.routes import check_path
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import About

KEPT_STATUSES: Final = frozenset(range(200, 500)) - {408, 425, 429}
"""The answers that are kept: success, redirects and what the caller did wrong; not "come back later", and nothing of ours."""

READING: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
"""Methods to which no rule of a route applies."""

Verdict = StoredAnswer | Literal["not_done", "unknown"]
"""What a status function says: the answer of work that was done, `not_done`: run it, `unknown`: it cannot tell."""


class StatusFunction(Protocol):
    """Asks the operation itself what became of work whose outcome is unknown."""

    def __call__(self, about: About) -> Verdict | Awaitable[Verdict]:
        """Return the verdict.

        It runs while this attempt has the record, so never twice at one time for one key. May be async under ASGI. If it
        raises, or says anything else, the outcome stays unknown.

        Args:
            about: the key as the caller sent it, the caller in clear, method and route.
        """
        ...


class IdempotencyRoute:
    """Says how the requests to some paths treat idempotency keys, for those who cannot mark the endpoint.

    The first one that matches decides, and what it says goes before a mark.

    Args:
        path: `/payments`, `/payments/{id}` or `/payments/*` (everything below, and `/payments` itself).
        rule: how.
        methods: HTTP methods; none given: all but GET, HEAD, OPTIONS and TRACE.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    __slots__ = ("methods", "path", "rule")

    def __init__(self, path: str, rule: IdempotencyRule, *, methods: Collection[str] = ()) -> None:
        check_path(path, "IdempotencyRoute.path")
        if not isinstance(rule, IdempotencyRule):
            raise ValueError(f"IdempotencyRoute.rule={rule!r} is not allowed: it must be an IdempotencyRule")
        self.path = path
        self.rule = rule
        self.methods = _methods("IdempotencyRoute.methods", methods)

    def __repr__(self) -> str:
        return f"IdempotencyRoute({self.path!r}, {self.rule!r}, methods={sorted(self.methods)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyPolicy:
    """How an application treats idempotency keys.

    One of `caller` and `single_tenant` must be given: a key belongs to its caller, and without one anybody could read the answer
    of somebody else by guessing a key.

    Attributes:
        caller: who sends a request: the name of a header field, or a function of the request's head
            (`resilient_mw.core.head.RequestHead`) that returns a text, or None for nobody in particular, who gets no replay:
            his requests run unprotected where a key is optional, and are refused where it is required.
        single_tenant: True: all callers are one.
        use: for the `methods`, on routes that say nothing: `required`, `optional` or `off`.
        methods: the methods that may have a key on routes that say nothing.
        routes: what single routes do otherwise; see also the decorator `idempotent_route`.
        header: the field that has the key.
        strict: only the quoted form of the draft is a key.
        wait: `join`: a repeat waits for the answer of the first request; `conflict`: it gets 409 at once.
        max_wait: seconds that it waits at most, and never longer than its deadline.
        max_waiting: repeats that wait at one time in this process; more get 409.
        fingerprint_headers: fields that tell a repeat from another request, beside path, query and body.
        canonical_json: bytes of body up to which JSON is compared by its meaning; 0: always by its bytes.
        buffer_request: bytes of request body that are read before the handler runs, so that another payload is noticed at
            once. A longer body streams, and is hashed while it does.
        lease: seconds after which an attempt counts as dead.
        heartbeat: seconds between two renewals of the lease while the handler runs. None: a third of the lease.
        keep: seconds for which answers, and keys whose outcome is unknown, are kept.
        keep_statuses: the statuses whose answers are kept. With another one the key is free again.
        max_answer: bytes of the largest body that is kept.
        drop_headers: header fields that are not kept, beside those that never are (`answers.NEVER_KEPT`).
        max_records: live records that one caller may have; with `single_tenant` nobody counts them.
        on_unknown: what becomes of a key whose work was begun and may have been done: `refuse` (409), `retry`, or the
            operation's status function is asked. A crash, a deadline and a caller who leaves are such cases.
        store_down: while the store is away: `closed`: 503; `open`: the work runs unprotected.
        store_timeout: seconds that one question to the store may take, and never longer than the deadline.
        show_caller: whether records have the caller in clear, for operators.
        listeners: called with a `KeyUsed` for each request with a key; an error in one is counted and does no harm.
        name: names the application in metrics.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    caller: str | Callable[[RequestHead], str | None] | None = None
    single_tenant: bool = False
    use: Use = "optional"
    methods: Collection[str] = ("POST", "PATCH")
    routes: Sequence[IdempotencyRoute] = ()
    header: str = "Idempotency-Key"
    strict: bool = False
    wait: Wait = "join"
    max_wait: float = 30.0
    max_waiting: int = 1000
    fingerprint_headers: Collection[str] = ()
    canonical_json: int = 0
    buffer_request: int = 65_536
    lease: float = 30.0
    heartbeat: float | None = None
    keep: float = 86_400.0
    keep_statuses: Collection[int] = field(default=KEPT_STATUSES)
    max_answer: int = 1_048_576
    drop_headers: Collection[str] = ()
    max_records: int = 10_000
    on_unknown: OnUnknown = "refuse"
    store_down: StoreDown = "closed"
    store_timeout: float = 2.0
    show_caller: bool = False
    listeners: Sequence[Callable[[Event], None]] = ()
    name: str = "app"

    def __post_init__(self) -> None:
        for name in ("single_tenant", "strict", "show_caller"):
            require_flag(f"IdempotencyPolicy.{name}", getattr(self, name))
        self._check_caller()
        for name in (
            "use",
            "wait",
            "on_unknown",
            "store_down",
            "lease",
            "keep",
            "canonical_json",
            "max_answer",
        ):
            if getattr(self, name) is None:
                raise ValueError(f"IdempotencyPolicy.{name}=None is not allowed: it must be given a value")
        check_rule("IdempotencyPolicy", self)
        require_header_name("IdempotencyPolicy.header", self.header)
        require_name("IdempotencyPolicy.name", self.name)
        require_number("IdempotencyPolicy.max_wait", self.max_wait, low=0, high=86_400)
        require_number("IdempotencyPolicy.store_timeout", self.store_timeout, low=0.001, high=3_600)
        require_integer("IdempotencyPolicy.max_waiting", self.max_waiting, low=0)
        require_integer("IdempotencyPolicy.max_records", self.max_records, low=1)
        require_integer("IdempotencyPolicy.buffer_request", self.buffer_request, low=0, high=1 << 30)
        if self.heartbeat is not None:
            require_number("IdempotencyPolicy.heartbeat", self.heartbeat, low=0.01, high=self.lease / 2)
        for route in self.routes:
            if not isinstance(route, IdempotencyRoute):
                raise ValueError(
                    f"IdempotencyPolicy.routes={route!r} is not allowed: it must hold IdempotencyRoute values"
                )
        self._set("methods", _methods("IdempotencyPolicy.methods", self.methods))
        self._set("routes", tuple(self.routes))
        for listener in self.listeners:
            require_function("IdempotencyPolicy.listeners", listener, "an event")
        self._set("listeners", tuple(self.listeners))
        self._set("keep_statuses", require_statuses("IdempotencyPolicy.keep_statuses", self.keep_statuses))
        for name in ("fingerprint_headers", "drop_headers"):
            self._set(name, _fields(f"IdempotencyPolicy.{name}", getattr(self, name)))

    def _check_caller(self) -> None:
        if self.single_tenant is (self.caller is not None):
            raise ValueError(
                f"IdempotencyPolicy.caller={self.caller!r} with single_tenant={self.single_tenant} is not allowed: name who "
                "sends a request, or say single_tenant=True if all callers are one; not both"
            )
        if isinstance(self.caller, str):
            require_header_name("IdempotencyPolicy.caller", self.caller)
        elif self.caller is not None:
            require_function("IdempotencyPolicy.caller", self.caller, "the request's head")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def caller_of(self, head: RequestHead) -> str | None:
        """Return who sends a request: empty for an API with a single tenant, None for nobody in particular."""
        if self.caller is None:
            return ""
        if not isinstance(self.caller, str):
            return self.caller(head) or None
        return "\n".join(head.values(self.caller.lower())) or None


def authenticated(head: RequestHead) -> str | None:
    """Return who the authentication that ran before us says it is; for `IdempotencyPolicy.caller`.

    Under ASGI that is `scope["user"].identity` (or `display_name`), which Starlette's `AuthenticationMiddleware` sets; under
    WSGI `REMOTE_USER`.
    """
    scope: Any = head.scope
    user = scope.get("user")
    if user is not None and getattr(user, "is_authenticated", False):
        for name in ("identity", "display_name"):
            try:
                text = getattr(user, name, "")
            except NotImplementedError:  # Starlette's base class, where a user has no such thing
                continue
            if text:
                return str(text)
    remote = scope.get("REMOTE_USER")
    return str(remote) if remote else None


def _methods(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError(f"{name}={value!r} is not allowed: it must hold methods, such as 'POST'")
    for method in value:
        if (
            not isinstance(method, str)
            or not method.isascii()
            or not method.isalpha()
            or method.upper() in READING
        ):
            raise ValueError(f"{name}={method!r} is not allowed: it must be a method that changes something")
    return frozenset(method.upper() for method in value)


def _fields(name: str, value: object) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise ValueError(f"{name}={value!r} is not allowed: it must hold names of header fields")
    return frozenset(require_header_name(name, each).lower() for each in value)
