"""The machine of one request with an idempotency key: told what happened, it says what to do next.

    arrived -> [ReadBody] -> body_read -> Begin -> began
    began: Run | Replay | Refuse | Wait -> looked | HashBody -> body_hashed | AskStatus -> told
    from Run or AskStatus on, `work` is the machine of what runs under the record

Every method takes what happened and returns the actions to be taken in their order. Not thread-safe: its shell owns it. Time
is monotonic seconds of this process; what the store says of time are durations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from resilient_mw.core.deadline import FOREVER
from resilient_mw.core.headers.idempotency_key import parse_idempotency_key
from resilient_mw.core.rejection import Reason
from resilient_mw.idempotency.actions import (
    Abandon,
    Actions,
    AskStatus,
    Begin,
    HandOver,
    HashBody,
    Pass,
    ReadBody,
    Refuse,
    Replay,
    Run,
    Wait,
)
from resilient_mw.idempotency.answers import StoredAnswer, kept_headers
from resilient_mw.idempotency.policy import IdempotencyPolicy, StatusFunction, Verdict
from resilient_mw.idempotency.record import About, Begun, Claim, Full, Outcome, Record, State
from resilient_mw.idempotency.scope import caller_key, record_key
from resilient_mw.idempotency.treatment import Treatment
from resilient_mw.idempotency.work import Work

FIRST_LOOK: Final = 0.05
LONGEST_LOOK: Final = 1.0
"""Seconds between two looks of one who waits for another process: the first gap, and the longest, each half more than before."""
STORE_AWAY: Final = 5
"""Seconds after which a caller may ask again while the store is away."""


class IdempotentRequest:
    """One request and its key.

    Args:
        policy: of the application.
        treatment: of the route.
        method: in capitals.
        route, root: the template, or the path where no route is known; and the path under which its application is mounted.
        caller: as `policy.caller_of` returns it.
        token: unlike that of any other attempt, of any process.
        now, deadline: monotonic seconds, of this instant and of the request's end.
        typical: seconds that the route's work usually takes; None: not known.

    Attributes:
        claim: what the store knows this attempt by; None before the body was read.
        work: what runs, or is about to, under the record.
    """

    __slots__ = (
        "_caller",
        "_fence",
        "_found",
        "_gap",
        "_key",
        "_policy",
        "_scope",
        "_token",
        "_treatment",
        "_typical",
        "_until",
        "claim",
        "work",
    )

    def __init__(
        self,
        policy: IdempotencyPolicy,
        treatment: Treatment,
        *,
        method: str,
        route: str,
        caller: str | None,
        token: str,
        now: float,
        deadline: float = FOREVER,
        typical: float | None = None,
        root: str = "",
    ) -> None:
        self._policy = policy
        self._treatment = treatment
        self._scope = (method, route, root)
        self._caller = caller
        self._token = token
        self._typical = typical
        self._until = min(deadline, now + policy.max_wait)
        self._gap = FIRST_LOOK
        self._found: Record | None = None
        self._fence: int | None = None
        self._key = ""
        self.work: Work | None = None
        self.claim: Claim | None = None

    @property
    def status_function(self) -> StatusFunction | None:
        """What `AskStatus` asks."""
        ask = self._treatment.on_unknown
        return ask if callable(ask) else None

    @property
    def lease(self) -> int:
        """Whole seconds after which another attempt has ended, or counts as dead."""
        return _whole(self._treatment.lease)

    # Before the work.

    def arrived(self, values: Sequence[str]) -> Actions:
        """Take the lines of the key's field.

        Returns:
            `Pass`, `Refuse` or `ReadBody`.
        """
        required = self._treatment.required
        if not values:
            return (Refuse(Reason.IDEMPOTENCY_KEY_MISSING),) if required else (Pass(),)
        key = parse_idempotency_key(values, strict=self._policy.strict)
        if key is None:
            return (Refuse(Reason.IDEMPOTENCY_KEY_INVALID),)
        if self._caller is None:
            return (Refuse(Reason.IDEMPOTENCY_NO_CALLER),) if required else (Pass(),)
        self._key = key
        return (ReadBody(self._policy.buffer_request),)

    def body_read(self, fingerprint: str | None) -> Actions:
        """Take the fingerprint of the request; None: the body is longer than was read.

        Returns:
            `Begin`; `HandOver` where the handler takes the key itself.
        """
        treatment, (method, route, root) = self._treatment, self._scope
        key, caller = self._key, self._caller or ""
        shown = caller if self._policy.show_caller else ""
        self.claim = Claim(
            record=record_key(key, caller=caller, method=method, route=root + route),
            token=self._token,
            fingerprint=fingerprint,
            lease=treatment.lease,
            keep=treatment.keep,
            # A longer body than was read may be another payload: the record is looked at first.
            take_unknown=treatment.on_unknown != "refuse"
            and (fingerprint is not None or treatment.in_transaction),
            caller=caller_key(caller),
            most=self._policy.max_records,
            about=About(key=key, method=method, route=route, caller=shown),
        )
        return (HandOver(self.claim),) if treatment.in_transaction else (Begin(self.claim),)

    def began(self, now: float, outcome: Outcome) -> Actions:
        """Take what the store said to the claim.

        Returns:
            `Run`, `AskStatus`, `Replay`, `Refuse`, `Wait` or `HashBody`.
        """
        if isinstance(outcome, Begun):
            self._fence = outcome.fence
            self._begun(now + self._treatment.heartbeat, doubt=outcome.unknown)
            if outcome.unknown and callable(self._treatment.on_unknown):
                return (AskStatus(replace(self._held().about, caller=self._caller or "")),)
            return self._run()
        if isinstance(outcome, Full):
            return (Refuse(Reason.IDEMPOTENCY_TOO_MANY, _whole(outcome.retry_after)),)
        return self._judge(now, outcome.record)

    def store_failed(self) -> Actions:
        """Take that the store could not be asked, by `Begin` or while waiting.

        Returns:
            `Refuse`, or `Run` where the policy lets work run unprotected; before it an `Abandon`, for the store may have done what
            it could not say. That one should keep nobody waiting.
        """
        claim = self._held()
        give_up = Abandon(claim, "unknown" if claim.take_unknown else "forget")
        if self._treatment.store_down == "open" and self._found is None:
            # No abandon: if the store had done it, the answer can still be recorded under this claim.
            self._begun(None, doubt=claim.take_unknown)
            return self._run()
        refuse = Refuse(Reason.IDEMPOTENCY_STORE_UNAVAILABLE, STORE_AWAY)
        return (give_up, refuse) if self._found is None else (refuse,)

    def body_hashed(self, now: float, fingerprint: str) -> Actions:
        """Take the fingerprint of a request whose whole body was read only because there is a record.

        Returns:
            As `began`, for the record that was found.
        """
        self.claim = replace(self._held(), fingerprint=fingerprint)
        if self._found is None:
            raise RuntimeError("no record was found that a fingerprint could be compared with")
        return self._judge(now, self._found)

    def looked(self, now: float, record: Record | None) -> Actions:
        """Take what one who waits has seen.

        Returns:
            As `began`; `Begin` where the key is free again, or may be taken.
        """
        if record is None:
            self._found = None
            return (Begin(self._held()),)
        return self._judge(now, record)

    def no_place(self) -> Actions:
        """Take that as many wait as may: `Refuse`."""
        if self._found is None:
            raise RuntimeError("nobody was asked to wait")
        return self._in_progress(self._found)

    def told(self, verdict: Verdict) -> Actions:
        """Take what the status function said, under `AskStatus`.

        Returns:
            `Complete` and `Replay`; or `Run`; or `Abandon` and `Refuse`; without the first of the two if the record is lost.
        """
        work = self.work
        if work is None:
            raise RuntimeError("nobody was asked for the status")
        if isinstance(verdict, StoredAnswer):
            answer = replace(verdict, headers=kept_headers(verdict.headers))
            return (*work.found_done(answer), *self._answer(answer))
        if verdict != "not_done":
            return (*work.given_up(), Refuse(Reason.IDEMPOTENCY_UNKNOWN))
        if not work.held:
            return (Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, self.lease),)
        work.found_undone()
        return self._run()

    # What is behind it.

    def _run(self) -> Actions:
        if self.work is None:
            raise RuntimeError("there is no work to run: nothing was begun")
        return (Run(self._fence),)

    def _begun(self, renew_at: float | None, *, doubt: bool) -> None:
        drop = frozenset(name.encode() for name in self._policy.drop_headers)
        self.work = Work(self._treatment, self._held(), drop, renew_at, doubt=doubt)

    def _judge(self, now: float, record: Record) -> Actions:
        self._found = record
        claim = self._held()
        if record.fingerprint is not None:
            if claim.fingerprint is None:
                # Reading the rest would leave nothing to run with, should the key come free.
                done = record.answer is not None
                return (HashBody(),) if done else self._unfinished(record)
            if claim.fingerprint != record.fingerprint:
                return (Refuse(Reason.IDEMPOTENCY_KEY_REUSED),)
        if record.answer is not None:
            return self._answer(record.answer)
        if record.state is State.UNKNOWN or self._treatment.wait == "conflict" or now >= self._until:
            return self._unfinished(record)
        look_at = min(now + self._gap, self._until)
        self._gap = min(self._gap * 1.5, LONGEST_LOOK)
        return (Wait(claim.record, look_at),)

    def _unfinished(self, record: Record) -> Actions:
        if record.state is not State.UNKNOWN:
            return self._in_progress(record)
        # Seen while waiting, or for a long body: a store gives an unknown record at once to a claim that may take it.
        longer = record.fingerprint is not None and self._held().fingerprint is None
        if longer or self._treatment.on_unknown == "refuse":
            return (Refuse(Reason.IDEMPOTENCY_UNKNOWN),)
        self.claim = replace(self._held(), take_unknown=True)
        return (Begin(self.claim),)

    def _answer(self, answer: StoredAnswer) -> Actions:
        return (Refuse(Reason.IDEMPOTENCY_BODY_NOT_KEPT),) if answer.body is None else (Replay(answer),)

    def _in_progress(self, record: Record) -> Actions:
        left = math.inf if self._typical is None else self._typical - record.age
        if not 0 < left < math.inf:
            left = record.lease_left
        return (Refuse(Reason.IDEMPOTENCY_IN_PROGRESS, _whole(left)),)

    def _held(self) -> Claim:
        if self.claim is None:
            raise RuntimeError("there is no claim: the caller is not known")
        return self.claim


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
