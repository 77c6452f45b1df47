"""Waiting for a slot while the caller may go."""

from __future__ import annotations

import asyncio

from resilient_mw.admission.decision import Decision
from resilient_mw.admission.entry import Waiter
from resilient_mw.asgi.channel import Channel
from resilient_mw.core.cancel import CancelReason
from resilient_mw.runtime.async_gate import AsyncWait
from resilient_mw.runtime.guard import Guard


async def wait_for_slot(guard: Guard, waiter: Waiter, channel: Channel) -> Decision | None:
    """Wait for a slot while listening for the disconnect; None if the caller has gone."""
    wait = AsyncWait(guard, waiter, asyncio.get_running_loop())
    channel.on_disconnect = wait.abandon
    admitted = False
    try:
        channel.listen()
        decision = await wait.wait()
        admitted = decision is not None and decision.admitted
        if channel.disconnected:
            # He left at the instant at which the wait ended.
            if admitted:
                left = CancelReason.CLIENT_DISCONNECT.value
                guard.end(waiter.route, waiter.cost, left, 0.0, waiter.tenant)
                guard.streams.left(waiter)
                admitted = False
            return None
    finally:
        if not admitted:
            channel.stop()
    return decision
