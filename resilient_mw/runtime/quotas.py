"""Asks the store of the quotas, and decides without it while it is away."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from resilient_mw.admission.entry import RouteEntry
from resilient_mw.core.ports import Clock
from resilient_mw.core.quotas import Limited, Quota, QuotaState, QuotaStore, limited
from resilient_mw.core.routes import PathIndex
from resilient_mw.core.tenant_figures import QuotaSnapshot
from resilient_mw.runtime.flush import Listeners

LOCAL, OPEN, CLOSED = "local", "open", "closed"
PAUSE = 1.0
"""Seconds for which a store that is away is not asked; then one request tries."""
MOST_ASKING = 256
"""Requests that wait for the store at once; what comes above that is decided as while it is away."""


class Asking:
    """Stands for the decision about a request until the store has been asked.

    Attributes:
        entry: how it is treated.
        quotas: those that it is under.
        tenant: on whose behalf it comes.
        cost: slots that it takes.
        deadline_at: the instant at which it stops being worth the work.
    """

    __slots__ = ("cost", "deadline_at", "entry", "quotas", "tenant")

    def __init__(
        self, entry: RouteEntry, quotas: Sequence[Quota], tenant: str, cost: int, deadline_at: float
    ) -> None:
        self.entry = entry
        self.quotas = quotas
        self.tenant = tenant
        self.cost = cost
        self.deadline_at = deadline_at


class QuotaDesk:
    """The quotas of one policy. Safe to use from any thread and any event loop.

    Args:
        quotas: in the order in which they are asked.
        store: counts.
        when_away: who decides while the store is away: `local` (what this process has counted), `open` or `closed`.
        listeners: told what the store raises.
        clock: the one clock.
        limits: whether those over their quota are refused; in shadow mode they are not, and not counted as limited.

    Attributes:
        remote: whether asking takes a round trip.
    """

    def __init__(
        self,
        quotas: Sequence[Quota],
        store: QuotaStore,
        when_away: str,
        listeners: Listeners,
        clock: Clock,
        *,
        limits: bool = True,
    ) -> None:
        self._store = store
        self._limits = limits
        self._local = store.local if when_away == LOCAL else None
        self._closed = when_away == CLOSED
        self.remote = store.local is not None
        self._listeners = listeners
        self._clock = clock
        self._everywhere = tuple(each for each in quotas if each.path is None)
        self._order = {each: place for place, each in enumerate(quotas)}
        self._index: PathIndex[Quota] = PathIndex()
        for each in quotas:
            if each.path is not None:
                self._index.add(each.path.removesuffix("/*"), each, below=each.path.endswith("/*"))
        self._some = len(self._everywhere) < len(quotas)
        self._lock = threading.Lock()
        self._limited = {each.name: 0 for each in quotas}
        self._without = 0
        self._away = False
        self._again_at = 0.0
        self._places = threading.BoundedSemaphore(MOST_ASKING)

    def quotas_of(self, path: str) -> Sequence[Quota]:
        """Return the quotas of requests to a path, in the order of the policy."""
        if not self._some:
            return self._everywhere
        return sorted((*self._everywhere, *self._index.candidates(path)), key=self._order.__getitem__)

    def ask(self, asking: Asking) -> Limited | None:
        """Count a request; return why it may not pass, None if it may. Takes one round trip for each quota, if any."""
        estimate = self._estimate(asking)
        if not self._may_ask(asking):
            return self._without_store(estimate)
        try:
            found = self._ask_store(asking)
        except Exception as error:  # noqa: BLE001  whatever is wrong with the store, the request is none of its
            return self._failed(error, estimate)
        finally:
            self._places.release()
        return self._answered(found)

    async def ask_soon(self, asking: Asking) -> Limited | None:
        """Count a request as `ask` does, without holding up the event loop, and for no longer than the store's timeout."""
        estimate = self._estimate(asking)
        if not self._may_ask(asking):
            return self._without_store(estimate)
        import asyncio  # not loaded where requests have threads

        try:
            # The request has more time than that: _may_ask has seen to it.
            async with asyncio.timeout(self._store.timeout):
                found = None
                for quota in asking.quotas:
                    state = await self._store.hit_soon(quota, asking.tenant, quota.counts(asking.cost))
                    if not state.allowed:
                        found = quota, state
                        break
        except Exception as error:  # noqa: BLE001  as above
            return self._failed(error, estimate)
        finally:
            self._places.release()
        return self._answered(None if found is None else limited(asking.quotas, *found))

    def goes_on_from(self, before: QuotaDesk) -> None:
        """Take over the counts of the quotas of the same names."""
        told = before.snapshot()
        self._limited.update({name: count for name, count in told.limited.items() if name in self._limited})
        self._without = told.without_store

    def snapshot(self) -> QuotaSnapshot:
        """Return the figures of this instant."""
        with self._lock:
            return QuotaSnapshot(dict(self._limited), self._without)

    def _ask_store(self, asking: Asking) -> Limited | None:
        ends_at = self._clock.now() + self._store.timeout
        for number, quota in enumerate(asking.quotas):
            if number and self._clock.now() >= ends_at:
                raise TimeoutError("the quota store was too slow for the next quota")
            state = self._store.hit(quota, asking.tenant, quota.counts(asking.cost))
            if not state.allowed:
                return limited(asking.quotas, quota, state)
        return None

    def _estimate(self, asking: Asking) -> Limited | None:
        """Count a request here, too, so that what decides while the store is away knows what came before."""
        if self._local is None:
            return None
        found: tuple[Quota, QuotaState] | None = None
        for quota in asking.quotas:
            state = self._local.hit(quota, asking.tenant, quota.counts(asking.cost))
            if not state.allowed:
                found = found or (quota, state)
        return None if found is None else limited(asking.quotas, *found)

    def _may_ask(self, asking: Asking) -> bool:
        if self.remote:
            now = self._clock.now()
            if asking.deadline_at - now <= 2 * self._store.timeout:  # to connect, and to be answered
                return False
            with self._lock:
                if self._away:
                    if now < self._again_at:
                        return False
                    self._again_at = now + PAUSE
        return self._places.acquire(blocking=False)

    def _answered(self, found: Limited | None) -> Limited | None:
        if self._away:
            self._away = False
        return found if found is None else self._counted(found)

    def _failed(self, error: Exception, estimate: Limited | None) -> Limited | None:
        with self._lock:
            self._away = True
            self._again_at = self._clock.now() + PAUSE
        self._listeners.guest_failed("quota store", error)
        return self._without_store(estimate)

    def _without_store(self, estimate: Limited | None) -> Limited | None:
        with self._lock:
            self._without += 1
        if self._closed:
            return Limited(None, max(1, round(PAUSE)))
        return estimate if estimate is None else self._counted(estimate)

    def _counted(self, found: Limited) -> Limited:
        if found.quota is not None and self._limits:
            with self._lock:
                self._limited[found.quota.name] += 1
        return found
