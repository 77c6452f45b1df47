"""The fields of `ServerPolicy` as keywords of a middleware, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypedDict

from resilient_mw.admission.head_rule import TenantOf
from resilient_mw.admission.overload_policy import OverloadPolicy
from resilient_mw.core.events import Event
from resilient_mw.core.pages import PageFunction
from resilient_mw.core.priority import PriorityClass
from resilient_mw.core.quotas import Quota, QuotaStore
from resilient_mw.core.routes import RouteRule


class PolicyOverrides(TypedDict, total=False):
    """What may be given to a middleware beside, or instead of, a policy. The fields are those of `ServerPolicy`."""

    limit: int | str
    queue: int | None
    threads: int | None
    spare_threads: int
    fit_queue: bool
    max_wait: float
    wait_share: float
    classes: Sequence[PriorityClass]
    default_class: str
    exempt_limit: int
    exempt_paths: Sequence[str]
    websocket_limit: int | None
    stream_limit: int
    deadline_default: float
    deadline_minimum: float
    deadline_maximum: float
    smallest_budget: float
    trusted_peers: Sequence[str] | Callable[[str], bool]
    trusted_hops: int
    max_body: int | None
    deadline_response_header: str | None
    shadow: Collection[str] | bool
    routes: Sequence[RouteRule]
    tenant: str | TenantOf | None
    tenant_labels: Sequence[str]
    quotas: Sequence[Quota]
    quota_store: QuotaStore | None
    quota_store_away: str
    overload: OverloadPolicy | None
    listeners: Sequence[Callable[[Event], None]]
    name: str
    cors_origins: Sequence[str]
    cors_credentials: bool
    refusal_page: PageFunction | None
    debug: bool
    ramp: float
    drain_delay: float
    drain_timeout: float
    blocked_after: float
