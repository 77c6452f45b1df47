"""A TCP server that does to its clients what a test tells it to, byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass
class Received:
    """One request as it came in."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of a field, in order."""
        return [value for key, value in self.headers if key == name.lower()]


class Connection:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket, server: RawServer) -> None:
        self.sock = sock
        self.server = server
        self._buffer = b""

    def request(self, *, body: bool = True) -> Received | None:
        """Read one request; None if the client has gone."""
        while b"\r\n\r\n" not in self._buffer:
            if not self._more():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = [
            (key.strip().lower(), value.strip()) for key, _, value in (line.partition(":") for line in lines)
        ]
        received = Received(method, path, headers, b"")
        self.server.requests.append(received)
        if body:
            received.body = self._body(received)
        return received

    def _body(self, received: Received) -> bytes:
        length = received.all("content-length")
        if length:
            while len(self._buffer) < int(length[0]):
                if not self._more():
                    break
            body, self._buffer = self._buffer[: int(length[0])], self._buffer[int(length[0]) :]
            return body
        body = b""
        while received.all("transfer-encoding"):
            while b"\r\n" not in self._buffer:
                if not self._more():
                    return body
            size, _, self._buffer = self._buffer.partition(b"\r\n")
            end = int(size, 16) + 2
            while len(self._buffer) < end:
                if not self._more():
                    return body
            body += self._buffer[: end - 2]
            self._buffer = self._buffer[end:]
            if end == 2:
                break
        return body

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65_536)
        except OSError:
            return False
        self._buffer += data
        return bool(data)

    def send(self, data: bytes) -> bool:
        """Send; False if the client has gone."""
        try:
            self.sock.sendall(data)
        except OSError:
            return False
        return True

    def answer(self, status: int = 200, body: bytes = b"ok", *lines: str) -> bool:
        """Send a complete answer and keep the connection."""
        return self.send(head(status, len(body), *lines) + body)

    def drip(self, data: bytes, every: float = 0.02) -> None:
        """Send byte by byte until the client or the test has gone."""
        for index in range(len(data)):
            if not self.send(data[index : index + 1]) or self.server.over.wait(every):
                return

    def hang(self) -> None:
        """Do nothing until the client or the test has gone."""
        self.sock.settimeout(10)
        self._more()


def head(status: int = 200, length: int | None = 2, *lines: str) -> bytes:
    """A response head."""
    rows = [f"HTTP/1.1 {status} Whatever", *lines]
    if length is not None:
        rows.append(f"Content-Length: {length}")
    return "\r\n".join([*rows, "", ""]).encode("latin-1")


Script = Callable[[Connection], None]


@dataclass
class RawServer:
    """Runs `script` in a thread for each connection.

    Attributes:
        script: what to do to a client.
        host: what the URL says.
        bind: the address.
        port: the port; 0: any that is free.
        requests: what came in, all connections together.
        connections: how many there were.
        over: set when the test is over.
    """

    script: Script
    host: str = "127.0.0.1"
    bind: str = "127.0.0.1"
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    connections: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server((self.bind, self.port))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """The beginning of every URL."""
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.over.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(2)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(sock)
            self.connections += 1
            self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            self.script(Connection(sock, self))


class FullBacklog:
    """A listening socket whose queue is full: connecting to it never ends, and never fails."""

    def __enter__(self) -> str:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self._waiting = []
        for _ in range(3):
            sock = socket.socket()
            sock.setblocking(False)
            with suppress(BlockingIOError):
                sock.connect(self._listener.getsockname())
            self._waiting.append(sock)
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for sock in self._waiting:
            sock.close()
        self._listener.close()
