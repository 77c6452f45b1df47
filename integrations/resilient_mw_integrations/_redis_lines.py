"""Ways to Redis or Valkey: connections of one's own, made as the client makes them, and every wait within its time.

A client of the user says where the server is and who we are; its own connections are not used, since what they wait and how
often they try again is for its other users.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from importlib import import_module
from typing import Any, Final, TypeAlias

from resilient_mw.core.ports import process_clock
from resilient_mw.idempotency.protocol import StoreUnavailable
from resilient_mw.stores.forks import after_fork
from resilient_mw_integrations._redis_questions import SCRIPT, SHA

Payload: TypeAlias = tuple[tuple[str, ...], tuple[Any, ...]]
_LIBRARIES: Final = ("redis", "valkey")


class Factory:
    """Makes connections as a client makes them, but without its retries.

    Args:
        server: a URL, or a client of redis-py or valkey-py.
        loop: whether for an event loop.

    Raises:
        ValueError: it is neither, or a client of the other kind.

    Attributes:
        client: set instead of making connections, for a client that is a cluster's.
    """

    def __init__(self, server: Any, *, loop: bool) -> None:
        self._server = server
        part = ".asyncio" if loop else ""
        if isinstance(server, str):
            library = "valkey" if server.startswith(("valkey", "valkeys", "valkey+unix")) else "redis"
            module = import_module(library + part)
            server = (module.Redis if library == "redis" else module.Valkey).from_url(server)
        else:
            roots = [each.__module__.partition(".")[0] for each in type(server).__mro__]
            library = next((each for each in roots if each in _LIBRARIES), "redis")
        if inspect.iscoroutinefunction(getattr(server, "execute_command", None)) is not loop:
            kind = "an asyncio client" if loop else "a blocking client"
            raise ValueError(f"server must be a URL or {kind} of redis-py or valkey-py, got {self._server!r}")
        errors = import_module(f"{library}.exceptions")
        base = errors.RedisError if library == "redis" else errors.ValkeyError
        self.errors: tuple[type[Exception], ...] = (base, OSError)
        self.lost: tuple[type[Exception], ...] = (errors.ConnectionError, ConnectionError)
        self.no_script: type[Exception] = errors.NoScriptError
        pool = getattr(server, "connection_pool", None)
        self.client = server if pool is None else None
        if pool is not None:
            retry = import_module(f"{library}{part}.retry").Retry
            none = import_module(f"{library}.backoff").NoBackoff
            self._class = pool.connection_class
            self._options = {**pool.connection_kwargs, "retry": retry(none(), 0)}

    def connection(self, left: float) -> Any:
        """Return one that is not connected yet."""
        connection = self._class(**self._options)
        bound(connection, left)
        return connection


def bound(connection: Any, left: float) -> None:
    """Have a connection wait so many seconds for each answer."""
    connection.socket_timeout = connection.socket_connect_timeout = left
    sock = getattr(connection, "_sock", None)
    if sock is not None:
        sock.settimeout(left)


def by_name(payload: Payload) -> tuple[Any, ...]:
    """Return the command that runs the script by its name."""
    keys, arguments = payload
    return ("EVALSHA", SHA, len(keys), *keys, *arguments)


def whole(payload: Payload) -> tuple[Any, ...]:
    """Return the command that hands the script over and runs it."""
    return ("EVAL", SCRIPT, *by_name(payload)[2:])


class RedisLine:
    """A `Line` to Redis or Valkey.

    Args:
        server: a URL or a client.
        connections: at most so many.
    """

    def __init__(self, server: Any, connections: int) -> None:
        self._factory = Factory(server, loop=False)
        self._connections = connections
        self._clock = process_clock()
        self._begin()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._begin()

    def _begin(self) -> None:
        self._free: list[Any] = []
        self._places = threading.Semaphore(self._connections)

    def send(self, payload: Payload, timeout: float) -> Any:
        """As of `Line`."""
        until = self._clock.now() + timeout
        places = self._places
        if not places.acquire(timeout=timeout):
            raise StoreUnavailable(
                f"all {self._connections} connections to Redis were busy for {timeout:g} s"
            )
        try:
            if self._factory.client is not None:
                return self._by_client(self._factory.client, payload)
            while True:
                answer = self._attempt(payload, until)
                if answer is not None:
                    return answer
        except self._factory.errors as error:
            raise StoreUnavailable(f"Redis: {error}") from error
        finally:
            places.release()

    def close(self) -> None:
        """As of `Line`."""
        free, self._free = self._free, []
        for connection in free:
            connection.disconnect()

    def _attempt(self, payload: Payload, until: float) -> Any:
        """Return the answer; None: an idle connection had been closed, the next one may be good."""
        free, left = self._free, max(0.001, until - self._clock.now())
        try:
            connection, idle = free.pop(), True
            bound(connection, left)
        except IndexError:
            connection, idle = self._factory.connection(left), False
        good = False
        try:
            answer = self._exchange(connection, payload)
            good = True
        except self._factory.lost:
            if not idle or self._clock.now() >= until:
                raise
            return None
        finally:
            if good and free is self._free:
                free.append(connection)
            else:
                connection.disconnect()
        return answer

    def _exchange(self, connection: Any, payload: Payload) -> Any:
        connection.send_command(*by_name(payload))
        try:
            return connection.read_response(disable_decoding=True)
        except self._factory.no_script:
            connection.send_command(*whole(payload))
            return connection.read_response(disable_decoding=True)

    def _by_client(self, client: Any, payload: Payload) -> Any:
        try:
            return client.execute_command(*by_name(payload), NEVER_DECODE=True)
        except self._factory.no_script:
            return client.execute_command(*whole(payload), NEVER_DECODE=True)


class AsyncRedisLine:
    """An `AsyncLine` to Redis or Valkey; its connections are those of the event loop that asks.

    Args:
        server: a URL or a client.
        connections: at most so many.
    """

    def __init__(self, server: Any, connections: int) -> None:
        self._factory = Factory(server, loop=True)
        self._connections = connections
        self._clock = process_clock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()
        after_fork(self)

    def forked(self) -> None:
        """Begin anew in a forked child."""
        self._begin()

    def _begin(self) -> None:
        self._free: list[Any] = []
        self._places = asyncio.Semaphore(self._connections)

    async def send(self, payload: Payload, timeout: float) -> Any:  # noqa: ASYNC109
        """As of `AsyncLine`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._begin()
            self._loop = loop
        try:
            async with asyncio.timeout(timeout), self._places:
                if self._factory.client is not None:
                    return await self._by_client(self._factory.client, payload)
                while True:
                    answer = await self._attempt(payload, timeout)
                    if answer is not None:
                        return answer
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis did not answer within {timeout:g} s") from error
        except self._factory.errors as error:
            raise StoreUnavailable(f"Redis: {error}") from error

    async def close(self) -> None:
        """As of `AsyncLine`."""
        free, self._free = self._free, []
        if self._loop is asyncio.get_running_loop():
            for connection in free:
                await connection.disconnect()

    async def _attempt(self, payload: Payload, timeout: float) -> Any:  # noqa: ASYNC109
        free = self._free
        try:
            connection, idle = free.pop(), True
        except IndexError:
            connection, idle = self._factory.connection(timeout), False
        bound(connection, timeout)
        good = False
        try:
            answer = await self._exchange(connection, payload)
            good = True
        except self._factory.lost:
            if not idle:
                raise
            return None
        finally:
            if good and free is self._free:
                free.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return answer

    async def _exchange(self, connection: Any, payload: Payload) -> Any:
        await connection.connect()
        await connection.send_command(*by_name(payload))
        try:
            return await connection.read_response(disable_decoding=True)
        except self._factory.no_script:
            await connection.send_command(*whole(payload))
            return await connection.read_response(disable_decoding=True)

    async def _by_client(self, client: Any, payload: Payload) -> Any:
        try:
            return await client.execute_command(*by_name(payload), NEVER_DECODE=True)
        except self._factory.no_script:
            return await client.execute_command(*whole(payload), NEVER_DECODE=True)
