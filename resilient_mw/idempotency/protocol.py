"""The ports of idempotency: what a store must promise, blocking and async.

A store is a place of records with few transitions. Each is atomic by the store's own means (a unique insert, a script, one
transaction), never by looking first and writing afterwards; on a database each is one round trip.

What holds for all of them:

- *Who may write.* `begin` gives a record to one claim. `renew`, `complete` and `abandon` change it only while its token is
  that claim's: one that was taken over, or has expired, or was released by an operator, is left alone and the answer is False.
- *Time.* Durations go in, durations come out. A store that several machines use measures leases and expiry by its own clock
  (the database server's), one of a single machine by that machine's; the clocks of clients never count.
- *Lapse.* A record whose lease is over reads as `UNKNOWN`, without anybody writing that. Its token still holds until another
  claim takes it: an attempt that was only slow can complete late if nobody came in between.
- *Expiry.* A running record expires `claim.keep` seconds after its lease, one that has ended as long after its end. An expired one is as good as absent to every transition; `purge` takes it off the disk.
- *Waiting.* `timeout` is the most seconds that the call may wait, for a lock, a connection or the network, all together. What
  the store cannot do in that time, and any failure of it, raises `StoreUnavailable`; the transition may then have happened
  or not. `renew`, `complete`, `abandon` and `look` may be repeated with the same claim. A `begin` may not: give the claim up
  (`abandon`, with `unknown` if it would have taken over an unknown record, else with `forget`) and make a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from resilient_mw.core.errors import ResilienceError
from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import Claim, Ending, Outcome, Record, State

TIMEOUT: Final = 5.0
"""Seconds that a transition may wait by default."""


class StoreUnavailable(ResilienceError):
    """Raised by a store that cannot be reached, or could not do it in time."""

    reason = Reason.IDEMPOTENCY_STORE_UNAVAILABLE


class IdempotencyStore(Protocol):
    """A store whose methods block. Safe to use from any thread, and in a child after a fork."""

    @property
    def blocking(self) -> bool:
        """Whether a call may wait for a disk or a network; a store in memory says no, and may be called on an event loop."""
        ...

    @property
    def shared(self) -> str:
        """Who sees the same records: `process`, `machine` or `network`. What `explain` warns by."""
        ...

    def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:
        """Give the record to the claim, if nobody has it.

        - No record, or an expired one: `Begun`, unless the caller has `claim.most` live ones: `Full`.
        - Unknown, by its state or by its lapsed lease: with `claim.take_unknown`, unless both fingerprints are known and differ,
          the claim gets it, with a higher fence, a fresh lease and age: `Begun(unknown=True)`. The bound does not
          count, since there is no record more. The record's fingerprint stays if the claim has none.
        - Everything else: `Found`, nothing changed.

        Of any number of claims at one time, from any number of processes, one gets `Begun`.

        Raises:
            StoreUnavailable: it may have happened: abandon the claim.
        """
        ...

    def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:
        """Have the lease end `claim.lease` seconds from now, and the record `claim.keep` seconds after that.

        Returns:
            Whether the claim still has the record, running. False for good: somebody else has it, or it has ended.
        """
        ...

    def complete(
        self, claim: Claim, answer: StoredAnswer, *, fingerprint: str | None = None, timeout: float = TIMEOUT
    ) -> bool:
        """Record the answer, for `claim.keep` seconds from now. Durable when it returns, as far as the store is at all.

        Args:
            claim: the one that has the record.
            answer: kept byte by byte.
            fingerprint: of the request, where the claim had none.
            timeout: seconds.

        Returns:
            Whether it is recorded; True also when this very claim had completed it before. False: the claim has lost the
            record, the answer is not kept and what is there is somebody else's.
        """
        ...

    def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:
        """End the attempt without an answer: `forget` frees the key at once, `unknown` leaves a record that says so.

        An attempt that had taken over an unknown record may only `forget` when it knows that nothing was done, now or
        before.

        Returns:
            Whether the claim had the record, running.
        """
        ...

    def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:
        """Return what is known of a key, its answer included; None if there is no record, or an expired one."""
        ...

    def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:
        """Remove a record by hand: the next request with its key runs.

        Args:
            record: its key.
            running: remove it also while its lease is not over; its attempt cannot complete then.
            timeout: seconds.

        Returns:
            Whether it was removed.
        """
        ...

    def records(
        self, *, state: State | None = None, after: str = "", limit: int = 100, timeout: float = TIMEOUT
    ) -> Sequence[Record]:
        """Return live records for operators, by `Record.record`, without their answers.

        Args:
            state: only those in this one, as they read now.
            after: only those whose key is higher: the last one of the page before.
            limit: at most so many.
            timeout: seconds.
        """
        ...

    def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:
        """Remove up to `limit` expired records and return how many it were; less than `limit`: none is left."""
        ...

    def create(self, *, timeout: float = TIMEOUT) -> None:
        """Make what is missing of tables and the like. Any number of processes may do so at one time."""
        ...

    def ping(self, *, timeout: float = TIMEOUT) -> None:
        """Return if the store can be used now; raise `StoreUnavailable` if it cannot."""
        ...

    def close(self) -> None:
        """Let go of connections and files. Later calls raise `StoreUnavailable`."""
        ...


class AsyncIdempotencyStore(Protocol):
    """The same for an event loop. Each method promises what the one of `IdempotencyStore` promises.

    And one thing more: *a cancelled `begin` leaves nothing*. If the record was given to the claim while its caller was
    cancelled, the store sees to it that it is abandoned, since the work was not begun: with `unknown` if it was `Begun` as that,
    else with `forget`.
    """

    @property
    def shared(self) -> str:
        """As of `IdempotencyStore`."""
        ...

    async def begin(self, claim: Claim, *, timeout: float = TIMEOUT) -> Outcome:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def renew(self, claim: Claim, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def complete(
        self,
        claim: Claim,
        answer: StoredAnswer,
        *,
        fingerprint: str | None = None,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> bool:
        """As of `IdempotencyStore`."""
        ...

    async def abandon(self, claim: Claim, ending: Ending, *, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def look(self, record: str, *, timeout: float = TIMEOUT) -> Record | None:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def release(self, record: str, *, running: bool = False, timeout: float = TIMEOUT) -> bool:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def records(
        self,
        *,
        state: State | None = None,
        after: str = "",
        limit: int = 100,
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Sequence[Record]:
        """As of `IdempotencyStore`."""
        ...

    async def purge(self, limit: int = 10_000, *, timeout: float = TIMEOUT) -> int:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def create(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def ping(self, *, timeout: float = TIMEOUT) -> None:  # noqa: ASYNC109
        """As of `IdempotencyStore`."""
        ...

    async def close(self) -> None:
        """As of `IdempotencyStore`."""
        ...
