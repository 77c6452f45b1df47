"""A dependency: one thing that this service calls, and how it may be called."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar, overload

from resilient_mw.calls.adaptive import AdaptivePolicy
from resilient_mw.calls.bulkhead import BulkheadPolicy
from resilient_mw.calls.config import BreakerPolicy, RetryPolicy
from resilient_mw.calls.dependency_checks import check_numbers, check_types, warnings_of
from resilient_mw.calls.fallback import Fallback
from resilient_mw.calls.fields import CallFields, prepare_fields
from resilient_mw.calls.groups import GroupRules, KeyOf
from resilient_mw.calls.guarded import Exceptions
from resilient_mw.calls.hedge import HedgePolicy
from resilient_mw.calls.key import IdempotencyKeys
from resilient_mw.calls.match import MatchRule, Target, parse_rule
from resilient_mw.calls.ownership import RetryOwnership
from resilient_mw.calls.throttle import ThrottlePolicy
from resilient_mw.calls.timeout import TimeoutPolicy
from resilient_mw.core.checks import require_name
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.core.ports import CircuitOwner, FunctionCalls, function_calls

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Dependency:
    """One thing that this service calls: its name, the requests that go to it, and its policies.

    The object owns the state: a sync and an async client that are given the same object share one breaker, one bulkhead
    and one retry budget.

    Attributes:
        name: a stable name, also a metric label.
        match: the requests that go to it: a pattern like `http://prices/*`, or several. Empty: it is
            used by `call`, `acall` and `guard` only.
        timeout: seconds that one attempt may take, its body included, however large the caller's budget is. None: only
            the budget bounds it.
        connect_timeout: seconds for name resolution, connecting and TLS.
        total_timeout: seconds for a whole call outside any request or `budget()`.
        retry: when to try again; None: never.
        breaker: when to stop asking; None: never.
        bulkhead: most attempts at once, bodies included; one more is refused at once, or waits as a
            `BulkheadPolicy` says. None: no bound.
        reserve: seconds of the caller's budget kept back for his own answer.
        smallest_budget: seconds; with less nothing is sent.
        deadline_header: the field that tells the dependency what is left, in milliseconds; None: none is sent.
        throttle: when to send less to a dependency that refuses most of what it gets; None: never.
        adaptive: whether the attempts at once are found by trying, between its floor and the bulkhead; None: they are the
            bulkhead.
        trusted: whether its `X-Refusal-Reason` is believed: the work was not begun, so any method may be repeated.
        exceptions: what the exceptions of guarded functions say about it, by class: `failed`, `timeout`, `unsent`,
            `neutral` or `answered`; or a function that says it. By default a `TimeoutError` is a timeout, `CallRefused`
            is neutral and every other one says that it failed.
        idempotency_key: the field in which POST and PATCH get a key, the same for all attempts of one call, or what is to
            get one (`IdempotencyKeys`). None: only requests that bring their own have one.
        ownership: how it is told that this service retries, if it is trusted, and how this service hears that its own
            caller does. None: neither.
        adaptive_timeout: derives the timeout of an attempt from those before it; None: it is `timeout`.
        groups: named route groups, each with a breaker and attempt times of its own: patterns by name, such as
            `{"search": "GET /search/*"}`.
        group_key: `host`, or a function of method and target: a group for each key; asked where no named group matches.
        fallback: what is answered instead of an error; None: nothing.
        hedge: when an attempt that takes long gets a second one beside it; None: never.

    Raises:
        ValueError: naming the field, the value and the allowed range.

    A `ResilienceWarning` says what has no effect, or less than it seems, and what to change.
    """

    name: str
    match: str | Sequence[str] = ()
    timeout: float | None = field(default=2.0, kw_only=True)
    connect_timeout: float | None = field(default=0.5, kw_only=True)
    total_timeout: float | None = field(default=10.0, kw_only=True)
    retry: RetryPolicy | None = field(default_factory=RetryPolicy, kw_only=True)
    breaker: BreakerPolicy | None = field(default_factory=BreakerPolicy, kw_only=True)
    bulkhead: int | BulkheadPolicy | None = field(default=None, kw_only=True)
    reserve: float = field(default=0.01, kw_only=True)
    smallest_budget: float = field(default=0.005, kw_only=True)
    deadline_header: str | None = field(default="X-Request-Timeout-Ms", kw_only=True)
    trusted: bool = field(default=True, kw_only=True)
    exceptions: Exceptions | None = field(default=None, kw_only=True, repr=False)
    throttle: ThrottlePolicy | None = field(default=None, kw_only=True)
    adaptive: AdaptivePolicy | None = field(default=None, kw_only=True)
    idempotency_key: IdempotencyKeys | str | None = field(default=None, kw_only=True)
    ownership: RetryOwnership | None = field(default_factory=RetryOwnership, kw_only=True)
    fields: CallFields = field(init=False, repr=False)
    adaptive_timeout: TimeoutPolicy | None = field(default=None, kw_only=True)
    groups: Mapping[str, str | Sequence[str]] | None = field(default=None, kw_only=True)
    group_key: Literal["host"] | KeyOf | None = field(default=None, kw_only=True)
    grouping: GroupRules | None = field(default=None, init=False, repr=False)
    """What the two fields before mean; None: no route groups."""
    fallback: Fallback | None = field(default=None, kw_only=True)
    hedge: HedgePolicy | None = field(default=None, kw_only=True)
    rules: tuple[MatchRule, ...] = field(init=False, repr=False)
    owner: list[CircuitOwner] = field(default_factory=list, init=False, repr=False)
    """Holds the one owner of this dependency's state and lock."""

    def __post_init__(self) -> None:
        require_name("Dependency.name", self.name)
        check_types(self)
        check_numbers(self)
        patterns = (self.match,) if isinstance(self.match, str) and self.match else tuple(self.match)
        if self.groups or self.group_key is not None:
            object.__setattr__(self, "grouping", GroupRules(self.groups, self.group_key))
        object.__setattr__(self, "rules", tuple(parse_rule(pattern) for pattern in patterns))
        self._prepare_fields()
        for warning in warnings_of(self):
            warnings.warn(f"Dependency({self.name!r}).{warning}", ResilienceWarning, stacklevel=3)

    def _prepare_fields(self) -> None:
        keys = self.idempotency_key
        if isinstance(keys, str):
            keys = IdempotencyKeys(header=keys)
        fields = prepare_fields(
            deadline_header=self.deadline_header,
            trusted=self.trusted,
            retry=self.retry,
            keys=keys,
            ownership=self.ownership,
        )
        object.__setattr__(self, "fields", fields)

    @property
    def most_attempts(self) -> int | None:
        """The most attempts at once; None: no bound."""
        return self.bulkhead.limit if isinstance(self.bulkhead, BulkheadPolicy) else self.bulkhead

    def matches(self, target: Target) -> bool:
        """Return whether a request goes to this dependency."""
        return any(rule.matches(target) for rule in self.rules)

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function as a call to this dependency: an SDK, SQL, a stub of gRPC. Return what it returns.

        `current()` inside it knows the attempt's deadline. A thread cannot be interrupted: what comes late is returned,
        and counted. It runs once, unless what it raises says that it never began; `guard(idempotent=True).call(...)` may
        repeat it.

        Raises:
            CallRefused: the circuit is open, the bulkhead full or the budget too small.
            DeadlineExceeded: the deadline has passed, or the attempt's time; its `phase` says where.
            Exception: what the function raised, unchanged.
        """
        return function_calls(self, idempotent=False).call(fn, *args, **kwargs)

    async def acall(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await what a function returns as a call to this dependency; as `call`, and cancelled when its time is over."""
        return await function_calls(self, idempotent=False).acall(fn, *args, **kwargs)

    @overload
    def guard(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def guard(self, /, *, idempotent: bool = False) -> FunctionCalls: ...
    def guard(
        self, function: Callable[P, R] | None = None, /, *, idempotent: bool = False
    ) -> Callable[P, R] | FunctionCalls:
        """Return a function, sync or async, guarded: each call of it is a call to this dependency. A decorator.

        `guard(idempotent=True)` is one too, for functions that may run again after a failure; it also has `call` and
        `acall`, for a single call.

        Raises:
            TypeError: it is no function, or a generator function.
        """
        calls = function_calls(self, idempotent=idempotent)
        return calls if function is None else calls(function)

    def snapshot(self) -> DependencySnapshot:
        """Return the figures of this instant: calls, attempts, what is in use, and how the circuit has changed.

        Raises:
            RuntimeError: no transport was made with this dependency object, and no function guarded.
        """
        return self._owned().snapshot()

    def open_circuit(self) -> None:
        """Refuse every attempt from now on, until `close_circuit` or `reset_circuit`. Safe in any thread.

        Raises:
            RuntimeError: no transport was made with this dependency object, or it has no breaker.
        """
        self._owned().by_hand("open")

    def close_circuit(self) -> None:
        """Let every attempt through from now on, whatever fails. See `open_circuit`."""
        self._owned().by_hand("close")

    def reset_circuit(self) -> None:
        """Let the breaker judge again, beginning closed and with nothing counted. See `open_circuit`."""
        self._owned().by_hand("reset")

    def _owned(self) -> CircuitOwner:
        if not self.owner:
            raise RuntimeError(
                f"Dependency({self.name!r}) has no figures yet: make a transport with this very object first, or guard a function"
            )
        return self.owner[0]


def check_dependencies(dependencies: Sequence[Dependency]) -> tuple[Dependency, ...]:
    """Return the dependencies of one client; the first one that matches a request is the one.

    Raises:
        ValueError: a name stands twice, or a rule can never match because an earlier one covers it.
    """
    seen: list[Dependency] = []
    for dependency in dependencies:
        if not isinstance(dependency, Dependency):
            raise ValueError(f"dependencies holds {dependency!r}: each of them must be a Dependency")
        if not dependency.rules:
            raise ValueError(
                f"dependency {dependency.name!r} gets no request: its match names no pattern. Give it one, or use its "
                "call(), acall() and guard()"
            )
        for earlier in seen:
            if earlier.name == dependency.name:
                raise ValueError(f"dependencies name {dependency.name!r} twice: each name may stand once")
            for rule in dependency.rules:
                for before in earlier.rules:
                    if before.covers(rule):
                        raise ValueError(
                            f"dependency {dependency.name!r} never gets {rule.pattern!r}: {before.pattern!r} of "
                            f"{earlier.name!r} comes first and covers it. Put {dependency.name!r} before it"
                        )
        seen.append(dependency)
    return tuple(seen)
