"""What the machine asks its shell to do. Small frozen values; the machine's methods say what to tell it afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.answers import StoredAnswer
from resilient_mw.idempotency.record import About, Claim, Ending


@dataclass(frozen=True, slots=True)
class Pass:
    """Let the request through; no more is to be told."""


@dataclass(frozen=True, slots=True)
class ReadBody:
    """Read the request body, at most `most` bytes of it, keep what was read for the handler and tell `body_read`.

    Attributes:
        most: bytes. Of a longer body the fingerprint is not known yet.
    """

    most: int


@dataclass(frozen=True, slots=True)
class HashBody:
    """Read the request body to its end, hash it, keep nothing, and tell `body_hashed`."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Ask the store, and tell `began` or `store_failed`.

    Attributes:
        claim: for the store.
    """

    claim: Claim


@dataclass(frozen=True, slots=True)
class HandOver:
    """Run the handler, with the claim where it finds it: it takes the key itself, and no more is to be told.

    If it raises `IdempotencyRefused` before it has answered, answer with that refusal.

    Attributes:
        claim: of the request; without a fingerprint where the body is longer than was read.
    """

    claim: Claim


@dataclass(frozen=True, slots=True)
class Run:
    """Run the handler; tell the machine's `work` its `head`, each `piece`, and at last one of `ended` and `failed`.

    If it is not started after all, tell `given_up`. While it runs, `next_wakeup` says when to `tick`.

    Attributes:
        fence: of this attempt; None: the store was away, and the work runs unprotected.
    """

    fence: int | None


@dataclass(frozen=True, slots=True)
class Replay:
    """Answer with `answer.status`, `answer.replay_headers()` and its body. The handler does not run.

    Attributes:
        answer: one whose body was kept.
    """

    answer: StoredAnswer


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with the refusal of this reason. The handler does not run.

    Attributes:
        reason: why.
        retry_after: whole seconds, where they are known.
    """

    reason: Reason
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait in a bounded place for the end of the attempt that is at work on `record`, then look and tell `looked`.

    If the place is full, tell `no_place`. Somebody in this process who ends that attempt wakes the waiter; for those in other
    processes there is `look_at`.

    Attributes:
        record: the record's key.
        look_at: monotonic seconds; look then at the latest.
    """

    record: str
    look_at: float


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Ask the operation's status function, and tell `told`; if it fails, tell it `unknown`. `work` keeps the lease.

    Attributes:
        about: what it is asked, the caller in clear.
    """

    about: About


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease, and tell `renewed` or `renew_failed`.

    Attributes:
        claim: for the store.
    """

    claim: Claim


@dataclass(frozen=True, slots=True)
class Lost:
    """Somebody else has the record: stop the work if it can be stopped, its answer is not recorded."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Record the answer before its last piece leaves, then wake those who wait.

    If it fails, or is refused, the caller gets the answer all the same: the work is done. Where the store could not be asked,
    the record stays under its lease, and reads as unknown afterwards.

    Attributes:
        claim: for the store.
        answer: what is kept.
        fingerprint: of a request whose body was not known before.
    """

    claim: Claim
    answer: StoredAnswer
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Abandon:
    """Give the record up, shielded from cancellation, then wake those who wait. If it fails, the lease ends by itself.

    Attributes:
        claim: for the store.
        ending: how.
    """

    claim: Claim
    ending: Ending


Action = (
    Pass
    | ReadBody
    | HashBody
    | Begin
    | HandOver
    | Run
    | Replay
    | Refuse
    | Wait
    | AskStatus
    | Renew
    | Lost
    | Complete
    | Abandon
)
Actions = tuple[Action, ...]
