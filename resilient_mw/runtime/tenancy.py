"""What one policy keeps of its tenants: their quotas, and the counts of those that it names."""

from __future__ import annotations

import threading
from dataclasses import replace

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.decision import Decision
from resilient_mw.admission.policy_checks import QUOTAS
from resilient_mw.core.ports import Clock
from resilient_mw.core.quotas import QuotaStore
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import AppSnapshot
from resilient_mw.core.tenant_figures import TenantSnapshot
from resilient_mw.runtime.flush import Listeners
from resilient_mw.runtime.quotas import QuotaDesk

OTHER = "other"
"""The label of all tenants that the policy does not name: callers can make names, and so they would make series."""


class Tenancy:
    """The tenants of one policy. Safe to use from any thread.

    Args:
        policy: names them.
        listeners: told what goes wrong.
        clock: the one clock.

    Attributes:
        desk: asks for quotas; None: there are none.

    Raises:
        ValueError: there are quotas, and nothing that counts them.
    """

    def __init__(self, policy: ServerPolicy, listeners: Listeners, clock: Clock) -> None:
        self._lock = threading.Lock()
        self._listeners = listeners
        self._clock = clock
        self._counts: dict[str, list[int]] = {}
        self._policy = policy
        self._store: QuotaStore | None = None
        self.desk: QuotaDesk | None = None
        self.change(policy)

    def change(self, policy: ServerPolicy) -> None:
        """Take another policy. What it names as the old one did goes on counting.

        Raises:
            ValueError: there are quotas, and nothing that counts them.
        """
        desk = None
        if policy.quotas:
            installed = policy.quota_store is None and self._policy.quota_store is None
            store = self._store if installed and self._store is not None else store_of(policy)
            desk = QuotaDesk(
                policy.quotas,
                store,
                policy.quota_store_away,
                self._listeners,
                self._clock,
                limits=QUOTAS not in policy.shadowed,
            )
            if self.desk is not None:
                desk.goes_on_from(self.desk)
            self._store = store
        labels = (*policy.tenant_labels, OTHER) if policy.tenant_labels else ()
        with self._lock:
            self._counts = {name: self._counts.get(name, [0, 0, 0]) for name in labels}
        self._policy = policy
        self.desk = desk

    def count(self, tenant: str, decision: Decision) -> None:
        """Count what was decided about a request of a tenant, under its name or among the others."""
        counts = self._counts
        if not counts:
            return
        place = 0
        if decision.reason is not None:
            place = 2 if decision.reason is Reason.QUOTA_EXCEEDED else 1
        with self._lock:
            counts.get(tenant, counts[OTHER])[place] += 1

    def told(self, snapshot: AppSnapshot) -> AppSnapshot:
        """Return the figures of an application with those of its tenants."""
        if self.desk is None and not self._counts:
            return snapshot
        with self._lock:
            tenants = {name: TenantSnapshot(*counts) for name, counts in self._counts.items()}
        return replace(snapshot, tenants=tenants, quotas=None if self.desk is None else self.desk.snapshot())


def store_of(policy: ServerPolicy) -> QuotaStore:
    """Return what counts the requests of a policy's tenants: its own store, or the one in memory that is installed.

    Raises:
        ValueError: there is none.
    """
    if policy.quota_store is not None:
        return policy.quota_store
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            store: QuotaStore = point.load()()
        except ImportError as error:
            raise ValueError(f"{NO_STORE} ({error})") from error
        return store
    raise ValueError(NO_STORE)


GROUP = "resilient_mw.quotas"
"""The entry points of what counts quotas in memory."""
NO_STORE = "quotas need something that counts: install resilient-mw[limits], or name a quota_store"
