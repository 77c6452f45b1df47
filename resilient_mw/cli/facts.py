"""What is known of a protected application before anything is concluded from it: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.marks import Mark
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.idempotency.policy import IdempotencyPolicy

THREADS = 40
"""Threads in which an ASGI framework runs sync endpoints, unless somebody has changed it: anyio's default."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the user says of the traffic and the servers.

    Attributes:
        service_time: seconds that a request typically takes; None: as observed in this process, else unknown.
        rate: requests per second that all processes together get; None: unknown.
        workers: server processes.
        threads: worker threads of one process; None: anyio's default under ASGI, unknown under WSGI.
        machines: machines on which these processes are.
    """

    service_time: float | None = None
    rate: float | None = None
    workers: int = 1
    threads: int | None = None
    machines: int = 1


@dataclass(frozen=True, slots=True)
class RouteFact:
    """One route as its route source found it.

    Attributes:
        template: the path as the framework writes it.
        methods: HTTP methods; None: any, or unknown.
        mark: what the endpoint and what surrounds it say.
        threaded: whether the framework runs the endpoint in a thread of its pool.
    """

    template: str
    methods: frozenset[str] | None = None
    mark: Mark | None = None
    threaded: bool = False


@dataclass(frozen=True, slots=True)
class AppFacts:
    """One middleware and the application in it.

    Attributes:
        protocol: `asgi` or `wsgi`.
        policy: the policy in force.
        routes: HTTP routes; None: no route source knows the application.
        websockets: templates of websocket routes.
        snapshot: what ran under the policy in this process.
        sources: where each field of the policy comes from.
    """

    protocol: str
    policy: ServerPolicy
    routes: tuple[RouteFact, ...] | None
    websockets: tuple[str, ...]
    snapshot: AppSnapshot
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeysFacts:
    """One middleware of idempotency keys and the application in it.

    Attributes:
        protocol: `asgi` or `wsgi`.
        policy: the policy.
        store: the name of the store's class.
        shared: who sees its records: `process`, `machine` or `network`.
        around: whether a `ResilienceMiddleware` is inside it.
        routes: as of `AppFacts`.
    """

    protocol: str
    policy: IdempotencyPolicy
    store: str
    shared: str
    around: bool
    routes: tuple[RouteFact, ...] | None


@dataclass(frozen=True, slots=True)
class DependencyFacts:
    """One dependency and what became of the calls to it in this process."""

    dependency: Dependency
    snapshot: DependencySnapshot


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found in this process.

    Attributes:
        target: what the user asked about, `module:app`.
        apps: one entry per middleware, the outermost first.
        dependencies: by name.
        lost_marks: marked objects that lead to no route of any application, with the reason.
        disabled: whether the kill switch lets every request pass.
        keys: one entry per middleware of idempotency keys, the outermost first.
    """

    target: str
    apps: tuple[AppFacts, ...]
    dependencies: tuple[DependencyFacts, ...] = ()
    lost_marks: Mapping[str, str] | None = None
    disabled: bool = False
    keys: tuple[KeysFacts, ...] = ()
