"""The application that the real servers of `test_servers.py` serve: limit 2, queue 2, one second at most for most."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs
from wsgiref.util import FileWrapper
from wsgiref.validate import validator

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.core.cancel import CancelReason
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.runtime.guard import guard_of
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import late, outcomes, queued, refused

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

TEXT = ("Content-Type", "text/plain")
policy = ServerPolicy(
    limit=2,
    queue=2,
    max_wait=20.0,
    wait_share=1.0,
    deadline_default=1.0,
    routes=[
        RouteRule("/state", priority="exempt"),
        RouteRule("/let_go", priority="exempt"),
        RouteRule("/long/*", deadline_default=30.0),
    ],
)
closed = 0
told: list[str] = []
going = threading.Condition()
times_let_go = 0


def seconds(environ: WSGIEnvironment) -> float:
    return float(parse_qs(environ["QUERY_STRING"]).get("s", ["0"])[0])


def sleep(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    time.sleep(seconds(environ))
    start_response("200 OK", [TEXT, ("Content-Length", "5")])
    return [b"slept"]


def held(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Work that goes on until somebody says so at `/let_go`."""
    with going:
        before = times_let_go
        going.wait_for(lambda: times_let_go > before, 20)
    start_response("200 OK", [TEXT])
    return [b"held"]


def let_go(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    global times_let_go
    with going:
        times_let_go += 1
        going.notify_all()
    start_response("200 OK", [TEXT])
    return [b"gone"]


def check(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    for _ in range(500):
        time.sleep(0.02)
        current().check()
    start_response("200 OK", [TEXT])
    return [b"never"]


def loop(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Work that looks now and then whether anybody still wants it."""
    current().on_cancel(lambda reason: told.append(f"callback {reason}"))
    try:
        for _ in range(1000):
            time.sleep(0.01)
            current().check()
    except RequestCancelled as error:
        told.append(f"check {error.reason}")
        raise
    start_response("200 OK", [TEXT])
    return [b"in vain"]


def begun(environ: WSGIEnvironment, start_response: StartResponse) -> Iterator[bytes]:
    start_response("200 OK", [TEXT])
    yield b"begun"
    yield from loop(environ, start_response)


def deaf(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Work that blocks: only its callback can end it."""
    left = threading.Event()

    def leave(reason: CancelReason) -> None:
        told.append(f"callback {reason}")
        left.set()

    current().on_cancel(leave)
    left.wait(20)
    start_response("200 OK", [TEXT])
    return [b"in vain"]


class Stream:
    """A body in many parts, produced slowly."""

    def __init__(self, start_response: StartResponse, pause: float) -> None:
        self.parts = self.make(start_response, pause)

    def __iter__(self) -> Iterator[bytes]:
        return self.parts

    def make(self, start_response: StartResponse, pause: float) -> Iterator[bytes]:
        start_response("200 OK", [TEXT, ("X-Lazy", "1")])
        for _ in range(20):
            yield b"x" * 65_536
            time.sleep(pause)

    def close(self) -> None:
        global closed
        closed += 1
        self.parts.close()  # type: ignore[attr-defined]


def stream(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return Stream(start_response, seconds(environ))


def echo(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [TEXT])
    return [environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))]


class CountedFile(io.FileIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        CountedFile.reads += 1
        return super().read(size)


def file(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """This file, by the server's own means where it has some."""
    start_response("200 OK", [TEXT, ("Content-Length", str(Path(__file__).stat().st_size))])
    wrapped: Iterable[bytes] = environ.get("wsgi.file_wrapper", FileWrapper)(CountedFile(__file__), 512)
    return wrapped


def replaced(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [TEXT, ("X-First", "1")])
    try:
        raise ValueError("mine")
    except ValueError as error:
        start_response("500 Internal Server Error", [TEXT], (ValueError, error, None))  # type: ignore[arg-type]
    return [b"sorry"]


def path(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [TEXT])
    return [f"{environ['PATH_INFO']!a} {current().remaining():.1f}".encode()]


def empty(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("204 No Content", [])
    return []


def state(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    # Without exempt requests: those who ask for this would count themselves.
    classes = [each for each in guard_of(policy).snapshot().classes if each.priority != "exempt"]
    figures = {
        "slots": sum(each.slots for each in classes),
        "queued": queued(policy),
        "outcomes": outcomes(policy, without="exempt"),
        "refused": refused(policy),
        "late": late(policy),
        "closed": closed,
        "told": told,
        "reads": CountedFile.reads,
        "left": sum(route.left for route in policy.snapshot().routes),
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(figures).encode()]


Application = Callable[["WSGIEnvironment", "StartResponse"], Iterable[bytes]]
ROUTES: dict[str, Application] = {
    "/sleep": sleep,
    "/check": check,
    "/let_go": let_go,
    "/long/held": held,
    "/long/echo": echo,
    "/long/loop": loop,
    "/long/begun": begun,
    "/long/deaf": deaf,
    "/long/stream": stream,
    "/stream": stream,
    "/replaced": replaced,
    "/empty": empty,
    "/state": state,
}


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    return ROUTES.get(environ["PATH_INFO"], path)(environ, start_response)


validated = validator(app)


def root(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    # What stands between hides from a server what it has made of a file.
    return (file if environ["PATH_INFO"] == "/file" else validated)(environ, start_response)


application = ResilienceMiddleware(root, policy)
