"""Callers of threads who leave: what waitress and gunicorn let one know, looked at and never waited for."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.admission.entry import WaiterState
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.runtime import callers
from resilient_mw.runtime.alarm import ALARM
from resilient_mw.runtime.callers import LOOK_EVERY, gone_of
from resilient_mw.runtime.guard import Guard, guard_of
from resilient_mw.runtime.thread_context import ThreadContext
from resilient_mw.runtime.thread_gate import CallerLeft, wait_in_thread
from resilient_mw.testing import ManualClock

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    server, client = socket.socketpair()
    with server, client:
        yield server, client


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def context_of(environ: dict[str, Any], clock: Any) -> ThreadContext:
    context = ThreadContext(1e9, clock)
    context.environ = environ
    return context


def test_a_server_that_says_nothing_is_not_asked() -> None:
    assert gone_of({}) is None
    context = context_of({}, ManualClock())
    context.check()
    assert context.cancel_reason is None


@pytest.mark.parametrize("polls", [True, False])
def test_a_connection_shows_that_its_peer_has_gone(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, polls: bool
) -> None:
    if not polls:
        monkeypatch.setattr(callers, "POLLRDHUP", 0)
    server, client = pair
    gone = gone_of({"gunicorn.socket": server})
    assert gone is not None
    assert not gone()
    client.sendall(b"GET /next")
    assert not gone()
    assert server.recv(100) == b"GET /next", "a look takes nothing"
    client.close()
    assert gone()
    server.close()
    assert gone()


def test_bytes_of_a_pipelined_request_hide_nothing(pair: Pair) -> None:
    if not callers.POLLRDHUP:
        pytest.skip("this system cannot tell")
    server, client = pair
    gone = gone_of({"gunicorn.socket": server})
    client.sendall(b"GET /next HTTP/1.1\r\n\r\n")
    client.close()
    assert gone is not None
    assert gone()
    assert server.recv(4) == b"GET "


def server_bytes(connection: socket.socket) -> int:
    return len(socket.socket.recv(connection, 100, socket.MSG_PEEK | socket.MSG_DONTWAIT))


@pytest.mark.parametrize("polls", [True, False])
def test_tls_is_not_read_from(pair: Pair, monkeypatch: pytest.MonkeyPatch, polls: bool) -> None:
    """Only whether the connection is there is asked of a socket under TLS: what can be read from it is not the caller's."""
    if not polls:
        monkeypatch.setattr(callers, "POLLRDHUP", 0)
    elif not callers.POLLRDHUP:
        pytest.skip("this system cannot tell")
    server, client = pair
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with context.wrap_socket(server, server_side=True, do_handshake_on_connect=False) as wrapped:
        gone = gone_of({"gunicorn.socket": wrapped})
        assert gone is not None
        client.sendall(b"\x15\x03\x03\x00\x02\x01\x00")  # an alert that says goodbye
        assert not gone()
        assert server_bytes(wrapped) == 7, "they are still there"
        client.close()
        assert gone() is polls, "bytes hide the end from those who can only peek"


def test_check_says_that_the_caller_has_gone_and_looks_at_most_every_100_ms() -> None:
    looks: list[float] = []
    clock, left = ManualClock(), threading.Event()

    def look() -> bool:
        looks.append(clock.now())
        return left.is_set()

    context = context_of({"waitress.client_disconnected": look}, clock)
    for _ in range(5):
        context.check()
    assert looks == [0.0]
    left.set()
    context.check()  # a moment ago he was there
    clock.advance(LOOK_EVERY)
    assert context.cancelled
    with pytest.raises(RequestCancelled) as raised:
        context.check()
    assert raised.value.reason is CancelReason.CLIENT_DISCONNECT
    assert context.reason is CancelReason.CLIENT_DISCONNECT
    assert looks == [0.0, LOOK_EVERY]


def test_whoever_has_his_answer_is_not_looked_after() -> None:
    context = context_of({"waitress.client_disconnected": lambda: True}, ManualClock())
    context.complete(started=True)
    context.check()
    assert context.cancel_reason is None


