"""Views that take as long as they are told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse

from resilient_mw import current, exempt
from resilient_mw_integrations.django import policy
from tests.django_project.shop.models import Item, create_table
from tests.wsgi.helpers import late, outcomes, queued, refused

noted: dict[str, int] = {}
gate = threading.Event()


def note(what: str) -> None:
    noted[what] = noted.get(what, 0) + 1


def seconds(request: Any) -> float:
    return float(request.GET.get("s", "0"))


def health(request: Any) -> Any:
    return HttpResponse("ok")


@exempt
def state(request: Any) -> Any:
    mine = policy()
    return JsonResponse(
        {
            "slots": sum(each.slots for each in mine.snapshot().classes if each.priority != "exempt"),
            "queued": queued(mine),
            "outcomes": outcomes(mine, "exempt"),
            "refused": refused(mine),
            "late": late(mine),
            "arrived": {route.route: route.priority for route in mine.snapshot().routes},
            "noted": noted,
        }
    )


def hold(request: Any) -> Any:
    """Answer when the gate is open."""
    gate.wait(15)
    return HttpResponse("held")


@exempt
def gates(request: Any) -> Any:
    """Open the gate, or shut it."""
    if "shut" in request.GET:
        gate.clear()
    else:
        gate.set()
    return HttpResponse("")


def sleep(request: Any) -> Any:
    note("sleep")
    time.sleep(seconds(request))
    return HttpResponse(f"{current().remaining():.3f}")


def check(request: Any) -> Any:
    for _ in range(150):
        time.sleep(0.02)
        current().check()
    return HttpResponse("never")


async def asleep(request: Any) -> Any:
    note("asleep")
    try:
        await asyncio.sleep(seconds(request))
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return HttpResponse(f"{current().remaining():.3f}")


def stream(request: Any) -> Any:
    """Send a chunk, and the next one after a while."""
    pause = seconds(request)

    def chunks() -> Iterator[bytes]:
        try:
            for _ in range(4):
                yield f"{current().remaining():.2f} ".encode()
                time.sleep(pause)
        finally:
            note("stream ended")

    return StreamingHttpResponse(chunks())


async def astream(request: Any) -> Any:
    pause = seconds(request)

    async def chunks() -> AsyncIterator[bytes]:
        try:
            for _ in range(4):
                yield f"{current().remaining():.2f} ".encode()
                await asyncio.sleep(pause)
        finally:
            note("stream ended")

    return StreamingHttpResponse(chunks())


def _transfer(pause: float) -> None:
    try:
        create_table()
        with transaction.atomic():
            Item.objects.create(name="first")
            time.sleep(pause)
            Item.objects.create(name="second")
    finally:
        note("transfer open" if connection.in_atomic_block else "transfer ended")


async def transfer(request: Any) -> Any:
    """Write twice in one transaction, with a while in between."""
    await sync_to_async(_transfer)(seconds(request))
    return HttpResponse("done")


def items(request: Any) -> Any:
    create_table()
    return JsonResponse({"items": Item.objects.count(), "thread": threading.current_thread().name})
