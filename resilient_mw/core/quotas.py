"""Quotas: how many requests one tenant may send in a time, and the port of what counts them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from resilient_mw.core.checks import require_flag, require_name
from resilient_mw.core.routes import check_path

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}
RATE = re.compile(r"(\d{1,9})\s*(?:/|per)\s*(?:(\d{1,4})\s*)?(second|minute|hour|day)s?", re.ASCII)
LONGEST_WINDOW = 31 * 86_400


class Quota:
    """How many requests each tenant may send in a sliding window of time.

    Args:
        rate: `"100/minute"`, `"5 per second"`, `"1000/2 hours"`.
        name: in the `RateLimit` fields, in metrics and in the store; each quota of a policy has its own.
        path: the requests that it is for, as in `RouteRule`: `/reports/{id}`, `/reports/*`. None: all.
        by_cost: whether a request counts as many as the slots that it takes, instead of one.

    Attributes:
        amount: what one tenant has in a window.
        window: seconds.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """

    __slots__ = ("amount", "by_cost", "name", "path", "rate", "window")

    def __init__(
        self, rate: str, *, name: str = "default", path: str | None = None, by_cost: bool = False
    ) -> None:
        given: object = rate
        found = RATE.fullmatch(given.strip()) if isinstance(given, str) else None
        amount = int(found[1]) if found else 0
        window = int(found[2] or 1) * SECONDS[found[3]] if found else 0
        if not amount or not 0 < window <= LONGEST_WINDOW:
            raise ValueError(
                f"Quota.rate={rate!r} is not allowed: it must be text such as '100/minute' or '1000 per 2 hours', of at "
                "least 1 in at most 31 days"
            )
        self.rate = rate.strip()
        self.amount = amount
        self.window = window
        self.name = require_name("Quota.name", name)
        if path is not None:
            check_path(path, "Quota.path")
        self.path = path
        self.by_cost = require_flag("Quota.by_cost", by_cost)

    def __repr__(self) -> str:
        return f"Quota({self.rate!r}, name={self.name!r})"

    def counts(self, cost: int) -> int:
        """Return what a request counts that takes so many slots: never more than there is in a window."""
        return min(cost, self.amount) if self.by_cost else 1


class QuotaState(NamedTuple):
    """What a store says.

    Attributes:
        allowed: whether the request may pass. Then it has been counted, and what follows is not known.
        remaining: what is left.
        reset: seconds after which a request of the same kind would pass, if none does before.
    """

    allowed: bool
    remaining: int = 0
    reset: float = 0.0


ALLOWED = QuotaState(allowed=True)


class QuotaStore(Protocol):
    """Counts the requests of each tenant. Safe to use from any thread and any event loop."""

    @property
    def local(self) -> QuotaStore | None:
        """What this process has counted itself, for a store that takes a round trip; None: this one takes none."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds that one question may take."""
        ...

    def hit(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request if the quota has room for it.

        Raises:
            Exception: the store is away.
        """
        ...

    async def hit_soon(self, quota: Quota, tenant: str, count: int) -> QuotaState:
        """Count a request as `hit` does, without holding up the event loop."""
        ...


class Limited(NamedTuple):
    """Why a request is refused for a quota.

    Attributes:
        quota: the one without room; None: the store is away, and the policy says that nobody passes then.
        retry_after: whole seconds after which it has room.
        fields: the `RateLimit` fields of the answer, as (name in title case, value).
    """

    quota: Quota | None
    retry_after: int
    fields: tuple[tuple[str, str], ...] = ()


def limited(quotas: Sequence[Quota], exceeded: Quota, state: QuotaState) -> Limited:
    """Return what an answer says of a quota without room.

    The fields are those of draft-ietf-httpapi-ratelimit-headers: all quotas that the request was under, and what is left
    of the one that refuses it. `Retry-After` is the same instant as its `t`.

    Args:
        quotas: those that the request is under.
        exceeded: the one without room.
        state: what the store says of it.
    """
    seconds = max(1, math.ceil(state.reset))
    policy = ", ".join(f'"{each.name}";q={each.amount};w={each.window}' for each in quotas)
    rest = f'"{exceeded.name}";r={state.remaining};t={seconds}'
    return Limited(exceeded, seconds, (("RateLimit-Policy", policy), ("RateLimit", rest)))


def sliding_state(  # noqa: PLR0917  the counters of two windows, in their order
    quota: Quota, count: int, previous: int, previous_left: float, current: int, current_left: float
) -> QuotaState:
    """Return the state of a quota without room that is counted in two windows, of which the older one fades out.

    Args:
        quota: which.
        count: what the request counts.
        previous, current: what was counted in either window.
        previous_left: seconds until the older one has faded out.
        current_left: seconds until the newer one will have.
    """
    window = quota.window
    taken = current + math.floor(previous * previous_left / window)
    room = quota.amount - count - current
    if room >= 0:
        reset = previous_left - (room + 1) * window / previous if previous else 0.0
    else:
        # The newer window becomes the older one, as a whole, and then fades out in turn.
        reset = current_left - window
        reset += max(0.0, window - (quota.amount - count + 1) * window / current)
    return QuotaState(allowed=False, remaining=max(0, quota.amount - taken), reset=max(0.0, reset))
