"""Asks the store on behalf of requests under WSGI, in their own threads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from resilient_mw.idempotency.actions import Abandon, Action, Complete
from resilient_mw.runtime.idempotency_desk import IdempotencyDesk, ended_as
from resilient_mw.runtime.joins import recorded

if TYPE_CHECKING:
    from resilient_mw.idempotency.protocol import IdempotencyStore
    from resilient_mw.idempotency.record import Claim, Outcome, Record


class Records:
    """The records of one application.

    Args:
        store: where they are.
        desk: counts, and wakes who waits.

    Attributes:
        store: where they are.
    """

    def __init__(self, store: IdempotencyStore, desk: IdempotencyDesk) -> None:
        self.store = store
        self._desk = desk

    def begin(self, claim: Claim, seconds: float) -> Outcome:
        """As of the store."""
        with self._desk.figures.asking("begin"):
            return self.store.begin(claim, timeout=seconds)

    def look(self, record: str, seconds: float) -> Record | None:
        """As of the store."""
        with self._desk.figures.asking("look"):
            return self.store.look(record, timeout=seconds)

    def renew(self, claim: Claim) -> bool:
        """As of the store."""
        with self._desk.figures.asking("renew"):
            return self.store.renew(claim, timeout=self._desk.policy.store_timeout)

    def end(self, actions: Iterable[Action], route: str, ran: str | None) -> None:
        """Have a record ended, if one of the actions does that.

        Args:
            actions: what is to be done.
            route: template, for who is told.
            ran: what the work counts as; None: none ran.
        """
        for action in actions:
            if isinstance(action, (Complete, Abandon)):
                self._end(action, route, ran)

    def _end(self, action: Complete | Abandon, route: str, ran: str | None) -> None:
        claim, timeout = action.claim, self._desk.policy.store_timeout
        seen, written = None, False
        try:
            if isinstance(action, Abandon):
                with self._desk.figures.asking("abandon"):
                    written = self.store.abandon(claim, action.ending, timeout=timeout)
            else:
                with self._desk.figures.asking("complete"):
                    written = self.store.complete(
                        claim, action.answer, fingerprint=action.fingerprint, timeout=timeout
                    )
                if written:
                    seen = recorded(claim, action.answer, action.fingerprint)
        except Exception:  # noqa: BLE001, S110  whatever a store raises: it could not do it
            pass  # The lease ends by itself, and the outcome is unknown then.
        finally:
            self._desk.joins.ended(claim.record, seen)
        outcome = ended_as(action, ran, written=written)
        if outcome is not None:
            self._desk.count(route, outcome)