def test_the_deadline_comes_first() -> None:
    clock = ManualClock()
    context = ThreadContext(1.0, clock)
    context.environ = {"waitress.client_disconnected": lambda: True}
    clock.advance(1.0)
    assert context.cancel_reason is CancelReason.DEADLINE


def test_callbacks_are_called_when_the_caller_leaves(pair: Pair) -> None:
    """By the thread that watches deadlines, with no help of the one that works."""
    server, client = pair
    clock = guard_of(ServerPolicy()).clock
    context = ThreadContext(clock.now() + 60, clock)
    context.environ = {"gunicorn.socket": server}
    heard: list[CancelReason] = []
    context.on_cancel(heard.append)
    time.sleep(2 * LOOK_EVERY)
    assert heard == []
    client.close()
    until(lambda: heard)
    context.end()
    assert heard == [CancelReason.CLIENT_DISCONNECT]
    until(lambda: not ALARM.running)


def test_an_error_of_a_look_does_not_stop_the_thread_that_watches() -> None:
    def look() -> bool:
        raise ValueError("the file descriptor is closed")

    assert gone_of({"waitress.client_disconnected": look})() is True  # type: ignore[misc]


# -- the wait queue ----------------------------------------------------------------------------------------------------


def waiting(guard: Guard) -> int:
    return guard.controller.waiting


class Waits(threading.Thread):
    """A request that waits for its slot in a thread."""

    def __init__(self, guard: Guard, gone: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        now = guard.clock.now()
        self.guard, self.gone = guard, gone
        self.entry = guard.entries.get("/", _mark())
        self.waiter = guard.arrive(self.entry, now, now + 60).waiter
        self.left = self.began = False
        self.start()

    def run(self) -> None:
        assert self.waiter is not None
        try:
            self.began = wait_in_thread(self.guard, self.waiter, self.gone).admitted
        except CallerLeft:
            self.left = True


def _mark() -> Any:
    from resilient_mw.core.marks import Mark

    return Mark()


def full_guard() -> Guard:
    guard = guard_of(ServerPolicy(limit=1, queue=5, max_wait=60, wait_share=1.0))
    now = guard.clock.now()
    assert guard.arrive(guard.entries.get("/", _mark()), now, now + 60).admitted
    return guard


def test_b29_who_leaves_the_queue_gives_his_place_back_at_once() -> None:
    guard, left = full_guard(), threading.Event()
    thread = Waits(guard, left.is_set)
    until(lambda: waiting(guard) == 1)
    left.set()
    thread.join(10)
    assert (thread.left, waiting(guard)) == (True, 0)
    assert thread.entry.left == 1


def test_b29_no_work_begins_for_a_caller_who_left_just_before_his_turn() -> None:
    guard = full_guard()
    thread = Waits(guard, lambda: thread.waiter is not None and thread.waiter.state is WaiterState.GRANTED)
    until(lambda: waiting(guard) == 1)
    guard.release(thread.entry, 1)
    thread.join(10)
    assert (thread.left, thread.began) == (True, False)
    now = guard.clock.now()
    assert guard.arrive(thread.entry, now, now + 60).admitted, "the slot is free"


def test_a_caller_who_stays_gets_his_slot() -> None:
    guard = full_guard()
    thread = Waits(guard, lambda: False)
    until(lambda: waiting(guard) == 1)
    time.sleep(2.5 * LOOK_EVERY)
    assert waiting(guard) == 1
    guard.release(thread.entry, 1)
    thread.join(10)
    assert thread.began


def test_looks_do_not_move_the_end_of_the_wait() -> None:
    guard = guard_of(ServerPolicy(limit=1, queue=5, max_wait=0.25, wait_share=1.0))
    now = guard.clock.now()
    entry = guard.entries.get("/", _mark())
    guard.arrive(entry, now, now + 60)
    thread = Waits(guard, lambda: False)
    thread.join(10)
    assert (thread.left, thread.began) == (False, False)
    assert guard.clock.now() - now >= 0.25
    assert {reason.value for reason in entry.refused} == {"queue_timeout"}
