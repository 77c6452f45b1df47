"""One face for requests, urllib3 and aiohttp, so that each test is written once."""

from __future__ import annotations

import asyncio
import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Any, NamedTuple

import aiohttp
import pytest
import requests
import urllib3

from resilient_mw.calls.dependency import Dependency
from resilient_mw_integrations import aiohttp as our_aiohttp
from resilient_mw_integrations import requests as our_requests
from resilient_mw_integrations import urllib3 as our_urllib3

NAMES = ("requests", "urllib3", "aiohttp")

every_client = pytest.mark.parametrize("name", NAMES)
sync_clients = pytest.mark.parametrize("name", NAMES[:2])


class Answer(NamedTuple):
    """What came back; `held` is the library's own response."""

    status: int
    body: bytes
    held: Any


class ClientWire(ABC):
    """A client with our part in it."""

    is_async = False
    ours: Any
    failure: type[Exception]
    timeout: type[Exception]

    @abstractmethod
    def open(
        self, dependencies: Sequence[Dependency], connections: int | None = None, **options: Any
    ) -> ClientWire:
        """Make the client; with a number of connections, more calls wait for one."""

    @abstractmethod
    def send(self, method: str, url: str, **options: Any) -> Any:
        """Return a response whose body has not been read."""

    @abstractmethod
    def read(self, response: Any) -> bytes: ...

    def close(self, response: Any) -> None:
        response.close()

    def status(self, response: Any) -> int:
        return int(response.status)

    def request(self, method: str, url: str, **options: Any) -> Answer:
        response = self.send(method, url, **options)
        body = self.read(response)
        return Answer(self.status(response), body, response)

    def get(self, url: str, **options: Any) -> Answer:
        return self.request("GET", url, **options)

    def large(self, size: int) -> Any:
        """A body that is large."""
        return b"x" * size

    def once(self) -> Any:
        """A body that can be sent once."""
        return iter([b"a", b"b"])

    @abstractmethod
    def part(self) -> Any:
        """Our part."""

    def end(self) -> None:
        """Tell our part that it is over."""
        self.part().close()

    @abstractmethod
    def shut(self) -> None: ...


class RequestsWire(ClientWire):
    ours = our_requests
    failure = requests.exceptions.RequestException
    timeout = requests.exceptions.Timeout

    def open(
        self, dependencies: Sequence[Dependency], connections: int | None = None, **options: Any
    ) -> ClientWire:
        if connections is not None:
            options.update(pool_maxsize=connections, pool_block=True)
        self.adapter = our_requests.ResilientAdapter(dependencies, **options)
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.verify = False
        self.session.mount("http://", self.adapter)
        self.session.mount("https://", self.adapter)
        return self

    def send(self, method: str, url: str, **options: Any) -> Any:
        return self.session.request(method, url, stream=True, **options)

    def status(self, response: Any) -> int:
        return int(response.status_code)

    def read(self, response: Any) -> bytes:
        return bytes(response.content)

    def part(self) -> Any:
        return self.adapter

    def shut(self) -> None:
        self.session.close()


class Urllib3Wire(ClientWire):
    ours = our_urllib3
    failure = urllib3.exceptions.HTTPError
    timeout = urllib3.exceptions.TimeoutError

    def open(
        self, dependencies: Sequence[Dependency], connections: int | None = None, **options: Any
    ) -> ClientWire:
        if connections is not None:
            options.update(maxsize=connections, block=True)
        self.manager = our_urllib3.ResilientPoolManager(dependencies, cert_reqs="CERT_NONE", **options)
        return self

    def send(self, method: str, url: str, *, data: Any = None, **options: Any) -> Any:
        return self.manager.request(method, url, body=data, preload_content=False, **options)

    def read(self, response: Any) -> bytes:
        return bytes(response.read())

    def part(self) -> Any:
        return self.manager

    def end(self) -> None:
        self.manager.clear()

    def shut(self) -> None:
        self.manager.clear()


class AiohttpWire(ClientWire):
    is_async = True
    ours = our_aiohttp
    failure = aiohttp.ClientError
    timeout = aiohttp.ServerTimeoutError

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def run(self, result: Any) -> Any:
        async def awaited() -> Any:
            return await result

        return self.runner.run(awaited(), context=copy_context())

    def open(
        self, dependencies: Sequence[Dependency], connections: int | None = None, **options: Any
    ) -> ClientWire:
        async def make() -> None:
            self.middleware = our_aiohttp.ResilientMiddleware(dependencies)
            connector = aiohttp.TCPConnector(
                limit=connections or 100, ssl=False, resolver=aiohttp.ThreadedResolver()
            )
            self.session = aiohttp.ClientSession(
                connector=connector, middlewares=[*options.pop("outer", ()), self.middleware], **options
            )

        self.run(make())
        return self

    def send(self, method: str, url: str, **options: Any) -> Any:
        if "timeout" in options:
            options["timeout"] = aiohttp.ClientTimeout(sock_read=options["timeout"])
        return self.run(self.session.request(method, url, **options))

    def request(self, method: str, url: str, **options: Any) -> Answer:
        async def both() -> Answer:
            response = await self.session.request(method, url, **options)
            return Answer(response.status, await response.read(), response)

        if "timeout" in options:
            options["timeout"] = aiohttp.ClientTimeout(sock_read=options["timeout"])
        answer: Answer = self.run(both())
        return answer

    def read(self, response: Any) -> bytes:
        return bytes(self.run(response.read()))

    def close(self, response: Any) -> None:
        async def close() -> None:
            response.close()

        self.run(close())

    def large(self, size: int) -> Any:
        return io.BytesIO(b"x" * size)

    def once(self) -> Any:
        async def parts() -> Any:
            yield b"a"
            yield b"b"

        return parts()

    def part(self) -> Any:
        return self.middleware

    def end(self) -> None:
        self.run(self.middleware.aclose())

    def shut(self) -> None:
        async def close() -> None:
            await self.session.close()
            await asyncio.sleep(0)

        self.run(close())
        self.runner.close()


WIRES: dict[str, Callable[[], ClientWire]] = {
    "requests": RequestsWire,
    "urllib3": Urllib3Wire,
    "aiohttp": AiohttpWire,
}


def make_client(name: str) -> Iterator[Any]:
    with warnings.catch_warnings():
        # The servers of the tests have certificates that nobody has signed.
        warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
        made = WIRES[name]()
        yield made
        made.shut()


@pytest.fixture
def client(name: str) -> Iterator[Any]:
    yield from make_client(name)
