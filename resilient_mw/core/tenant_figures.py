"""The figures of tenants and of their quotas, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TenantSnapshot:
    """What was decided about the requests of one tenant since the start, or of all that the policy does not name.

    Attributes:
        admitted: requests that were let in.
        refused: requests that were refused, but for a quota.
        limited: requests that were refused for a quota.
    """

    admitted: int
    refused: int
    limited: int


@dataclass(frozen=True, slots=True)
class QuotaSnapshot:
    """The quotas of one application since the start.

    Attributes:
        limited: requests that were refused, by the name of the quota.
        without_store: requests about which was decided without the store, because it was away or there was no time.
    """

    limited: Mapping[str, int]
    without_store: int
