"""What stores on a server have in common in their tests, whatever the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import (
    AsyncIdempotencyStore,
    Begun,
    Claim,
    Full,
    IdempotencyPolicy,
    IdempotencyStore,
    State,
    StoredAnswer,
    StoreUnavailable,
)
from resilient_mw.testing.idempotency_checks import StoreTests, begun, found
from resilient_mw.testing.idempotency_faces import blocking_face
from tests.asgi.driver import Request, http_scope
from tests.stores.store_processes import killed_while_it_held

TESTS = StoreTests()


@contextmanager
def opened(
    face: str, blocking: Callable[[], Any], asynchronous: Callable[[], Any]
) -> Iterator[IdempotencyStore]:
    """Make a store, `blocking` or `async`, and what it needs on the server; close it afterwards."""
    with ExitStack() as stack:
        if face == "blocking":
            store = blocking()
        else:
            store = blocking_face(asynchronous())
            stack.callback(store.stop)
        stack.callback(store.close)
        store.create(timeout=30)
        yield store


def works_again(call: Callable[[], Any]) -> Any:
    """Return what a call gives, once the store can be reached."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < end, "the store does not find back"
            time.sleep(0.05)


def says_that_it_is_away(store: IdempotencyStore, held: Claim, timeout: float) -> None:
    """Check that each kind of call says so within its time."""
    for call in (
        lambda: store.begin(TESTS.claim(), timeout=timeout),
        lambda: store.complete(held, StoredAnswer(200), timeout=timeout),
        lambda: store.ping(timeout=timeout),
    ):
        with pytest.raises(StoreUnavailable):
            call()


def takes_what_a_killed_process_had(kind: type, server: str, store: IdempotencyStore) -> None:
    """Check that the key of a process that is killed is free after its lease, and not before."""
    assert killed_while_it_held(kind, server, 0.5) == "Begun"
    old = TESTS.claim(record=f"{1:064x}")
    end = time.monotonic() + 30
    while found(store.begin(old)).state is not State.UNKNOWN:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert begun(store.begin(TESTS.again(old, take_unknown=True))).unknown


def survives_closed_connections(store: IdempotencyStore, close_them: Callable[[], object]) -> None:
    """Check that nobody is told of connections that were closed while nobody used them."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: store.ping(timeout=30), range(40)))
    close_them()
    claim = TESTS.claim()
    assert isinstance(store.begin(claim, timeout=30), Begun)
    assert store.complete(claim, StoredAnswer(200), timeout=30)


def keeps_the_bound_of_one_caller(store: IdempotencyStore) -> None:
    """Check that begins at one time are counted as those after each other are."""
    claims = [TESTS.claim(caller="c" * 64, most=3) for _ in range(24)]
    with ThreadPoolExecutor(24) as threads:
        outcomes = list(threads.map(lambda claim: store.begin(claim, timeout=60), claims))
    assert sum(isinstance(each, Begun) for each in outcomes) == 3
    assert sum(isinstance(each, Full) for each in outcomes) == 21


def tells_a_begin_once_more(store: IdempotencyStore) -> None:
    """Check that the same claim is told once more that it has the record."""
    claim = TESTS.claim()
    assert store.begin(claim) == store.begin(claim)
    store.abandon(claim, "unknown")
    taker = TESTS.again(claim, take_unknown=True)
    assert begun(store.begin(taker)).unknown
    assert begun(store.begin(taker)).unknown


async def refuses_while_the_server_is_away(
    store: AsyncIdempotencyStore, stop: Callable[[], object], start: Callable[[], object], **policy: Any
) -> None:
    """Check that the middleware runs nothing whose key cannot be recorded; close the store."""
    runs = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b"paid"})

    await store.create(timeout=30)
    middleware = IdempotencyMiddleware(app, IdempotencyPolicy(single_tenant=True, **policy), store=store)

    def post() -> Any:
        scope = http_scope("/payments", "POST", headers=[(b"idempotency-key", TESTS.new("key").encode())])
        return Request(middleware, scope, body=(b"{}",)).run()

    await asyncio.to_thread(stop)
    try:
        assert (await post()).status == 503
        assert runs == 0
    finally:
        await asyncio.to_thread(start)
    end = time.monotonic() + 60
    while (await post()).status == 503:
        assert time.monotonic() < end
    assert runs == 1
    await store.close()
