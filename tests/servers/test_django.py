"""A Django project on real servers, protected by wsgi.py or asgi.py, by MIDDLEWARE, or by both.

Field cases B25, B26, B28, B29 and B31 in their Django forms. One test is one server, which takes longer to start than all that
it is asked.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.conftest import write_entry_points
from tests.servers.processes import listening
from tests.wsgi.servers import Reply, Server, serve


@contextlib.contextmanager
def project(kind: str, form: str, folder: Path) -> Iterator[Server]:
    """Serve the project in one of its forms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROJECT_FORM", form)
        patch.setenv("PROJECT_ENTRY_POINTS", str(write_entry_points(folder)))
        patch.setenv("PROJECT_DATABASE", str(folder / "db.sqlite3"))
        patch.setenv("DJANGO_SETTINGS_MODULE", "tests.django_project.settings")
        if kind in {"gunicorn", "waitress"}:
            with serve(kind, "tests.django_project.wsgi:application") as server:
                yield server
        else:
            with listening(kind, folder, "application", "tests.django_project.asgi") as running:
                yield Server(kind, running.port, running.process)  # type: ignore[arg-type]


@pytest.fixture
def users() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def until(server: Server, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the figures are such."""
    end = time.monotonic() + 15
    while True:
        state = server.state()
        if holds(state):
            return state
        assert time.monotonic() < end, state
        time.sleep(0.02)


def idle(state: dict[str, Any]) -> bool:
    """Whether nothing runs that is not exempt."""
    return bool(state["slots"] == state["queued"] == 0)


def budget(milliseconds: int) -> dict[str, str]:
    return {"X-Request-Timeout-Ms": str(milliseconds)}


def expired(reply: Reply) -> bool:
    """Whether it is the 504 of a request that a view had begun to work on."""
    late = json.loads(reply.body)["reason"] == "deadline_exceeded"
    return late and reply.status == 504 and reply.header("X-Refusal-Reason") is None


def outcome(state: dict[str, Any], name: str) -> int:
    found: int = state["outcomes"].get(name, 0)
    return found


def noted(state: dict[str, Any], name: str) -> int:
    found: int = state["noted"].get(name, 0)
    return found


@pytest.mark.parametrize(("kind", "form"), [("gunicorn", "both"), ("waitress", "middleware")])
def test_b26_b28_b29_b31_on_threads(kind: str, form: str, tmp_path: Path, users: ThreadPoolExecutor) -> None:
    with project(kind, form, tmp_path) as server:
        full(server, users)
        labels(server)
        late(server, "/check")
        waiting(server, users)
        streams(server, "/stream")


@pytest.mark.parametrize(
    ("kind", "form"),
    [("uvicorn-httptools", "protect"), ("uvicorn-h11", "middleware")],
)
def test_b25_b26_b28_b29_b31_on_an_event_loop(
    kind: str, form: str, tmp_path: Path, users: ThreadPoolExecutor
) -> None:
    with project(kind, form, tmp_path) as server:
        full(server, users)
        labels(server)
        late(server, "/check")
        cancelled(server)
        left(server)
        waiting(server, users)
        streams(server, "/astream")
        transactions(server)


def test_b25_below_a_sync_only_middleware_nothing_freezes_and_the_slot_is_held_to_the_end(
    tmp_path: Path,
) -> None:
    """Django bridges to the view through a thread there, and ours runs in that thread."""
    with project("uvicorn-h11", "sync_only", tmp_path) as server:
        leave(server, "/async?s=1")
        assert [server.get("/async").status for _ in range(20)] == [200] * 20
        until(server, idle)
        late(server, "/check")
        labels(server)
        assert server.get("/astream").body.count(b" ") == 4


def full(server: Server, users: ThreadPoolExecutor) -> None:
    """B26, B28: a full project queues and refuses while health checks pass."""
    server.get("/gate?shut")
    served = [users.submit(server.get, "/hold") for _ in range(4)]
    until(server, lambda state: state["slots"] == state["queued"] == 2)
    assert server.get("/health").status == 200
    refused = server.get("/hold")
    assert (refused.status, refused.header("X-Refusal-Reason")) == (503, "queue_full")
    assert json.loads(refused.body)["reason"] == "queue_full"
    assert int(refused.header("Retry-After") or "") >= 1
    server.get("/gate?open")
    assert [future.result().status for future in served] == [200] * 4
    until(server, idle)


def labels(server: Server) -> None:
    """Marks of the URLconf count, and templates are labels."""
    assert server.get("/vital/7/").status == 200
    arrived = until(server, idle)["arrived"]
    assert arrived["/vital/<int:pk>/"] == "critical"
    assert "/vital/7/" not in arrived


def late(server: Server, path: str) -> None:
    """An answer that would come after the deadline is a 504."""
    before = outcome(until(server, idle), "deadline")
    assert expired(server.get(path, budget(300)))
    until(server, lambda state: idle(state) and outcome(state, "deadline") == before + 1)


def cancelled(server: Server) -> None:
    """An async view is stopped at its deadline."""
    before = until(server, idle)
    reply = server.get("/async?s=15", budget(300))
    assert expired(reply)
    assert reply.took < 10
    after = until(server, idle)
    assert noted(after, "cancelled") == noted(before, "cancelled") + 1
    assert outcome(after, "deadline") == outcome(before, "deadline") + 1


def leave(server: Server, path: str) -> None:
    """Send a request and hang up when it has a slot."""
    connection = server.connect()
    connection.request("GET", path)
    until(server, lambda state: state["slots"] == 1)
    connection.close()


def left(server: Server) -> None:
    """B25: the view of a caller who leaves is cancelled and counted as that, and the worker goes on."""
    before = until(server, idle)
    leave(server, "/async?s=15")
    after = until(server, idle)
    assert noted(after, "cancelled") == noted(before, "cancelled") + 1
    assert outcome(after, "client_disconnect") == outcome(before, "client_disconnect") + 1
    assert outcome(after, "error") == outcome(before, "error")
    assert [server.get("/async").status for _ in range(20)] == [200] * 20


def waiting(server: Server, users: ThreadPoolExecutor) -> None:
    """B31: the time in the queue is charged. B29: what expires there never reaches a view."""
    server.get("/gate?shut")
    busy = [users.submit(server.get, "/hold") for _ in range(2)]
    before = noted(until(server, lambda state: state["slots"] == 2), "asleep")
    waited = users.submit(server.get, "/sleep", budget(9000))
    until(server, lambda state: state["queued"] == 1)
    gone = server.get("/async", budget(300))
    assert json.loads(gone.body)["reason"] in {"expired_in_queue", "predicted_late", "queue_timeout"}
    time.sleep(0.3)
    server.get("/gate?open")
    assert [future.result().status for future in busy] == [200] * 2
    assert float(waited.result().body) < 8.75
    assert noted(until(server, idle), "asleep") == before


def streams(server: Server, path: str) -> None:
    """The slot is held to the end of a stream, which is cut at its deadline."""
    with contextlib.closing(server.connect()) as connection:
        connection.request("GET", f"{path}?s=1")
        response = connection.getresponse()
        assert response.status == 200
        assert float(response.read(4)) > 10  # current() is there while the body is made
        until(server, lambda state: state["slots"] == 1)
        assert response.fp is not None  # it has not ended
    before = noted(until(server, idle), "stream ended")
    try:
        reply = server.get(f"{path}?s=0.8", budget(1500))
    except http.client.HTTPException:
        pass  # gone before its head was read
    else:
        assert reply.status == 200
        assert reply.body.count(b" ") < 4
    assert noted(until(server, idle), "stream ended") == before + 1


def transactions(server: Server) -> None:
    """A view whose deadline passes within a transaction leaves none open."""
    assert server.get("/transfer").status == 200
    before = json.loads(server.get("/items").body)["items"]
    assert before == 2
    assert expired(server.get("/transfer?s=0.8", budget(400)))
    ended = until(server, idle)
    assert noted(ended, "transfer ended") == 2
    assert noted(ended, "transfer open") == 0
    # The second write was not sent, and the first one was rolled back with it.
    assert json.loads(server.get("/items").body)["items"] == before
