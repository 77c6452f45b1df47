"""The clients: each makes one payment after another, and asks again with the same key until it has been told something."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.torture.wire import HANG_UPS, Answer, Wire, payment_request

HANGS_UP: Final = 0.08
"""Of all requests, those whose client leaves somewhere."""
TWICE: Final = 0.06
"""Of all rounds, those in which two requests with one key are in the air."""
ONCE_MORE: Final = 0.1
"""Of all payments, those that are asked for again after they were answered."""
CLIENTS: Final = 20
"""Names that they have: whose keys the records are."""


@dataclass(slots=True)
class Payment:
    """One payment, and what its client was told."""

    number: int
    amount: int
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    answers: list[Answer] = field(default_factory=list)
    unknown: int = 0

    @property
    def client(self) -> str:
        """Who makes it."""
        return f"client-{self.number % CLIENTS}"

    def request(self, amount: int | None = None) -> bytes:
        """Return its bytes, with another amount if one is given."""
        return payment_request(self.key, self.client, self.amount if amount is None else amount)


@dataclass(slots=True)
class Tally:
    """What the clients saw, all together."""

    sent: int = 0
    hung_up: int = 0
    no_answer: int = 0
    replays: int = 0
    joins: int = 0
    in_progress: int = 0
    unknown: int = 0
    away: int = 0
    other: dict[int, int] = field(default_factory=dict)
    through: int = 0
    wrong: list[str] = field(default_factory=list)

    def refused(self, answer: Answer) -> None:
        """Count what was no success."""
        if answer.reason == "idempotency_in_progress":
            self.in_progress += 1
        elif answer.reason == "idempotency_unknown":
            self.unknown += 1
        elif answer.status == 503:
            self.away += 1
        else:
            self.other[answer.status] = self.other.get(answer.status, 0) + 1


class Client:
    """One of those who make payments.

    Args:
        ports: of the servers.
        tally: counts here.
        dice: for all that happens by chance.
        settles: whether an outcome that is unknown becomes known when one asks again.
        patience: seconds for one request.
    """

    def __init__(
        self, ports: Sequence[int], tally: Tally, dice: random.Random, *, settles: bool, patience: float
    ) -> None:
        self._wires = [Wire(port) for port in ports]
        self._spare = [Wire(port) for port in ports]
        self._tally = tally
        self._dice = dice
        self._settles = settles
        self._patience = patience
        self._last: int | None = None

    async def work(self, payments: Iterator[Payment]) -> None:
        """Make payments while there are some left."""
        try:
            for payment in payments:
                await self._make(payment)
                self._tally.through += 1
        finally:
            for wire in (*self._wires, *self._spare):
                wire.close()

    async def _make(self, payment: Payment) -> None:
        while not payment.answers and (self._settles or payment.unknown == 0):
            if self._dice.random() < TWICE:
                await asyncio.gather(self._ask(payment), self._ask(payment, self._spare))
            else:
                await self._ask(payment)
            if not payment.answers:
                await asyncio.sleep(self._dice.uniform(0.02, 0.2))
        chance = self._dice.random()
        if payment.answers and chance < ONCE_MORE:
            await self._ask(payment)
        if payment.answers and chance < ONCE_MORE / 10:
            await self._change(payment)
        if not payment.answers:
            # Nobody settles it: to ask again must not make it run.
            await self._ask(payment)

    async def _ask(self, payment: Payment, wires: Sequence[Wire] | None = None) -> None:
        before = len(payment.answers)
        answer = await self._send(payment.request(), wires or self._wires)
        if answer is None:
            return
        if answer.status != 201:
            self._tally.refused(answer)
            payment.unknown += answer.reason == "idempotency_unknown"
            if answer.status in {400, 404, 422}:
                self._wrong(payment, answer, "was refused")
            return
        self._judge(payment, answer, before)
        payment.answers.append(answer)

    def _judge(self, payment: Payment, answer: Answer, before: int) -> None:
        """Look at one success. Whether the ledger has it so is seen at the end."""
        told = _body(answer)
        if told is None or told.get("key") != payment.key or told.get("amount") != payment.amount:
            self._wrong(payment, answer, "is not the payment that was asked for")
        if payment.answers and payment.answers[0].body != answer.body:
            self._wrong(payment, answer, f"differs from {payment.answers[0].body!r}")
        if before and not answer.replayed:
            self._wrong(payment, answer, "ran again after it was answered")
        if payment.unknown and not self._settles and not answer.replayed:
            self._wrong(payment, answer, "ran again after its outcome was unknown")
        if answer.replayed:
            self._tally.replays += 1
            self._tally.joins += len(payment.answers) > before

    async def _change(self, payment: Payment) -> None:
        """Send another payment with the same key."""
        answer = await self._send(payment.request(payment.amount + 1), self._wires)
        if answer is not None and answer.status < 500 and answer.status != 422:
            self._wrong(payment, answer, "is the answer to another payment with the same key")

    async def _send(self, request: bytes, wires: Sequence[Wire]) -> Answer | None:
        dice, tally = self._dice, self._tally
        hang_up = dice.choice(HANG_UPS) if dice.random() < HANGS_UP else None
        tally.sent += 1
        tally.hung_up += hang_up is not None
        # Who was left alone by one server turns to the other one.
        at = dice.randrange(len(wires)) if self._last is None else (self._last + 1) % len(wires)
        answer = await wires[at].ask(
            request, within=self._patience, hang_up=hang_up, at=dice.random(), patience=dice.random() * 0.02
        )
        tally.no_answer += answer is None and hang_up is None
        self._last = at if answer is None and hang_up is None else None
        return answer

    def _wrong(self, payment: Payment, answer: Answer, what: str) -> None:
        self._tally.wrong.append(f"payment {payment.number}: {answer.status} {answer.body!r} {what}")


def told_of(answer: Answer) -> tuple[int, int]:
    """Return id and amount of the payment that an answer tells of."""
    told = _body(answer) or {}
    return told.get("id", -1), told.get("amount", -1)


def _body(answer: Answer) -> dict[str, Any] | None:
    try:
        found = json.loads(answer.body)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
