"""A key and its work in one transaction, by each async library: all of it is committed, or nothing."""
# ruff: noqa: PT012  an error ends the transaction that stands around it

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from resilient_mw import CancelReason, DeadlineExceeded, Reason, RequestCancelled, budget
from resilient_mw.core.errors import IdempotencyRefused
from resilient_mw.runtime.context import CURRENT, RequestContext
from tests.transactions.ledgers import AsyncLedger

MINE: dict[str, Any] = {"key": "k-1", "caller": "ann", "operation": "POST /payments"}


async def pay(
    ledger: AsyncLedger, *, end: RequestContext | None = None, error: bool = False, **more: Any
) -> tuple[bool, bytes | None]:
    async with ledger.open() as connection, ledger.idempotent(connection, **{**MINE, **more}) as op:
        if not op.replayed:
            await ledger.pay(connection)
            op.complete(201, json={"paid": 1})
        if error:
            raise LookupError
        if end is not None:
            end.reason = CancelReason.CLIENT_DISCONNECT
        return op.replayed, op.answer.body


async def test_a_repeat_gets_the_stored_answer(async_ledger: AsyncLedger) -> None:
    assert await pay(async_ledger, payload=b"a") == (False, b'{"paid":1}')
    assert await pay(async_ledger, payload=b"a") == (True, b'{"paid":1}')
    with pytest.raises(IdempotencyRefused) as caught:
        await pay(async_ledger, payload=b"b")
    assert caught.value.reason is Reason.IDEMPOTENCY_KEY_REUSED
    assert async_ledger.count() == (1, 1)


async def test_many_tasks_write_once(async_ledger: AsyncLedger) -> None:
    """B85."""

    async def one() -> str:
        try:
            return "replayed" if (await pay(async_ledger, wait=20))[0] else "ran"
        except IdempotencyRefused as error:
            return error.reason.value

    outcomes = await asyncio.gather(*(one() for _ in range(50)))
    assert outcomes.count("ran") == 1
    assert set(outcomes) <= {"ran", "replayed", "idempotency_in_progress"}
    assert async_ledger.count() == (1, 1)


async def test_an_error_leaves_no_key(async_ledger: AsyncLedger) -> None:
    with pytest.raises(LookupError):
        await pay(async_ledger, error=True)
    assert async_ledger.count() == (0, 0)


async def test_a_repeat_waits_no_longer_than_it_may(async_ledger: AsyncLedger) -> None:
    async with async_ledger.open() as connection, async_ledger.idempotent(connection, **MINE) as op:
        await async_ledger.pay(connection)
        op.complete(201)
        with budget(0.2), pytest.raises(IdempotencyRefused) as caught:
            await pay(async_ledger)
        assert caught.value.reason is Reason.IDEMPOTENCY_IN_PROGRESS
    assert async_ledger.count() == (1, 1)


async def test_a_task_that_is_cancelled_inside_leaves_nothing(async_ledger: AsyncLedger) -> None:
    inside = asyncio.Event()

    async def works() -> None:
        async with async_ledger.open() as connection, async_ledger.idempotent(connection, **MINE) as op:
            await async_ledger.pay(connection)
            op.complete(201)
            inside.set()
            await asyncio.sleep(600)

    task = asyncio.create_task(works())
    await asyncio.wait_for(inside.wait(), 30)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert async_ledger.count() == (0, 0)
    assert (await pay(async_ledger))[0] is False


async def test_the_deadline_ends_it(async_ledger: AsyncLedger) -> None:
    with pytest.raises(DeadlineExceeded):
        async with (
            async_ledger.open() as connection,
            budget(2),
            async_ledger.idempotent(connection, **MINE) as op,
        ):
            await async_ledger.pay(connection)
            op.complete(201)
            await asyncio.sleep(600)
    assert async_ledger.count() == (0, 0)


@pytest.mark.parametrize("shielded", [False, True])
async def test_a_request_that_is_over_cannot_commit_but_inside_a_shield(
    async_ledger: AsyncLedger, shielded: bool
) -> None:
    context = RequestContext()
    token = CURRENT.set(context)
    try:
        if shielded:
            async with context.shield(30):
                await pay(async_ledger, end=context)
        else:
            with pytest.raises(RequestCancelled):
                await pay(async_ledger, end=context)
    finally:
        CURRENT.reset(token)
    assert async_ledger.count() == ((1, 1) if shielded else (0, 0))


async def test_inside_a_transaction_the_outer_commit_is_the_commit(async_ledger: AsyncLedger) -> None:
    async with async_ledger.open() as connection:
        async with async_ledger.around(connection):
            await async_ledger.pay(connection)
            with pytest.raises(LookupError):
                async with async_ledger.idempotent(connection, **{**MINE, "key": "k-2"}) as op:
                    await async_ledger.pay(connection)
                    raise LookupError
            async with async_ledger.idempotent(connection, **MINE) as op:
                await async_ledger.pay(connection)
                op.complete(201)
            assert async_ledger.count() == (0, 0)
        assert async_ledger.count() == (2, 1)
