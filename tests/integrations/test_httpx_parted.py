"""One pool for all dependencies, or one for each: who makes whom wait, who is warned, and that every pool is closed once."""

from __future__ import annotations

import asyncio
import ssl
import warnings
from typing import Any, Self

import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw_integrations._httpx_parted import AsyncPartedPools, PartedPools
from tests.integrations.httpx_wires import Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, head


def hangs_in_half(connection: Connection) -> None:
    """Answer, but leave the body of `/half` where it is."""
    while (received := connection.request()) is not None:
        if received.path == "/half":
            connection.send(head(200, 10) + b"half")
            connection.hang()
            return
        connection.answer()


def two(server: RawServer, **fields: Any) -> list[Dependency]:
    slow = Dependency("slow", match=f"{server.url}/half", retry=None, timeout=5.0)
    quick = Dependency("quick", match=f"{server.url}/quick/*", retry=None, timeout=1.0, **fields)
    return [slow, quick]


def shut(wire: Wire) -> None:
    wire.run(wire.client.aclose() if wire.is_async else wire.client.close())


@every_wire
def test_one_dependency_that_hangs_uses_up_a_shared_pool(wire: Wire) -> None:
    with RawServer(hangs_in_half) as server:
        wire.open(two(server), limits=wire.lib.Limits(max_connections=2))
        held = [wire.send("GET", server.url + "/half") for _ in range(2)]
        with pytest.raises(wire.lib.PoolTimeout):
            wire.get(server.url + "/quick/")
        for response in held:
            wire.close(response)
        assert wire.get(server.url + "/quick/").content == b"ok"


@every_wire
def test_with_a_pool_for_each_nobody_else_waits_for_it(wire: Wire) -> None:
    with RawServer(hangs_in_half) as server:
        dependencies = two(server)
        wire.open(dependencies, limits=wire.lib.Limits(max_connections=2), pool_per_dependency=True)
        held = [wire.send("GET", server.url + "/half") for _ in range(2)]
        assert wire.get(server.url + "/quick/").content == b"ok"
        assert wire.get(server.url + "/of/nobody").content == b"ok"
        for response in held:
            wire.close(response)
        assert [each.snapshot().in_use for each in dependencies] == [0, 0]


@every_wire
def test_b58_waiting_for_its_own_pool_is_not_the_fault_of_the_dependency(wire: Wire) -> None:
    with RawServer(hangs_in_half) as server:
        slow = Dependency("slow", match=f"{server.url}/*", retry=None, timeout=0.1)
        wire.open([slow], limits=wire.lib.Limits(max_connections=1), pool_per_dependency=True)
        held = wire.send("GET", server.url + "/half")
        for _ in range(12):
            with pytest.raises(wire.lib.PoolTimeout):
                wire.get(server.url + "/")
        assert slow.snapshot().breaker == "closed"
        wire.close(held)


@every_wire
@pytest.mark.parametrize("way", ["close", "context"])
def test_b53_every_pool_is_closed_with_the_transport(wire: Wire, way: str) -> None:
    with RawServer(hangs_in_half) as server:
        wire.open(two(server), pool_per_dependency=True)

        def visit() -> list[Any]:
            for path in ("/quick/", "/of/nobody"):
                wire.get(server.url + path)
            held = wire.send("GET", server.url + "/half")
            wire.close(held)
            parts = wire.transport._inner.all()
            assert len(parts) == 3
            return [connection for part in parts for connection in part.inner._pool.connections]

        if way == "close" or wire.is_async:
            used = visit()
            sockets = [each._connection._network_stream.get_extra_info("socket") for each in used]
            shut(wire)
        else:
            with wire.client:
                used = visit()
                sockets = [each._connection._network_stream.get_extra_info("socket") for each in used]
        assert len(sockets) == 2
        assert all(sock.fileno() == -1 for sock in sockets)
        wire.client = None


class Part:
    """A transport that counts, and fails when it is closed if it is told so."""

    def __init__(self, seen: list[str], name: str, *, fails: bool = False) -> None:
        self.seen, self.name, self.fails = seen, name, fails

    def note(self, what: str) -> None:
        self.seen.append(f"{what} {self.name}")
        if self.fails and what != "enter":
            raise OSError(self.name)

    def close(self) -> None:
        self.note("close")

    async def aclose(self) -> None:
        self.note("close")

    def __enter__(self) -> Self:
        self.note("enter")
        return self

    def __exit__(self, *error: object) -> None:
        self.note("exit")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.note("exit")


