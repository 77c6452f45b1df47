"""The price service: a dependency that counts, and whose delay and failures are switched while it runs.

    python -m resilient_mw.lab.prices --port 0 --delay 0.05

prints `{"port": ...}` and serves HTTP/1.1 with keep-alive on 127.0.0.1:

    GET  /price                         sleeps the delay, then answers
    POST /control?delay=3&mode=error    changes delay (seconds) and mode (ok, error, reset)
    GET  /control/counts                what it received, answered, lost to a caller who left
    GET  /control/arrivals              the monotonic instant at which each request for a price came in

It is a bare protocol and not an application on a server, so that it stays far away from its own limits.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import time
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from resilient_mw.lab.processes import announce, exit_with_parent
from resilient_mw.lab.wire import HOST

MODES = ("ok", "error", "reset")
MAX_HEAD = 16_384
MAX_DELAY = 3600.0
MAX_ARRIVALS = 100_000

_PRICE = json.dumps({"price": 990, "currency": "EUR"}).encode()
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error"}


class PriceService:
    """What all connections share: behaviour and counts."""

    def __init__(self, delay: float, mode: str) -> None:
        self.delay = delay
        self.mode = mode
        self.received = 0
        self.answered = 0
        self.abandoned = 0
        self.in_flight = 0
        self.peak = 0
        self.arrivals: collections.deque[float] = collections.deque(maxlen=MAX_ARRIVALS)
        self.connections: set[_Connection] = set()

    def begin(self) -> None:
        """Count a request for a price that has come in."""
        self.received += 1
        self.arrivals.append(time.monotonic())
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def change(self, query: str) -> None:
        """Set delay and mode from a query string.

        Raises:
            ValueError: an unknown or repeated parameter, or a value out of range; nothing is changed then.
        """
        given = parse_qs(query, keep_blank_values=True)
        unknown = set(given) - {"delay", "mode"}
        if unknown or not given or any(len(values) > 1 for values in given.values()):
            raise ValueError("give delay, mode or both, each once")
        delay = float(given["delay"][0]) if "delay" in given else self.delay
        mode = given["mode"][0] if "mode" in given else self.mode
        if not 0 <= delay <= MAX_DELAY:
            raise ValueError(f"delay={delay} is not allowed: 0 to {MAX_DELAY:.0f} seconds")
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is not allowed: one of {', '.join(MODES)}")
        self.delay, self.mode = delay, mode

    def counts(self) -> dict[str, Any]:
        """Return counts and behaviour; `last_second` is what was received in the second before now."""
        since = time.monotonic() - 1.0
        last_second = 0
        for instant in reversed(self.arrivals):
            if instant < since:
                break
            last_second += 1
        return {
            "received": self.received,
            "answered": self.answered,
            "abandoned": self.abandoned,
            "in_flight": self.in_flight,
            "peak": self.peak,
            "last_second": last_second,
            "delay": self.delay,
            "mode": self.mode,
        }

    def control(self, method: str, path: str, query: str) -> tuple[int, bytes]:
        """Answer everything that is not a request for a price."""
        if (method, path) == ("GET", "/control/counts"):
            return 200, json.dumps(self.counts()).encode()
        if (method, path) == ("GET", "/control/arrivals"):
            return 200, json.dumps(list(self.arrivals)).encode()
        if (method, path) == ("POST", "/control"):
            try:
                self.change(query)
            except ValueError as error:
                return 400, json.dumps({"error": str(error)}).encode()
            return 200, json.dumps(self.counts()).encode()
        return 404, json.dumps({"error": f"no {method} {path} here"}).encode()


class _Connection(asyncio.Protocol):
    """One connection: requests are answered one after the other, in the order in which they came."""

    def __init__(self, service: PriceService) -> None:
        self._service = service
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._keep_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._service.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._service.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._service.in_flight -= 1
            self._service.abandoned += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        """Begin with the next whole request, unless one is in hand."""
        while self._timer is None and not self._transport.is_closing():
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > MAX_HEAD:
                    self._transport.abort()
                return
            head = self._buffer[:end].decode("latin-1")
            del self._buffer[: end + 4]
            self._begin(head)

    def _begin(self, head: str) -> None:
        request_line, *lines = head.split("\r\n")
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        parts = request_line.split(" ")
        has_body = fields.get("content-length", "0") != "0" or "transfer-encoding" in fields
        self._keep_alive = fields.get("connection", "").lower() != "close" and not has_body
        if len(parts) != 3 or parts[2] != "HTTP/1.1" or has_body:
            self._keep_alive = False
            self._send(400, b'{"error": "HTTP/1.1 requests without a body only"}')
            return
        method, target, _ = parts
        url = urlsplit(target)
        if (method, url.path) == ("GET", "/price"):
            self._service.begin()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._service.delay, self._finish, self._service.mode)
        else:
            self._send(*self._service.control(method, url.path, url.query))

    def _finish(self, mode: str) -> None:
        self._timer = None
        self._service.in_flight -= 1
        if mode == "reset":
            self._transport.abort()
            return
        self._service.answered += 1
        if mode == "error":
            self._send(500, b'{"error": "switched to fail"}')
        else:
            self._send(200, _PRICE)
        self._next()

    def _send(self, status: int, body: bytes) -> None:
        # Head and body leave in one write: two small packets would wait for each other's acknowledgement
        # (Nagle's algorithm against delayed ACK), some 40 ms that would be measured as the application's.
        connection = "" if self._keep_alive else "Connection: close\r\n"
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{connection}\r\n"
        )
        self._transport.write(head.encode("latin-1") + body)
        if not self._keep_alive:
            self._transport.close()


async def start(port: int, service: PriceService) -> asyncio.Server:
    """Listen on 127.0.0.1; port 0 takes a free one."""
    return await asyncio.get_running_loop().create_server(
        lambda: _Connection(service), HOST, port, backlog=1024
    )


async def serve(port: int, delay: float, mode: str) -> None:
    """Listen, say on which port, and serve until the process ends."""
    server = await start(port, PriceService(delay, mode))
    announce({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


def main(argv: list[str] | None = None) -> None:
    """Run the price service."""
    parser = argparse.ArgumentParser(
        prog="python -m resilient_mw.lab.prices", description="A slow price service."
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before the answer (default 0.05)")
    parser.add_argument("--mode", choices=MODES, default="ok", help="how it answers (default ok)")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input is closed")
    options = parser.parse_args(argv)
    if not 0 <= options.delay <= MAX_DELAY:
        parser.error(f"--delay {options.delay}: 0 to {MAX_DELAY:.0f} seconds")
    if options.with_parent:
        exit_with_parent()
    try:
        asyncio.run(serve(options.port, options.delay, options.mode))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
