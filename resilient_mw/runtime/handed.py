"""The claim that the idempotency middleware hands over to a route which takes its key in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace

from resilient_mw.idempotency.record import Claim


@dataclass(frozen=True, slots=True)
class Handed:
    """A claim that nobody has begun.

    Attributes:
        claim: of the request: its key, its caller and its route.
        digest: returns the fingerprint of a request whose body was longer than was read before, once the handler has read it.
    """

    claim: Claim
    digest: Callable[[], str | None]

    def complete(self) -> Claim:
        """Return the claim with all that is known by now."""
        if self.claim.fingerprint is not None:
            return self.claim
        return replace(self.claim, fingerprint=self.digest())


HANDED: ContextVar[Handed | None] = ContextVar("resilient_mw_handed", default=None)
"""What the middleware around this code has handed over."""
