"""The policy of one application: every number of the server half, checked when it is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from resilient_mw.admission.head_rule import TenantOf
from resilient_mw.admission.overload_policy import REPORTED, OverloadPolicy, Signal
from resilient_mw.admission.owner import PolicyOwner
from resilient_mw.admission.policy_checks import check_policy
from resilient_mw.admission.policy_numbers import PolicyNumbers
from resilient_mw.core.events import Event
from resilient_mw.core.marks import Mark
from resilient_mw.core.pages import PageFunction
from resilient_mw.core.priority import DEFAULT_CLASSES, EXEMPT, PriorityClass
from resilient_mw.core.quotas import Quota, QuotaStore
from resilient_mw.core.routes import RouteRule
from resilient_mw.core.snapshot import AppSnapshot, Readiness

if TYPE_CHECKING:
    from resilient_mw.admission.overrides import PolicyOverrides

OVERLOAD = OverloadPolicy()
"""What counts as overload unless the policy says otherwise."""

HEALTH_PATHS = ("/health", "/healthz", "/livez", "/readyz", "/ping", "/metrics")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, kw_only=True)
class ServerPolicy(PolicyNumbers):
    """How one application is protected.

    The policy object owns the state: two middlewares made with the same object share one limit and one queue, two
    equal objects do not.

    Attributes:
        limit: slots: how many requests run at the same time. `"auto"` is 40, the size of the usual thread pool.
        queue: most requests that wait at once, all classes together. None: as many as there are slots, one service
            time's worth.
        threads: worker threads that a WSGI server gives this process. None: as the server tells; see docs/wsgi.md.
        spare_threads: threads that are left for health checks and refusals while everything else is busy.
        fit_queue: whether a queue for which there are not enough threads is shortened; if not, a warning says so at start.
        max_wait: seconds; the longest wait for a slot.
        wait_share: the part of a request's budget that it may spend waiting.
        classes: priority classes, highest rank first.
        default_class: the class of a route that says nothing.
        exempt_limit: most exempt requests at once.
        exempt_paths: exact paths, below the root path, that are exempt for GET and HEAD.
        websocket_limit: most websockets that are open at once. They take no slots and do not wait. None: they pass
            untouched.
        stream_limit: most requests that are open at once on routes whose slot is held for the head of the response only.
        deadline_default: seconds for callers who send no budget, and the most an untrusted caller can ask for.
        deadline_minimum: seconds; a smaller wish of an untrusted caller is raised to it.
        deadline_maximum: seconds; the most that anybody gets.
        smallest_budget: seconds; a request with less is refused before any work.
        trusted_peers: whose deadline header may lengthen the default: networks such as `"10.0.0.0/8"`, or a function
            of the peer's address. Nobody by default.
        trusted_hops: how many proxies stand before this server, each of which adds its peer to `X-Forwarded-For`. The
            word of the address that the outermost one added then decides whether a deadline header may lengthen, if
            the proxy that speaks to this server is itself one of `trusted_peers`. 0: the address of the connection.
        max_body: bytes of the largest request body. A larger one gets 413: before a slot is taken if its
            `Content-Length` says so, else as soon as more has been read. None: any size.
        deadline_response_header: name of a response header that tells the caller the milliseconds that were left when
            the head of the response left. None: no such header.
        shadow: the defences that only report what they would have done: `admission`, `deadlines`, `quotas`. True: all of
            them; False or empty: none.
        routes: rules by path; the first that matches decides, before marks.
        tenant: on whose behalf a request comes: the name of a header, or a function of the request's head such as
            `resilient_mw.admission.head_rule.tenant_from_scope("user", "tenant_id")`. None: nobody's in particular.
        tenant_labels: tenants that have counts of their own in metrics; all others are `other` there. Empty: none has.
        quotas: how many requests each tenant may send in a time; over one of them a request gets 429.
        quota_store: counts for the quotas. None: in the memory of this process, by the library `limits`.
        quota_store_away: who decides while the store is away: `"local"`, what this process has counted itself, `"open"`
            (everybody passes) or `"closed"` (nobody does).
        overload: what counts as overload, for shedding, cheaper variants and readiness. None: nothing is measured.
        listeners: called with each event, outside every lock; an error in one is counted and does no harm.
        name: names the application in metrics.
        cors_origins: the origins whose pages may read refusals, or `"*"`. For a middleware outside the application's
            CORS layer.
        cors_credentials: whether they may also read the refusals of requests with cookies.
        refusal_page: draws the body of refusals and 504s in the application's way: a function of a
            `resilient_mw.core.pages.RefusedRequest`. None: the problem document.
        debug: whether the body of a refusal says class, limit, requests in flight, queue length and remaining budget.
        ramp: seconds over which the limit grows from a tenth to the whole, from the first request on. 0: it is whole at
            once.
        drain_delay: seconds for which a server that is about to stop still takes new requests, so that load balancers can
            notice that it is not ready any more.
        drain_timeout: seconds after that in which what runs may finish; then it is cancelled.
        blocked_after: seconds that an event loop may be behind before the service is not ready.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    limit: int | str = "auto"
    queue: int | None = None
    threads: int | None = None
    spare_threads: int = 4
    fit_queue: bool = False
    max_wait: float = 1.0
    wait_share: float = 0.25
    classes: Sequence[PriorityClass] = DEFAULT_CLASSES
    default_class: str = "normal"
    exempt_limit: int = 100
    exempt_paths: Sequence[str] = HEALTH_PATHS
    websocket_limit: int | None = 512
    stream_limit: int = 256
    deadline_default: float = 10.0
    deadline_minimum: float = 0.0
    deadline_maximum: float = 60.0
    smallest_budget: float = 0.005
    trusted_peers: Sequence[str] | Callable[[str], bool] = ()
    trusted_hops: int = 0
    max_body: int | None = None
    deadline_response_header: str | None = None
    shadow: Collection[str] | bool = ()
    routes: Sequence[RouteRule] = ()
    tenant: str | TenantOf | None = None
    tenant_labels: Sequence[str] = ()
    quotas: Sequence[Quota] = ()
    quota_store: QuotaStore | None = None
    quota_store_away: str = "local"
    overload: OverloadPolicy | None = OVERLOAD
    listeners: Sequence[Callable[[Event], None]] = ()
    name: str = "app"
    cors_origins: Sequence[str] = ()
    cors_credentials: bool = False
    refusal_page: PageFunction | None = None
    debug: bool = False
    ramp: float = 0.0
    drain_delay: float = 0.0
    drain_timeout: float = 20.0
    blocked_after: float = 1.0
    owner: list[PolicyOwner] = field(default_factory=list, init=False, repr=False)
    """Holds the one guard that owns this policy's state; see `runtime.guard.guard_of`."""

    def __post_init__(self) -> None:
        check_policy(self)

    def check_mark(self, mark: Mark, where: str) -> None:
        """Check what an endpoint or a rule says against this policy.

        Raises:
            ValueError: the class does not exist, or the cost can never fit.
        """
        names = [each.name for each in self.classes]
        if mark.priority is not None and mark.priority != EXEMPT and mark.priority not in names:
            raise ValueError(
                f"{where} names the priority class {mark.priority!r}, which does not exist: "
                f"it must be one of {[*names, EXEMPT]}"
            )
        if isinstance(mark.cost, int) and mark.priority != EXEMPT:
            most = self.most_cost(self.default_class if mark.priority is None else mark.priority)
            if mark.cost > most:
                raise ValueError(
                    f"{where} has cost={mark.cost!r}, which is not allowed: "
                    f"it must be at most {most}, the slots that its class can ever have"
                )

    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant: what runs, waits and was refused under this policy.

        Raises:
            RuntimeError: no middleware was made with this policy object.
        """
        return self._owner().snapshot()

    def drain(self, delay: float | None = None, timeout: float | None = None) -> None:
        """Begin to stop: readiness falls at once, new requests are refused after a delay.

        What runs or waits goes on; what still runs `timeout` seconds after the delay is cancelled (`shutdown`). Exempt
        requests still pass. A second call may bring the end forward. It takes no lock: a signal handler may call it.

        Args:
            delay: seconds for which new requests are still taken; None: `drain_delay`.
            timeout: seconds after that in which what runs may finish; None: `drain_timeout`.

        Raises:
            ValueError: a number is negative.
            RuntimeError: no middleware was made with this policy object.
        """
        self._owner().drain(delay, timeout)

    def drain_on_signal(self, number: int | None = None) -> None:
        """Drain at a signal, and let the server's own handler have it when `drain_delay` is over; a second one at once.

        For servers whose processes get the signal themselves; call it in the main thread when the server has started: in
        the application's lifespan, or in a hook such as gunicorn's `post_worker_init`. POSIX only.

        Args:
            number: the signal; None: SIGTERM.

        Raises:
            ValueError: this is not the main thread, or the handler that is there cannot be called.
            RuntimeError: no middleware was made with this policy object.
        """
        self._owner().drain_on_signal(number)

    def reload(self, policy: ServerPolicy | None = None, **changes: Unpack[PolicyOverrides]) -> ServerPolicy:
        """Put other values in force for new requests, in all middlewares of this policy; from any thread.

        What runs goes on, who waits keeps his place, counters go on counting. If the new limit is smaller, nothing new starts
        until enough slots have come back. Nothing changes if this raises.

        Args:
            policy: the new values; None: those in force.
            **changes: fields that differ from them.

        Returns:
            The policy in force. This object and the new one both speak for the service from now on.

        Raises:
            TypeError: a field does not exist.
            ValueError: a value is not allowed, does not fit a route, or cannot be reloaded: `name`, `overload`, `ramp`,
                `shadow`, the names of the classes, and whether there is a `websocket_limit`.
            RuntimeError: no middleware was made with this policy object.
        """
        return self._owner().reload(policy, changes)

    def readiness(self) -> Readiness:
        """Return whether requests should be sent here, for the answer of a `/readyz`.

        It is not ready while draining or starting, with a blocked event loop, and, if
        `OverloadPolicy.readiness_falls_on_overload` says so, while overloaded.

        Raises:
            RuntimeError: no middleware was made with this policy object.
        """
        return self._owner().readiness()

    def report(self, signal: str, reading: float | None, source: str = "") -> None:
        """Tell the overload level what only you can measure.

        Args:
            signal: `pool_wait` (seconds that a connection was waited for), `dependency_latency` (the typical attempt / its
                timeout) or `dependency_errors` (failed attempts / attempts).
            reading: None if it is unknown, which changes nothing. A reading holds until the next one of its signal and
                source, for `OverloadPolicy.stale_after` seconds: report while there is traffic, a few times a minute
                at least.
            source: the name of the pool or dependency; the worst of several counts.

        Raises:
            ValueError: there is no such signal, or it is measured by the middleware itself.
            RuntimeError: no middleware was made with this policy object.
        """
        if signal not in REPORTED:
            raise ValueError(f"signal={signal!r} is not allowed: it must be one of {sorted(REPORTED)}")
        self._owner().report(Signal(signal), reading, source)

    def _owner(self) -> PolicyOwner:
        if not self.owner:
            raise RuntimeError(
                f"no middleware was made with the policy {self.name!r} yet: give it to one first. FastAPI and Starlette make "
                "theirs when the server starts, so ask in the lifespan or in a request"
            )
        return self.owner[0]

    def with_changes(self, changes: Mapping[str, Any] = MappingProxyType({})) -> ServerPolicy:
        """Return this policy, or a new one that differs in the given fields.

        Raises:
            TypeError: a field does not exist.
            ValueError: a value is not allowed.
        """
        return replace(self, **changes) if changes else self
