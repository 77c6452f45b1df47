"""What happens at the edge, on every server of the matrix: budgets, bodies, refusals. A row is a test that takes `server`."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.servers.conftest import SERVERS
from tests.servers.edge import BEHIND, ELSEWHERE, HERE, MOST_BYTES, SHOP
from tests.servers.processes import Server, listening
from tests.servers.wire import Answer, Wire, ask, connected

pytestmark = pytest.mark.slow

SLACK = 0.9
"""Seconds that a request may take to get to its handler on a busy machine."""
Headers = Sequence[tuple[str, str]]


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip(request.param.split("-")[0])
    with listening(request.param, tmp_path_factory.mktemp("edge"), source="tests.servers.edge") as running:
        yield running
        for word in ("Traceback", "ERROR", "CRITICAL", "Exception"):
            assert word not in running.logged()


async def figures(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(server.port, f"/figures/{name}")).json
    assert found["errors"] == 0
    return found


async def left(server: Server, headers: Headers = (), source: str = HERE, path: str = "/budgets") -> float:
    answer = await ask(server.port, path, source, headers=headers)
    assert answer.status == 200, answer
    seconds: float = answer.json["left"]
    return seconds


def about(seconds: float, expected: float) -> None:
    assert expected - SLACK <= seconds <= expected + 0.001


# -- budgets -----------------------------------------------------------------------------------------------------------

FORMATS = [
    ("x-request-timeout-ms", "3000"),
    ("grpc-timeout", "3S"),
    ("connect-timeout-ms", "3000"),
    ("x-envoy-expected-rq-timeout-ms", "3000"),
]


async def test_each_format_is_read_and_the_smallest_wins(server: Server) -> None:
    for field in FORMATS:
        about(await left(server, [field]), 3.0)
    for number, (name, _) in enumerate(FORMATS):
        smaller = (name, "2S" if name == "grpc-timeout" else "2000")
        others = [field for each, field in enumerate(FORMATS) if each != number]
        about(await left(server, [*others, smaller]), 2.0)
    about(await left(server), 5.0)


async def test_who_is_trusted_lengthens_and_nobody_else(server: Server) -> None:
    longer = [("X-Request-Timeout-Ms", "15000")]
    about(await left(server, longer), 15.0)
    about(await left(server, longer, ELSEWHERE), 5.0)
    about(await left(server, [("X-Request-Timeout-Ms", "90000")]), 20.0)
    shorter = [("X-Request-Timeout-Ms", "2000")]
    about(await left(server, shorter, ELSEWHERE), 2.0)


async def test_the_minimum_raises_at_the_edge_and_too_little_is_refused(server: Server) -> None:
    little = [("X-Request-Timeout-Ms", "30")]
    about(await left(server, little, ELSEWHERE), 2.0)
    refused = await ask(server.port, "/budgets", headers=little)
    assert (refused.status, refused.headers["x-refusal-reason"]) == (504, "insufficient_budget")
    for source in (HERE, ELSEWHERE):
        refused = await ask(server.port, "/budgets", source, headers=[("X-Request-Timeout-Ms", "0")])
        assert (refused.status, refused.headers["x-refusal-reason"]) == (504, "expired_on_arrival")


async def test_a_route_has_its_own_numbers(server: Server) -> None:
    about(await left(server, path="/budgets/quick"), 3.0)
    about(await left(server, [("X-Request-Timeout-Ms", "15000")], path="/budgets/quick"), 4.0)


@pytest.mark.parametrize(
    "fields",
    [
        [("X-Request-Timeout-Ms", "+200")],
        [("X-Request-Timeout-Ms", "2e3")],
        [("X-Request-Timeout-Ms", "9" * 5000)],
        [("X-Request-Timeout-Ms", "600"), ("X-Request-Timeout-Ms", "700")],
        [("grpc-timeout", "1s")],
    ],
    ids=["sign", "exponent", "long", "twice", "unit"],
)
async def test_b95_what_is_outside_the_grammar_is_as_if_absent_and_counted(
    server: Server, fields: Headers
) -> None:
    """B95: and so is a field that stands twice, however the server hands that on."""
    name = fields[0][0].lower()
    before = (await figures(server, "budgets"))["ignored"].get(name, 0)
    about(await left(server, fields), 5.0)
    assert (await figures(server, "budgets"))["ignored"][name] == before + 1


async def test_behind_a_proxy_the_address_that_it_added_decides(server: Server) -> None:
    longer = ("X-Request-Timeout-Ms", "15000")
    for forwarded, source, expected in (
        (BEHIND, HERE, 15.0),
        ("203.0.113.9", HERE, 5.0),
        (f"203.0.113.9, {BEHIND}", HERE, 15.0),
        (f"{BEHIND}, 203.0.113.9", HERE, 5.0),  # what the caller has written himself
        (BEHIND, ELSEWHERE, 5.0),  # not through the proxy
    ):
        fields = [longer, ("X-Forwarded-For", forwarded)]
        about(await left(server, fields, source, path="/hops"), expected)
    about(await left(server, [longer], path="/hops"), 5.0)


async def test_time_spent_in_a_trusted_proxy_is_charged(server: Server) -> None:
    def began(seconds_ago: float) -> list[tuple[str, str]]:
        return [("X-Request-Start", f"t={time.time() - seconds_ago:.3f}")]

    about(await left(server, began(2.0)), 3.0)
    about(await left(server, [*began(2.0), ("X-Request-Timeout-Ms", "10000")]), 8.0)
    about(await left(server, began(2.0), ELSEWHERE), 5.0)
    spent = await ask(server.port, "/budgets", headers=began(6.0))
    assert (spent.status, spent.headers["x-refusal-reason"]) == (504, "expired_on_arrival")


async def test_the_answer_tells_what_was_left(server: Server) -> None:
    answer = await ask(server.port, "/budgets", headers=[("X-Request-Timeout-Ms", "3000")])
    about(int(answer.headers["x-budget-left-ms"]) / 1000, 3.0)
    held = await ask(server.port, "/budgets/hold", headers=[("X-Request-Timeout-Ms", "3000")])
    about(int(held.headers["x-budget-left-ms"]) / 1000, 2.7)
    refused = await ask(server.port, "/budgets", headers=[("X-Request-Timeout-Ms", "0")])
    assert "x-budget-left-ms" not in refused.headers


# -- bodies ------------------------------------------------------------------------------------------------------------


async def _chunked(wire: Wire, path: str, size: int) -> None:
    """Write a body of a size in chunks; who is told to stop may find his connection closed."""
    wire._sent = time.monotonic()
    with suppress(ConnectionError):
        wire.writer.write(f"POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        for start in range(0, size, 10_000):
            part = b"x" * min(10_000, size - start)
            wire.writer.write(b"%x\r\n%s\r\n" % (len(part), part))
            await wire.writer.drain()
        wire.writer.write(b"0\r\n\r\n")
        await wire.writer.drain()


async def _idle(server: Server) -> dict[str, int]:
    end = time.monotonic() + 2.0
    while (found := await figures(server, "bodies"))["slots"]:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.02)
    ended: dict[str, int] = found["ended"]
    return ended


async def test_a_larger_content_length_is_refused_before_the_body_is_sent(server: Server) -> None:
    before = await _idle(server)
    async with connected(server.port) as wire:
        wire._sent = time.monotonic()
        wire.writer.write(
            f"POST /bodies HTTP/1.1\r\nhost: a\r\ncontent-length: {MOST_BYTES + 1}\r\n\r\n".encode()
        )
        if server.name == "daphne":  # it asks nobody before the whole body has come
            wire.writer.write(b"x" * (MOST_BYTES + 1))
        answer = await wire.read()
    assert (answer.status, answer.headers["x-refusal-reason"]) == (413, "body_too_large")
    assert await _idle(server) == before


async def test_a_chunked_body_is_counted_while_it_is_read(server: Server) -> None:
    """413 while no answer has begun; where the server closes the connection then, a caller who still writes may miss it."""
    before = (await _idle(server)).get("body_too_large", 0)
    for _ in range(3):  # more than there are slots
        async with connected(server.port) as wire:
            await _chunked(wire, "/bodies", MOST_BYTES + 1)
            answer = await wire.read()
        assert (answer.status, answer.json["reason"]) == (413, "body_too_large")
        assert "x-refusal-reason" not in answer.headers
    assert (await _idle(server))["body_too_large"] == before + 3


async def test_bodies_within_the_limit_pass(server: Server) -> None:
    for path, size in (("/bodies", MOST_BYTES), ("/bodies/large", 10 * MOST_BYTES)):
        answer = await ask(server.port, path, method="POST", body=b"x" * size)
        assert (answer.status, answer.json["size"]) == (200, size)
        async with connected(server.port) as wire:
            await _chunked(wire, path, size)
            assert (await wire.read()).json["size"] == size


# -- refusals ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def full(server: Server, name: str) -> AsyncIterator[None]:
    """Hold the one slot meanwhile."""
    async with connected(server.port) as wire:
        await wire.send(f"/{name}/held")
        end = time.monotonic() + 10.0
        while (await figures(server, name))["slots"] == 0:
            assert time.monotonic() < end
        try:
            yield
        finally:
            await ask(server.port, f"/{name}/held/go")
        assert (await wire.read()).status == 200


def readable(answer: Answer) -> None:
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert {"retry-after", "x-refusal-reason"} <= {
        each.strip().lower() for each in answer.headers["access-control-expose-headers"].split(",")
    }
    assert "origin" in answer.headers["vary"].lower()


async def test_a_refusal_says_why_and_when_and_keeps_the_connection(server: Server) -> None:
    async with full(server, "outside"), connected(server.port) as wire:
        for method, accept, kind in (
            ("GET", "*/*", "application/problem+json"),
            ("HEAD", "*/*", "application/problem+json"),
            ("GET", "text/plain", "text/plain; charset=utf-8"),
            ("HEAD", "text/plain", "text/plain; charset=utf-8"),
            ("POST", "application/json", "application/problem+json"),
        ):
            fields = [("Accept", accept), ("X-Request-Id", "r-1")]
            answer = await wire.ask("/outside", method=method, headers=fields)
            assert (answer.status, answer.headers["x-refusal-reason"]) == (503, "queue_full")
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["content-type"] == kind
            assert answer.headers.get("connection", "keep-alive").lower() == "keep-alive"
            if method == "HEAD":
                assert answer.body == b""
                assert int(answer.headers["content-length"]) > 0
            elif kind.startswith("text/"):
                assert answer.body == b"503 The wait queue is full (queue_full)\n"
            else:
                found = json.loads(answer.body)
                assert (found["status"], found["reason"], found["instance"]) == (503, "queue_full", "r-1")


async def test_b08_pages_of_a_named_origin_can_read_it_outside_and_inside_of_the_cors_layer(
    server: Server,
) -> None:
    """B08: the refusal of a full server, one of a spent budget, and the 504 of a deadline that passes at work."""
    origin = ("Origin", SHOP)
    for name in ("outside", "inside"):
        async with full(server, name):
            refused = await ask(server.port, f"/{name}", headers=[origin])
            assert (refused.status, refused.headers["x-refusal-reason"]) == (503, "queue_full")
            readable(refused)
            stranger = await ask(server.port, f"/{name}", headers=[("Origin", "https://evil.example")])
            assert stranger.status == 503
            assert "access-control-allow-origin" not in stranger.headers
        for budget, path in ((0, f"/{name}"), (200, f"/{name}/sleep")):
            expired = await ask(server.port, path, budget=budget, headers=[origin])
            assert expired.status == 504
            readable(expired)


async def test_a_preflight_takes_no_slot(server: Server) -> None:
    fields = [("Origin", SHOP), ("Access-Control-Request-Method", "PUT")]
    for name in ("outside", "inside"):
        async with full(server, name):
            for _ in range(3):
                answer = await ask(server.port, f"/{name}", method="OPTIONS", headers=fields)
                assert answer.status == 200
