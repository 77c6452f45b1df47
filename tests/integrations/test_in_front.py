"""The settings of docs/in-front.md do what the page says, with a real nginx and a real HAProxy before real services."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integrations.fronts import front
from tests.servers.processes import free_port, listening

STRANGER = ("127.0.0.2", 0)  # the proxy is 127.0.0.1, which the service trusts


class Reply(NamedTuple):
    """What came back through the proxy."""

    status: int
    headers: Message
    body: bytes


@dataclass
class Stage:
    """A proxy before two services, or before one and a port on which nobody listens."""

    port: int
    services: list[int]

    def ask(self, path: str, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=STRANGER)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()

    def seen(self) -> dict[str, int]:
        """What the services have seen together."""
        total: dict[str, int] = {"asked": 0, "cancelled": 0}
        for port in self.services:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/state")
            found = json.loads(connection.getresponse().read())
            connection.close()
            for name in total:
                total[name] += found[name]
        return total

    def begin(self, path: str) -> socket.socket:
        """Send a request, and return its connection when a service works on it."""
        before, end = self.seen()["asked"], time.monotonic() + 20
        while True:
            caller = socket.create_connection(("127.0.0.1", self.port), 20, source_address=STRANGER)
            caller.sendall(f"GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n".encode())
            if becomes_true(lambda: self.seen()["asked"] == before + 1, 3.0):
                return caller
            caller.close()  # a proxy on a busy machine may take a service for dead that is not
            assert time.monotonic() < end


@pytest.fixture(params=["nginx", "haproxy"], scope="module")
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    source = "tests.integrations.behind_front"
    with (
        listening("uvicorn-httptools", folder, source=source) as one,
        listening("uvicorn-h11", folder, source=source) as two,
        front(request.param, folder, one.port, two.port) as port,
    ):
        yield Stage(port, [one.port, two.port])


def becomes_true(true: Callable[[], bool], seconds: float = 15.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


def test_a_refusal_reaches_the_caller_and_is_not_repeated(stage: Stage) -> None:
    before = stage.seen()["asked"]
    holders: list[socket.socket] = []
    try:
        holders.extend(stage.begin("/hold") for _ in range(2))  # one after the other, each at its own service
        refused = [stage.ask("/work") for _ in range(6)]
        assert [response.status for response in refused] == [503] * 6
        assert all(response.headers["Retry-After"] for response in refused)
        assert {response.headers["X-Refusal-Reason"] for response in refused} == {"queue_full"}
        assert stage.seen()["asked"] == before + 2
    finally:
        for holder in holders:
            holder.close()
    assert becomes_true(lambda: stage.ask("/work").status == 200), (
        "no service was thrown out, and the slots are free"
    )


def test_a_caller_who_leaves_is_passed_on_and_his_work_cancelled(stage: Stage) -> None:
    before = stage.seen()["cancelled"]
    stage.begin("/hold").close()
    assert becomes_true(lambda: stage.seen()["cancelled"] > before)


def test_the_wait_before_the_proxy_is_charged_and_a_strangers_word_is_not_believed(stage: Stage) -> None:
    found = json.loads(stage.ask("/left", {"X-Request-Start": "t=1.0", "X-Forwarded-For": "127.0.0.1"}).body)
    headers = {name.lower(): value for name, value in found["headers"].items()}
    start = headers["x-request-start"]
    assert start.startswith("t=")
    unit = 1e6 if "." not in start else 1.0  # HAProxy says microseconds, nginx seconds
    assert abs(float(start[2:]) / unit - time.time()) < 60
    assert headers["x-forwarded-for"].endswith("127.0.0.2")
    longer = json.loads(stage.ask("/left", {"X-Request-Timeout-Ms": "29900"}).body)
    assert longer["left"] <= 28, "a stranger cannot lengthen"
    shorter = json.loads(stage.ask("/left", {"X-Request-Timeout-Ms": "9000"}).body)
    assert shorter["left"] <= 9, "and may shorten"


def test_events_pass_as_they_are_made(stage: Stage) -> None:
    with stage.begin("/events") as caller:
        received = b""
        caller.settimeout(20)  # the second event comes later
        while b"data: 1" not in received:
            received += caller.recv(65536)
        assert b"data: 2" not in received


@pytest.mark.parametrize("name", ["nginx", "haproxy"])
def test_a_server_that_cannot_be_reached_costs_no_caller_his_answer(name: str, tmp_path: Path) -> None:
    source = "tests.integrations.behind_front"
    with (
        listening("uvicorn-httptools", tmp_path, source=source) as one,
        front(name, tmp_path, free_port(), one.port) as port,
    ):
        stage = Stage(port, [one.port])
        assert [stage.ask("/left").status for _ in range(6)] == [200] * 6