def parts(kind: Any, seen: list[str], failing: str = "") -> Any:
    names = iter(("one", "two", "rest"))

    def make() -> Part:
        name = next(names)
        return Part(seen, name, fails=name == failing)

    return kind([Dependency("one", "http://one.test/*"), Dependency("two", "http://two.test/*")], make)


@pytest.mark.parametrize("failing", ["one", "two", "rest"])
def test_b53_one_that_cannot_be_closed_does_not_keep_the_others_open(failing: str) -> None:
    seen: list[str] = []
    with pytest.raises(OSError, match=failing):
        parts(PartedPools, seen, failing).close()
    assert sorted(seen) == ["close one", "close rest", "close two"]
    seen.clear()
    with pytest.raises(OSError, match=failing), parts(PartedPools, seen, failing):
        assert len(seen) == 3
    assert sorted(seen[3:]) == ["exit one", "exit rest", "exit two"]


@pytest.mark.parametrize("failing", ["one", "two", "rest"])
def test_b53_the_same_for_async_ones(failing: str) -> None:
    seen: list[str] = []

    async def use() -> None:
        with pytest.raises(OSError, match=failing):
            await parts(AsyncPartedPools, seen, failing).aclose()
        assert sorted(seen) == ["close one", "close rest", "close two"]
        seen.clear()
        with pytest.raises(OSError, match=failing):
            async with parts(AsyncPartedPools, seen, failing):
                assert len(seen) == 3
        assert sorted(seen[3:]) == ["exit one", "exit rest", "exit two"]

    asyncio.run(use())


@every_wire
def test_a_pool_that_is_smaller_than_the_bulkheads_is_warned_of(wire: Wire) -> None:
    limits = wire.lib.Limits(max_connections=10)
    shared = [Dependency(name, f"http://{name}.test/*", bulkhead=6) for name in ("prices", "users")]
    with pytest.warns(
        ResilienceWarning, match=r"10 connections.*12 attempts.*'prices' 6, 'users' 6"
    ) as caught:
        wire.open(shared, limits=limits)
    assert caught[0].filename.endswith("httpx_wires.py"), "the warning must name the line of the user"
    shut(wire)
    kind = wire.lib.AsyncHTTPTransport if wire.is_async else wire.lib.HTTPTransport
    with pytest.warns(ResilienceWarning, match=r"10 connections.*12 attempts"):
        wire.open(shared, kind(verify=False, limits=limits))


@every_wire
def test_a_pool_that_is_large_enough_is_not(wire: Wire) -> None:
    limits = wire.lib.Limits(max_connections=12)
    shared = [Dependency(name, f"http://{name}.test/*", bulkhead=6) for name in ("prices", "users")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wire.open(shared, limits=limits)
        shut(wire)
        wire.open(shared, limits=wire.lib.Limits(max_connections=6), pool_per_dependency=True)
        shut(wire)
        wire.open(shared, limits=wire.lib.Limits(max_connections=None))
    shut(wire)
    with pytest.warns(ResilienceWarning) as caught:
        wire.open(shared, limits=wire.lib.Limits(max_connections=5), pool_per_dependency=True)
    told = [str(each.message) for each in caught]
    assert [("'prices' 6)" in text, "'users' 6)" in text) for text in told] == [(True, False), (False, True)]
    assert not any("pool_per_dependency" in text for text in told), "that is no advice for who has it"


@every_wire
def test_a_transport_of_the_user_cannot_be_parted(wire: Wire) -> None:
    with pytest.raises(ValueError, match=r"pool_per_dependency=True is not allowed together with transport="):
        wire.open([], wire.handler(wire.always(200)), pool_per_dependency=True)


@every_wire
def test_certificates_are_read_once_for_all_pools(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []
    create = wire.lib.create_ssl_context

    def counted(**keywords: Any) -> ssl.SSLContext:
        if not isinstance(keywords["verify"], ssl.SSLContext):
            made.append(create(**keywords))
            return made[-1]
        context: ssl.SSLContext = create(**keywords)
        return context

    monkeypatch.setattr(wire.lib, "create_ssl_context", counted)
    wire.open(
        [Dependency(name, f"http://{name}.test/*") for name in ("prices", "users")], pool_per_dependency=True
    )
    assert len(made) == 1
    assert {id(part.inner._pool._ssl_context) for part in wire.transport._inner.all()} == {id(made[0])}
