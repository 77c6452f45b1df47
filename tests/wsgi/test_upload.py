"""Request bodies that come slowly: read before the slot is taken, within the deadline's count, and for nobody in vain."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.core.marks import Mark
from resilient_mw.runtime.guard import guard_of
from resilient_mw.testing import ManualClock, ScriptedWSGI, use_clock
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.upload import READ_FIRST
from tests.wsgi.helpers import TEXT, outcomes, refused, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


class Slow(io.BytesIO):
    """A body that comes in parts of two bytes."""

    def __init__(
        self, data: bytes, on_read: Callable[[], object] = lambda: None, breaks: bool = False
    ) -> None:
        super().__init__(data)
        self.on_read = on_read
        self.breaks = breaks
        self.reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        self.on_read()
        data = super().read(2 if size is None or size < 0 else min(size, 2))
        if self.breaks and not data:
            raise ConnectionResetError("the peer has gone")
        return data


class Upload:
    """A service, and one upload to it."""

    def __init__(
        self, data: bytes = b"0123456789", said: int | None = None, breaks: bool = False, **options: Any
    ) -> None:
        self.policy = ServerPolicy(**{"limit": 1, "queue": 0, **options})
        self.clock = ManualClock()
        use_clock(self.policy, self.clock)
        self.slots_while_read: list[int] = []
        self.seen: list[tuple[bytes, float, int]] = []
        self.passes = 0.0
        self.stream = Slow(data, self.on_read, breaks)
        self.middleware = ResilienceMiddleware(self.app, self.policy)
        length = {"CONTENT_LENGTH": str(len(data) if said is None else said), "wsgi.input": self.stream}
        self.server = ScriptedWSGI(self.middleware, method="POST", extra=length)

    def on_read(self) -> None:
        self.slots_while_read.append(slots_taken(self.policy))
        self.clock.advance(self.passes)

    def app(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        left = current().remaining()
        parts = []
        while part := environ["wsgi.input"].read(100):
            parts.append(part)
        self.seen.append((b"".join(parts), left, self.stream.reads))
        start_response("200 OK", list(TEXT))
        return [b"thanks"]

    def arrived(self) -> int:
        return sum(route.arrived for route in guard_of(self.policy).snapshot().routes)


def test_a_body_is_read_before_its_request_takes_a_slot() -> None:
    upload = Upload()
    assert upload.server.run().body == b"thanks"
    assert upload.seen == [(b"0123456789", 10.0, 5)]
    assert upload.slots_while_read == [0] * 5
    assert outcomes(upload.policy) == {"completed": 1}


def test_b31_the_time_that_it_takes_is_part_of_the_budget() -> None:
    upload = Upload()
    upload.passes = 1.0
    upload.server.run()
    assert upload.seen == [(b"0123456789", 5.0, 5)]
    upload = Upload()
    upload.passes = 2.0
    upload.server.run()
    assert (upload.seen, refused(upload.policy)) == ([], {"expired_on_arrival": 1})


def test_a_request_that_cannot_get_in_is_refused_unread() -> None:
    upload = Upload()
    guard = guard_of(upload.policy)
    assert guard.arrive(guard.entries.get("/", Mark()), 0.0, 100.0).admitted
    server = upload.server.run()
    assert (server.status[:3], server.header("X-Refusal-Reason")) == ("503", "queue_full")
    assert int(server.header("Retry-After") or "") >= 1
    assert upload.stream.reads == 0
    assert refused(upload.policy) == {"queue_full": 1}


@pytest.mark.parametrize(
    ("headers", "options", "reason"),
    [([("X-Request-Timeout-Ms", "0")], {}, "expired_on_arrival"), ([], {"max_body": 9}, "body_too_large")],
)
def test_what_is_refused_for_what_it_is_stays_unread(
    headers: list[tuple[str, str]], options: dict[str, Any], reason: str
) -> None:
    upload = Upload(**options)
    for name, value in headers:
        upload.server.environ["HTTP_" + name.upper().replace("-", "_")] = value
    upload.server.run()
    assert (upload.stream.reads, refused(upload.policy)) == (0, {reason: 1})


@pytest.mark.parametrize("breaks", [False, True])
def test_a_caller_who_leaves_in_his_upload_starts_no_work(breaks: bool) -> None:
    upload = Upload(said=20, breaks=breaks)
    server = upload.server.run()
    assert (server.status, upload.seen) == ("499 Client Closed Request", [])
    assert (slots_taken(upload.policy), outcomes(upload.policy)) == (0, {})
    assert sum(route.left for route in upload.policy.snapshot().routes) == upload.arrived() == 1


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (READ_FIRST + 1, {}),  # too large to be kept
        (10, {"routes": [RouteRule("/*", priority="exempt")]}),  # takes no slot
        (10, {"routes": [RouteRule("/*", slot="head")]}),  # may be a stream in both directions
        (10, {"shadow": True}),  # nothing is to change
    ],
)
def test_other_bodies_are_read_by_the_application(said: int, options: dict[str, Any]) -> None:
    upload = Upload(said=said, **options)
    assert upload.server.run().body == b"thanks"
    assert upload.seen == [(b"0123456789", 10.0 if "shadow" not in options else float("inf"), 6)]


def test_a_server_that_has_read_it_already_is_not_asked_again() -> None:
    upload = Upload()
    upload.server.environ["waitress.client_disconnected"] = lambda: False
    assert upload.server.run().body == b"thanks"
    assert upload.seen[0][2] == 6


def test_a_fault_of_the_servers_stream_lets_the_request_pass() -> None:
    upload = Upload()
    upload.stream.on_read = lambda: 1 / 0 if upload.stream.reads == 1 else None
    assert upload.server.run().body == b"thanks"
    assert guard_of(upload.policy).snapshot().guard_errors == 1
