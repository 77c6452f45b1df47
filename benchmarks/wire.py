"""Measure what a request costs a server over the wire: uvicorn with httptools and uvloop, with the middleware and without.

    python benchmarks/wire.py [--rounds N] [--requests N]

CPU time of the server's process per request, user and system; a client of its own process, kept connections, one request at
a time on each. Every server stays up and the rounds are interleaved, so that a busy machine hits all alike; medians. Read the
ratios: absolute figures belong to the machine. Linux only, as that is where the CPU clock of another process can be read.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from resilient_mw.core.problem import problem_body, refusal_headers
from resilient_mw.core.rejection import Reason

CONNECTIONS = 16
REQUEST = b"GET /item HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: benchmark\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n\r\n"

RAW, RAW_OURS = "raw ASGI", "raw ASGI + resilient_mw"
FASTAPI, FASTAPI_OURS = "FastAPI route", "FastAPI route + resilient_mw"
FASTAPI_BASE = "FastAPI route + BaseHTTPMiddleware that does nothing"
REFUSED, REFUSED_EARLY = "refused by resilient_mw", "refused by the uvicorn protocol"
REPLAYED = "a refusal's bytes by raw ASGI: nothing is decided"
CASES = (RAW, RAW_OURS, FASTAPI, FASTAPI_OURS, FASTAPI_BASE, REFUSED, REFUSED_EARLY, REPLAYED)

USUAL_HEADERS = [
    (name.lower().encode(), value.encode()) for name, value in refusal_headers(Reason.QUEUE_FULL, None)
]
USUAL_BODY = problem_body(Reason.QUEUE_FULL)

Costs = dict[str, float]
BOUNDS: tuple[tuple[str, Callable[[Costs], float], str, float], ...] = (
    (
        "added to raw ASGI / added by BaseHTTPMiddleware",
        lambda of: (of[RAW_OURS] - of[RAW]) / (of[FASTAPI_BASE] - of[FASTAPI]),
        "<=",
        0.1,
    ),
    (
        "added to a FastAPI route / the route",
        lambda of: (of[FASTAPI_OURS] - of[FASTAPI]) / of[FASTAPI],
        "<=",
        0.06,
    ),
    ("refusal / raw ASGI", lambda of: of[REFUSED] / of[RAW], "<=", 1.2),
    ("refusal / its bytes by raw ASGI", lambda of: of[REFUSED] / of[REPLAYED], "<=", 1.2),
    ("FastAPI route / refusal", lambda of: of[FASTAPI] / of[REFUSED], ">=", 3.0),
    ("FastAPI route / refusal by the protocol", lambda of: of[FASTAPI] / of[REFUSED_EARLY], ">=", 8.0),
)


def application(case: str) -> Any:
    """Return the application of a case."""
    from fastapi import FastAPI
    from run import AsgiMiddleware, NoOpBase, full, raw_asgi

    if case == RAW:
        return raw_asgi
    if case == RAW_OURS:
        return AsgiMiddleware(raw_asgi, limit=1000, name="wire")
    if case in {REFUSED, REFUSED_EARLY}:
        return full(AsgiMiddleware, raw_asgi)
    if case == REPLAYED:
        return replayed
    app = FastAPI()

    @app.get("/item")
    async def item() -> dict[str, bool]:
        return {"ok": True}

    if case == FASTAPI_OURS:
        app.add_middleware(AsgiMiddleware, limit=1000, name="wire")
    elif case == FASTAPI_BASE:
        app.add_middleware(NoOpBase)
    return app


async def replayed(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the head and the body of a refusal: what no middleware can be cheaper than."""
    headers = [*USUAL_HEADERS, (b"retry-after", b"1")]
    await send({"type": "http.response.start", "status": 503, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": USUAL_BODY, "more_body": False})


def serve(case: str, port: int) -> None:
    """Serve a case until the process is ended."""
    import uvicorn

    from resilient_mw_integrations.uvicorn import RefusingProtocol

    uvicorn.run(
        application(case),
        http=RefusingProtocol if case == REFUSED_EARLY else "httptools",
        loop="uvloop", port=port, access_log=False, log_level="warning",
    )  # fmt: skip


class Served:
    """One running server and the client's connections to it."""

    def __init__(self, case: str, process: subprocess.Popen[bytes], port: int) -> None:
        self.case = case
        # The clock of a process's CPU time (clock_getcpuclockid), which Python has no function for.
        self._clock = (~process.pid << 3) | 2
        self._connections = [_connected(process, port) for _ in range(CONNECTIONS)]

    def cost(self, requests: int) -> float:
        """Return CPU microseconds of the server per request."""
        self._exchange(CONNECTIONS)
        began = time.clock_gettime(self._clock)
        self._exchange(requests)
        return (time.clock_gettime(self._clock) - began) / requests * 1e6

    def _exchange(self, requests: int) -> None:
        refused = self.case in {REFUSED, REFUSED_EARLY, REPLAYED}
        expected = b"HTTP/1.1 503" if refused else b"HTTP/1.1 200"
        for _ in range(0, requests, CONNECTIONS):
            for each in self._connections:
                each.sendall(REQUEST)
            for each in self._connections:
                answer = _answer(each)
                if not answer.startswith(expected):
                    raise SystemExit(f"{self.case} answered {answer!r}")

    def close(self) -> None:
        for each in self._connections:
            each.close()


def _answer(connection: socket.socket) -> bytes:
    """Read one answer to its end."""
    answer = connection.recv(65536)
    while True:
        head, found, body = answer.partition(b"\r\n\r\n")
        if found:
            length = head.lower().split(b"content-length: ")[1].partition(b"\r\n")[0]
            if len(body) == int(length):
                return answer
        more = connection.recv(65536)
        if not more:
            raise SystemExit(f"the connection ended after {answer!r}")
        answer += more


def _connected(process: subprocess.Popen[bytes], port: int) -> socket.socket:
    for _ in range(600):
        if process.poll() is not None:
            break
        try:
            connection = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            time.sleep(0.1)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(60)
            return connection
    raise SystemExit("a server did not start")


@contextmanager
def served(case: str) -> Iterator[Served]:
    """Start the server of a case, and end it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(Path(__file__)), "--serve", case, str(port)])
    try:
        server = Served(case, process, port)
        try:
            yield server
        finally:
            server.close()
    finally:
        process.terminate()
        process.wait(30)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="rounds of every case (default: 15)")
    parser.add_argument("--requests", type=int, default=2_000, help="requests of a round (default: 2,000)")
    parser.add_argument("--serve", nargs=2, metavar=("CASE", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve[0], int(options.serve[1]))
        return 0
    if not sys.platform.startswith("linux"):
        parser.error("the CPU time of another process is read as Linux tells it")
    rounds: list[Costs] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(served(case)) for case in CASES]
        for server in servers:
            server.cost(500)  # warm-up
        for number in range(1, options.rounds + 1):
            print(f"\rround {number} of {options.rounds}", end="", file=sys.stderr, flush=True)
            rounds.append({server.case: server.cost(options.requests) for server in servers})
    print(file=sys.stderr)
    return report(rounds)


def report(rounds: list[Costs]) -> int:
    """Print the tables."""
    costs = {case: statistics.median(each[case] for each in rounds) for case in CASES}
    print(f"{f'server CPU µs per request, median of {len(rounds)}':<54}{'total':>8}{'of raw':>8}")
    for case in CASES:
        print(f"{case:<54}{costs[case]:8.1f}{costs[case] / costs[RAW]:8.2f}")
    print(f"\n{'ratio (the median of the rounds)':<54}{'here':>8}{'bound':>11}")
    for name, ratio, sign, bound in BOUNDS:
        here = statistics.median(ratio(each) for each in rounds)
        held = here <= bound if sign == "<=" else here >= bound
        print(f"{name:<54}{here:8.2f}{f'{sign} {bound}':>11}{'' if held else '  not held'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
