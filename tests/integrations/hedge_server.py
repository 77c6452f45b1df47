"""A server whose answers take as long as the test says, one after the other, and that knows which connections were closed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from types import TracebackType
from typing import Self

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s"


class HedgeServer:
    """Serves HTTP/1.1 on a free port of this machine.

    Args:
        seconds: says how long the request of a number takes, beginning with 1.
        status: says with which status it is answered.

    Attributes:
        requests: the heads of all requests.
        hung_up: numbers of the requests whose connection was closed before their answer.
        open: connections.
    """

    def __init__(
        self, seconds: Callable[[int], float], status: Callable[[int], int] = lambda number: 200
    ) -> None:
        self.requests: list[bytes] = []
        self.hung_up: list[int] = []
        self.open = 0
        self._seconds = seconds
        self._status = status
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self.open += 1
        with connection, suppress(OSError):
            while self._answer(connection):
                pass
        with self._lock:
            self.open -= 1

    def _answer(self, connection: socket.socket) -> bool:
        connection.settimeout(None)
        head = b""
        while b"\r\n\r\n" not in head:
            received = connection.recv(65536)
            if not received:
                return False
            head += received
        with self._lock:
            self.requests.append(head)
            number = len(self.requests)
        if not self._wait(connection, monotonic() + self._seconds(number)):
            self.hung_up.append(number)
            return False
        body = b"%d" % number
        reply = ANSWER % (len(body), body)
        connection.sendall(reply.replace(b"200 OK", b"%d X" % self._status(number), 1))
        return True

    def _wait(self, connection: socket.socket, until: float) -> bool:
        """Take what comes in until an instant; return whether the client is still there."""
        while True:
            connection.settimeout(max(0.001, until - monotonic()))
            try:
                if connection.recv(65536) == b"":
                    return False
            except TimeoutError:
                return True
            except OSError:
                return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()


def eventually(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until something is true; return whether it is."""
    until = monotonic() + seconds
    while not true():
        if monotonic() > until:
            return False
        sleep(0.005)
    return True
