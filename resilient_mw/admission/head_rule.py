"""What of a request's head decides beyond method and path: on whose behalf it comes, and how many slots it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from resilient_mw.core.head import RequestHead

TenantOf = Callable[[RequestHead], str | None]
CostOf = Callable[[RequestHead], int]

LONGEST_NAME = 128
"""Characters of a tenant's name that are kept as they are; a longer one is kept as its digest."""
INVALID = "(invalid)"
"""The one tenant of all requests whose tenant header is there more than once, or holds a list."""


class HeadRule:
    """What the head of a request to one route decides.

    Attributes:
        tenant_of: finds the tenant; None: there are no tenants.
        cost_of: finds the slots; None: they are those of the route.
        most: slots that the class of the route can ever have.
    """

    __slots__ = ("cost_of", "most", "tenant_of")

    def __init__(self, tenant_of: TenantOf | None, cost_of: CostOf | None, most: int) -> None:
        self.tenant_of = tenant_of
        self.cost_of = cost_of
        self.most = most

    def cost(self, head: RequestHead, fixed: int) -> int:
        """Return the slots that a request takes, at least 1 and at most those that its class can ever have.

        Args:
            head: what it says of itself.
            fixed: the slots where no function decides.

        Raises:
            TypeError: the function returned no whole number.
            Exception: whatever the function raises.
        """
        if self.cost_of is None:
            return fixed
        cost: object = self.cost_of(head)
        if not isinstance(cost, int) or isinstance(cost, bool):
            raise TypeError(f"a cost function returned {cost!r}, which is no whole number")
        return min(max(cost, 1), self.most)

    def tenant(self, head: RequestHead) -> str | None:
        """Return on whose behalf a request comes; None: nobody's in particular.

        Raises:
            TypeError: the function returned no text.
            Exception: whatever the function raises.
        """
        if self.tenant_of is None:
            return None
        name: object = self.tenant_of(head)
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise TypeError(f"a tenant function returned {type(name).__name__}, not text or None")
        return bounded_name(name)


def tenant_rule(tenant: str | TenantOf | None) -> TenantOf | None:
    """Return the function that finds the tenant, from what `ServerPolicy.tenant` may be."""
    return tenant_from_header(tenant) if isinstance(tenant, str) else tenant


def tenant_from_header(name: str) -> TenantOf:
    """Return a function that takes a header's value for the tenant.

    A header that is there twice, or whose value holds a comma (some servers join lines so), names nobody: who added which
    of them cannot be told. All such requests are one tenant, so that it is no way around a quota.
    """
    wanted = name.lower()

    def tenant(head: RequestHead) -> str | None:
        values = head.values(wanted)
        if not values:
            return None
        if len(values) > 1 or "," in values[0]:
            return INVALID
        return values[0].strip(" \t")

    return tenant


def tenant_from_scope(*keys: str) -> TenantOf:
    """Return a function that finds the tenant in the ASGI scope or the WSGI environ, for what an outer middleware put there.

    Args:
        *keys: the way to it, each a key of a mapping or an attribute of an object: `tenant_from_scope("user",
            "tenant_id")`, `tenant_from_scope("REMOTE_USER")`. What is not there, or None, means no tenant; what is no text
            is taken as text.

    Raises:
        ValueError: no key is given, or one is no text.
    """
    given: tuple[object, ...] = keys
    if not given or not all(isinstance(key, str) and key for key in given):
        raise ValueError(f"keys={keys!r} is not allowed: it must be at least one text such as 'user'")

    def tenant(head: RequestHead) -> str | None:
        found: Any = head.scope
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else getattr(found, key, None)
            if found is None:
                return None
        return str(found)

    tenant.__qualname__ = f"tenant_from_scope({', '.join(map(repr, keys))})"  # for `resilient-mw explain`
    return tenant


def bounded_name(name: str) -> str:
    """Return a tenant's name, or its digest where it is long or not printable: whatever a caller sends, a key stays short."""
    if len(name) <= LONGEST_NAME and name.isprintable():
        return name
    from hashlib import blake2b

    return f"blake2b:{blake2b(name.encode('utf-8', 'backslashreplace'), digest_size=16).hexdigest()}"
