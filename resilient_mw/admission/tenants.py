"""Turns between the tenants of one class, and who has to go when one of them fills the queue.

May live here: whose turn it is inside a class, and what each tenant holds. May not: which class is next (`slots`), and
whether somebody has to go at all (`controller`).

The turn goes to the waiting tenant that holds the fewest slots (max-min fairness, as in the fair schedulers of
clusters), among equals to the one that has waited longest for its turn: round robin. What runs is counted, so a tenant
whose requests hold all the slots lets everybody else go first, however long they run. Requests without a tenant are
one tenant.

A record exists only while its tenant waits or holds slots, so nobody collects credit, and a name that is never seen
again leaves nothing behind. No operation looks at more than one waiter or tenant; the tenants are grouped by what they
hold, and there are at most some sqrt(2 x limit) different numbers of slots to be held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from resilient_mw.admission.entry import Waiter


class Tenant:
    """What one tenant holds in one class.

    Attributes:
        slots: slots that its requests hold.
        waiting: its waiters, oldest first.
        queued_cost: slots that they need in all.
    """

    __slots__ = ("queued_cost", "slots", "waiting")

    def __init__(self) -> None:
        self.slots = 0
        self.waiting: OrderedDict[Waiter, None] = OrderedDict()
        self.queued_cost = 0


Groups = dict[int, OrderedDict[Tenant, None]]


class TenantTurns:
    """The tenants of one class. Not thread-safe: the owner locks.

    Args:
        queue: who waits already, oldest first.
        slots: slots that requests without a tenant hold already.
    """

    __slots__ = ("_by_places", "_by_slots", "_most", "_tenants")

    def __init__(self, queue: Iterable[Waiter], slots: int) -> None:
        self._tenants: dict[str | None, Tenant] = {}
        # Only those that wait. By slots: in the order of their turns. By places in the queue: for the largest share.
        self._by_slots: Groups = {}
        self._by_places: Groups = {}
        self._most = 0
        if slots:
            self.took(None, slots)
        for waiter in queue:
            self.append(waiter)

    def __len__(self) -> int:
        return len(self._tenants)

    def took(self, name: str | None, cost: int) -> None:
        """Note that a request of a tenant has got its slots."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant()
        self._change_slots(tenant, cost)

    def gave_back(self, name: str | None, cost: int) -> None:
        """Note that a request of a tenant has given its slots back.

        Raises:
            RuntimeError: the tenant does not hold that many: they were taken under another name.
        """
        tenant = self._tenants.get(name)
        if tenant is None or tenant.slots < cost:
            held = tenant.slots if tenant is not None else 0
            raise RuntimeError(f"{cost} slots of the tenant {name!r} were given back, but it holds {held}")
        self._change_slots(tenant, -cost)
        self._forget_if_gone(name, tenant)

    def append(self, waiter: Waiter) -> None:
        """Take a waiter in at the end of its tenant's line."""
        tenant = self._tenants.get(waiter.tenant)
        if tenant is None:
            tenant = self._tenants[waiter.tenant] = Tenant()
        places = len(tenant.waiting)
        if places:
            _leave(self._by_places, places, tenant)
        else:
            _enter(self._by_slots, tenant.slots, tenant)
        _enter(self._by_places, places + 1, tenant)
        if places == self._most:
            self._most += 1
        tenant.waiting[waiter] = None
        tenant.queued_cost += waiter.cost

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out, wherever it stands."""
        tenant = self._tenants[waiter.tenant]
        places = len(tenant.waiting)
        del tenant.waiting[waiter]
        tenant.queued_cost -= waiter.cost
        _leave(self._by_places, places, tenant)
        if places > 1:
            _enter(self._by_places, places - 1, tenant)
        else:
            _leave(self._by_slots, tenant.slots, tenant)
            self._forget_if_gone(waiter.tenant, tenant)
        # The numbers of places change by one, so if the largest is gone the next one is known.
        if self._most not in self._by_places:
            self._most -= 1

    def first(self, *, newest_first: bool) -> Waiter:
        """Return the waiter whose turn it is: of the tenant with the fewest slots that has waited longest for it."""
        tenant = next(iter(self._by_slots[min(self._by_slots)]))
        return next(reversed(tenant.waiting)) if newest_first else next(iter(tenant.waiting))

    def last(self, *, newest_first: bool) -> Waiter:
        """Return the waiter that would be served last of the tenant that waits with the most requests."""
        tenant = next(reversed(self._by_places[self._most]))
        return next(iter(tenant.waiting)) if newest_first else next(reversed(tenant.waiting))

    def may_displace(self, name: str | None) -> bool:
        """Return whether a tenant may take a place from the largest: only if it then still holds no more than that."""
        tenant = self._tenants.get(name)
        return (len(tenant.waiting) if tenant is not None else 0) + 1 < self._most

    def ahead(self, name: str | None) -> int:
        """Return slots that are granted before another request of this tenant, at least.

        Its own waiters come first, and every tenant that waits with no more slots than it holds gets one turn.
        """
        tenant = self._tenants.get(name)
        slots = tenant.slots if tenant is not None else 0
        rivals = sum(len(group) for held, group in self._by_slots.items() if held <= slots)
        if tenant is None or not tenant.waiting:
            return rivals
        return rivals - 1 + tenant.queued_cost

    def _change_slots(self, tenant: Tenant, by: int) -> None:
        if tenant.waiting:
            _leave(self._by_slots, tenant.slots, tenant)
            _enter(self._by_slots, tenant.slots + by, tenant)
        tenant.slots += by

    def _forget_if_gone(self, name: str | None, tenant: Tenant) -> None:
        if not tenant.slots and not tenant.waiting:
            del self._tenants[name]


def _enter(groups: Groups, number: int, tenant: Tenant) -> None:
    group = groups.get(number)
    if group is None:
        group = groups[number] = OrderedDict()
    group[tenant] = None


def _leave(groups: Groups, number: int, tenant: Tenant) -> None:
    group = groups[number]
    del group[tenant]
    if not group:
        del groups[number]
