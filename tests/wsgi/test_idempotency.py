"""Idempotency keys under WSGI: the work happens once, and the response passes as it is made."""

from __future__ import annotations

import gc
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.util import FileWrapper

import pytest

from resilient_mw import ServerPolicy, current
from resilient_mw.core.pages import RefusalPage
from resilient_mw.idempotency import IdempotencyPolicy, State, StoredAnswer, StoreUnavailable
from resilient_mw.runtime.heartbeats import HEARTBEATS
from resilient_mw.stores.faces import ThreadedIdempotencyStore
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware
from tests.wsgi.helpers import TEXT, Chunks, in_thread, outcomes, slots_taken

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

KEY = ("Idempotency-Key", '"k-1"')
CREATED = [
    ("Content-Type", "application/json"),
    ("Location", "/payments/1"),
    ("Set-Cookie", "session=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
    ("Set-Cookie", "other=2"),
    ("Link", "</a>"),
    ("Link", "</b>; rel=\xe9"),
    ("ETag", '"1"'),
    ("Date", "Wed, 21 Oct 2026 07:28:00 GMT"),
    ("Retry-After", "7"),
]
KEPT = [*CREATED[:2], *CREATED[4:7]]


class Payments:
    """An application that counts what it does, and waits where a test wants it to."""

    def __init__(
        self, body: Callable[[], Any] = lambda: [b'{"number":', b"1}"], status: str = "201 Created"
    ) -> None:
        self.body = body
        self.status = status
        self.headers = list(CREATED)
        self.runs = 0
        self.bodies: list[bytes] = []
        self.inside = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self._lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        with self._lock:
            self.runs += 1
        self.bodies.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)))
        self.inside.release()
        assert self.go.wait(20)
        start_response(self.status, list(self.headers))
        return self.body()


def guarded(app: WSGIApplication, store: Any = None, **facts: Any) -> IdempotencyMiddleware:
    policy = IdempotencyPolicy(**{"single_tenant": True, **facts})
    return IdempotencyMiddleware(app, policy, store=MemoryIdempotencyStore() if store is None else store)


def post(app: WSGIApplication, *lines: tuple[str, str], **facts: Any) -> ScriptedWSGI:
    facts = {"method": "POST", "path": "/payments", "body": b"{}", **facts}
    return ScriptedWSGI(app, headers=lines or (KEY,), **facts)


def state_in(middleware: IdempotencyMiddleware) -> State | None:
    records = middleware.records.store.records()
    assert len(records) <= 1
    return records[0].state if records else None


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it has not happened within ten seconds"
        time.sleep(0.01)


class InThread:
    """A request in a thread of its own."""

    def __init__(self, request: ScriptedWSGI) -> None:
        self.request = request
        self.raised: BaseException | None = None
        self._thread = in_thread(self._run)

    def _run(self) -> None:
        try:
            self.request.run()
        except BaseException as error:  # noqa: BLE001  whatever the application raises
            self.raised = error

    def end(self) -> ScriptedWSGI:
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.request


def first_at_work(app: Payments, outer: WSGIApplication) -> InThread:
    app.go.clear()
    first = InThread(post(outer))
    assert app.inside.acquire(timeout=10)
    return first


def stream() -> Iterator[bytes]:
    yield b'{"number":'
    yield b""
    yield b"1}"


def file() -> Any:
    return FileWrapper(io.BytesIO(b'{"number":1}'), 5)


BODIES: dict[str, Callable[[], Any]] = {
    "list": lambda: [b'{"number":1}'],
    "tuple": lambda: (b'{"number":', b"1}"),
    "generator": stream,
    "file": file,
    "iterable": lambda: Chunks([b'{"number":', b"1}"]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
class TestReplay:
    def test_b89_the_second_one_gets_the_first_ones_answer(self, body: Any) -> None:
        """As it was sent, without cookies, and marked; the first one passes line by line and piece by piece."""
        app = Payments(body)
        middleware = guarded(app)
        plain, first, second = post(app).run(), post(middleware).run(), post(middleware).run()
        assert app.runs == 2
        assert (first.calls, first.chunks) == (plain.calls, plain.chunks)
        assert second.status == "201 Created"
        assert second.body == b'{"number":1}'
        assert second.headers == [*KEPT, ("Content-Length", "12"), ("Idempotency-Replayed", "true")]

    def test_b89_inside_admission(self, body: Any) -> None:
        app = Payments(body)
        policy = ServerPolicy(limit=1, queue=0)
        outer = ResilienceMiddleware(guarded(app), policy)
        first, second = post(outer).run(), post(outer).run()
        assert app.runs == 1
        assert first.headers == CREATED
        assert second.header("Idempotency-Replayed") == "true"
        assert first.body == second.body == b'{"number":1}'
        assert slots_taken(policy) == 0


class TestBody:
    def test_pieces_pass_as_they_are_made(self) -> None:
        given: list[int] = []
        chunks = Chunks([b"a", b"b", b"c"], on_chunk=given.append)
        middleware = guarded(Payments(lambda: chunks))
        request = post(middleware).call()
        for number, piece in enumerate([b"a", b"b", b"c"], 1):
            assert request.read(1) == [piece]
            assert given == list(range(1, number + 1))
            assert state_in(middleware) is State.RUNNING
        assert request.read(1) == []
        assert state_in(middleware) is State.COMPLETED
        assert chunks.closed == 0
        request.close()
        assert chunks.closed == 1

    def test_the_piece_that_completes_the_length_waits_for_the_record(self) -> None:
        app = Payments(stream)
        app.headers = [*TEXT, ("Content-Length", "12")]
        middleware = guarded(app)
        request = post(middleware).call()
        assert request.read(1) == [b'{"number":']
        assert state_in(middleware) is State.RUNNING
        request.read(2)
        assert state_in(middleware) is State.COMPLETED
        request.read()
        request.close()

    def test_write(self) -> None:
        def app(environ: Any, start_response: Any) -> Any:
            runs.append(1)
            write = start_response("200 OK", list(TEXT))
            write(b"by ")
            write(b"hand, ")
            return [b"and returned"]

        runs: list[int] = []
        middleware = guarded(app)
        for _ in range(2):
            assert post(middleware).run().body == b"by hand, and returned"
        assert runs == [1]

    def test_a_head_that_is_replaced(self) -> None:
        def app(environ: Any, start_response: Any) -> Any:
            start_response("200 OK", list(TEXT))
            try:
                raise LookupError("late")
            except LookupError:
                import sys

                start_response("404 Not Found", list(TEXT), sys.exc_info())
            return [b"none"]

        middleware = guarded(app)
        assert [post(middleware).run().status for _ in range(2)] == ["404 Not Found"] * 2

    def test_a_body_that_is_given_up_leaves_unknown(self) -> None:
        chunks = Chunks([b"a", b"b"])
        middleware = guarded(Payments(lambda: chunks))
        request = post(middleware).call()
        request.read(1)
        request.close()
        assert chunks.closed == 1
        assert state_in(middleware) is State.UNKNOWN
        second = post(middleware).run()
        assert second.status.startswith("409")
        assert b"idempotency_unknown" in second.body

    def test_a_body_that_fails_leaves_unknown(self) -> None:
        middleware = guarded(Payments(lambda: Chunks([b"a", b"b"], fail_at=1)))
        with pytest.raises(LookupError):
            post(middleware).run()
        assert state_in(middleware) is State.UNKNOWN

    def test_closing_that_fails_changes_nothing(self) -> None:
        middleware = guarded(Payments(lambda: Chunks([b"a"], fail_close=True)))
        with pytest.raises(LookupError):
            post(middleware).run()
        assert state_in(middleware) is State.COMPLETED

    def test_a_body_that_is_dropped_has_no_heartbeat(self) -> None:
        app = Payments(lambda: Chunks([b"a", b"b"]))
        middleware = guarded(app, lease=0.2, heartbeat=0.05)
        middleware.app = app
        request = post(middleware, validate=False).call()
        request.read(1)
        request.abandon()
        gc.collect()
        until(lambda: state_in(middleware) is State.UNKNOWN)

    def test_no_content(self) -> None:
        app = Payments(list, "204 No Content")
        app.headers = [("ETag", '"1"')]
        middleware = guarded(app)
        post(middleware).run()
        second = post(middleware).run()
        assert (second.status, second.body) == ("204 No Content", b"")
        assert second.headers == [("ETag", '"1"'), ("Idempotency-Replayed", "true")]

    def test_no_content_that_nobody_iterates(self) -> None:
        app = Payments(lambda: Chunks([]), "204 No Content")
        app.headers = []
        middleware = guarded(app)
        post(middleware).call().close()
        assert state_in(middleware) is State.COMPLETED

    def test_an_answer_that_is_too_large(self) -> None:
        middleware = guarded(Payments(stream), max_answer=5)
        assert post(middleware).run().body == b'{"number":1}'
        second = post(middleware).run()
        assert second.status.startswith("409")
        assert b"idempotency_body_not_kept" in second.body


class Terminated(io.BytesIO):
    """A stream whose end the server knows."""


class TestInput:
    @pytest.mark.parametrize("buffered", [0, 10, 1 << 20])
    @pytest.mark.parametrize("size", [0, 1, 1024, 200_000])
    @pytest.mark.parametrize("how", ["all", "pieces", "lines", "iterator", "never"])
    def test_b02_the_application_reads_what_was_sent(self, how: str, size: int, buffered: int) -> None:
        sent = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        seen: list[bytes] = []

        def app(environ: Any, start_response: Any) -> Any:
            stream = environ["wsgi.input"]
            if how == "all":
                seen.append(stream.read(size))
            elif how == "pieces":
                seen.extend(iter(lambda: stream.read(7_001), b""))
            elif how == "lines":
                seen.extend(stream.readlines(-1))
            elif how == "iterator":
                seen.extend(stream)
            start_response("200 OK", list(TEXT))
            return [b"done"]

        middleware = guarded(app, buffer_request=buffered)
        assert post(middleware, body=sent).run().body == b"done"
        assert b"".join(seen) == (b"" if how == "never" else sent)
        second = post(middleware, body=sent).run()
        if how != "never" or size <= buffered:
            assert second.header("Idempotency-Replayed") == "true"
            assert post(middleware, body=sent + b"y").run().status.startswith("422")

    def test_b02_a_chunked_body(self) -> None:
        """Without a length, where the server says that it knows the end."""
        sent = [b"x" * 7] * 5_000
        app_seen: list[bytes] = []

        def app(environ: Any, start_response: Any) -> Any:
            app_seen.append(b"".join(iter(lambda: environ["wsgi.input"].read(100), b"")))
            start_response("200 OK", list(TEXT))
            return [b"done"]

        middleware = guarded(app, buffer_request=100)
        extra: dict[str, Any] = {
            "CONTENT_LENGTH": "",
            "HTTP_TRANSFER_ENCODING": "chunked",
            "wsgi.input_terminated": True,
        }
        for _ in range(2):
            request = post(middleware, extra={**extra, "wsgi.input": Terminated(b"".join(sent))}).run()
        assert app_seen == [b"".join(sent)]
        assert request.header("Idempotency-Replayed") == "true"

    def test_a_body_that_ends_too_early_runs_nothing(self) -> None:
        app = Payments()
        middleware = guarded(app)
        request = post(middleware, extra={"CONTENT_LENGTH": "10"}).run()
        assert request.status == "400 Bad Request"
        assert app.runs == 0
        assert state_in(middleware) is None

    def test_a_request_without_a_key_keeps_its_input(self) -> None:
        given: list[Any] = []

        def app(environ: Any, start_response: Any) -> Any:
            given.append(environ["wsgi.input"])
            start_response("200 OK", list(TEXT))
            return [b""]

        middleware = guarded(app)
        middleware.app = app
        request = post(middleware, ("X-A", "1"), validate=False)
        request.run()
        assert given == [request.environ["wsgi.input"]]
        assert isinstance(given[0], io.BytesIO)


class TestTogether:
    def test_b85_sixty_four_threads_run_once(self) -> None:
        app = Payments()
        middleware = guarded(app, max_wait=60.0)
        first = first_at_work(app, middleware)
        repeats = [InThread(post(middleware)) for _ in range(63)]
        until(lambda: middleware.joins.waiting == 63)
        app.go.set()
        assert first.end().header("Idempotency-Replayed") is None
        assert {each.end().header("Idempotency-Replayed") for each in repeats} == {"true"}
        assert {each.request.body for each in repeats} == {b'{"number":1}'}
        assert app.runs == 1
        assert middleware.joins.waiting == 0
        assert middleware.desk.figures.outcomes() == {"first": 1, "joined": 63}

    def test_b85_those_who_wait_hold_no_slot(self) -> None:
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = first_at_work(app, outer)
        repeats = []
        for number in range(1, 9):
            repeats.append(InThread(post(outer)))
            until(lambda number=number: middleware.joins.waiting == number and slots_taken(policy) == 1)  # type: ignore[misc]
        other = InThread(post(outer, method="PUT"))
        assert app.inside.acquire(timeout=10)
        app.go.set()
        first.end()
        assert other.end().status == "201 Created"
        assert {each.end().status for each in repeats} == {"201 Created"}
        assert slots_taken(policy) == 0
        assert outcomes(policy) == {"completed": 10}

    def test_b86_who_has_to_run_after_all_takes_a_slot_first(self) -> None:
        def body() -> list[bytes]:
            assert slots_taken(policy) == 1
            if app.runs == 1:
                raise RuntimeError("no")
            return [b"second"]

        app = Payments(body)
        app.status = "201 Created"
        policy = ServerPolicy(limit=2, queue=10)
        middleware = guarded(app, on_unknown="retry")
        outer = ResilienceMiddleware(middleware, policy)
        first = first_at_work(app, outer)
        repeat = InThread(post(outer))
        until(lambda: middleware.joins.waiting == 1)
        app.go.set()
        first.end()
        assert isinstance(first.raised, RuntimeError)
        assert repeat.end().body == b"second"
        assert app.runs == 2
        assert slots_taken(policy) == 0
        assert outcomes(policy) == {"error": 1, "completed": 1, "lent": 1}

    def test_no_place_to_wait(self) -> None:
        app = Payments()
        middleware = guarded(app, max_waiting=0)
        first = first_at_work(app, middleware)
        second = post(middleware).run()
        assert second.status.startswith("409")
        assert 1 <= int(second.header("Retry-After") or 0) <= 30
        app.go.set()
        first.end()

    def test_the_deadline_covers_the_waiting(self) -> None:
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0, trusted_peers=["127.0.0.1"])
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = first_at_work(app, outer)
        second = post(outer, KEY, ("X-Request-Timeout-Ms", "200")).run()
        assert second.status[:3] in {"409", "504"}
        app.go.set()
        assert first.end().status == "201 Created"

    def test_a_caller_who_leaves_while_waiting_leaves_nothing(self) -> None:
        """Where the server lets one know."""
        app = Payments()
        policy = ServerPolicy(limit=2, queue=0)
        middleware = guarded(app)
        outer = ResilienceMiddleware(middleware, policy)
        first = first_at_work(app, outer)
        left = threading.Event()
        second = InThread(post(outer, extra={"waitress.client_disconnected": left.is_set}))
        until(lambda: middleware.joins.waiting == 1)
        left.set()
        assert second.end().status == "499 Client Closed Request"
        assert middleware.joins.waiting == 0
        app.go.set()
        first.end()
        assert (app.runs, slots_taken(policy)) == (1, 0)

    def test_another_process_is_looked_at(self, tmp_path: Path) -> None:
        """Two middlewares over one file: nobody wakes who waits at the other one."""
        app = Payments()
        one, other = (
            guarded(app, SQLiteIdempotencyStore(tmp_path / "keys.db", durable=False)) for _ in range(2)
        )
        first = first_at_work(app, one)
        second = InThread(post(other))
        until(lambda: other.joins.waiting == 1)
        app.go.set()
        first.end()
        assert second.end().header("Idempotency-Replayed") == "true"
        assert app.runs == 1
        one.records.store.close()
        other.records.store.close()


class TestHeartbeats:
    def test_b86_a_long_handler_keeps_its_key(self) -> None:
        """Three leases long. One thread renews for all."""
        app = Payments()
        middleware = guarded(app, lease=0.4, heartbeat=0.05, on_unknown="retry", wait="conflict")
        first = first_at_work(app, middleware)
        others = [InThread(post(middleware, ("Idempotency-Key", f"other-{number}"))) for number in range(5)]
        for _ in others:
            assert app.inside.acquire(timeout=10)
        for _ in range(12):
            time.sleep(0.1)
            assert post(middleware).run().status[:3] == "409"
        assert sum(thread.name == "resilient_mw heartbeats" for thread in threading.enumerate()) == 1
        app.go.set()
        first.end()
        for other in others:
            other.end()
        assert app.runs == 6

    def test_work_that_somebody_else_has_is_told(self) -> None:
        """A thread cannot be stopped: its callbacks are called, `check()` raises, and its answer is not recorded."""
        told: list[Any] = []

        def app(environ: Any, start_response: Any) -> Any:
            current().on_cancel(told.append)
            inside.set()
            until(lambda: current().cancelled)
            start_response("200 OK", list(TEXT))
            return [b"done"]

        inside = threading.Event()
        middleware = guarded(app, lease=0.5, heartbeat=0.05)
        outer = ResilienceMiddleware(middleware, ServerPolicy())
        first = InThread(post(outer))
        assert inside.wait(10)
        store = middleware.records.store
        assert store.release(store.records()[0].record, running=True)
        first.end()
        assert len(told) == 1
        assert store.records() == []
        assert middleware.desk.figures.outcomes() == {"lost": 1}

    def test_a_forked_child_has_a_thread_of_its_own(self) -> None:
        middleware = guarded(Payments())
        post(middleware).run()
        assert HEARTBEATS.running
        child = os.fork()
        if child == 0:
            try:
                fresh = not HEARTBEATS.running
                post(middleware, ("Idempotency-Key", "k-2")).run()
                os._exit(0 if fresh and HEARTBEATS.running else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0


class Away(MemoryIdempotencyStore):
    """A store that is away for some questions."""

    def __init__(self, *questions: str) -> None:
        super().__init__()
        self.questions = set(questions)

    def begin(self, claim: Any, *, timeout: float = 5.0) -> Any:
        if "begin" in self.questions:
            raise StoreUnavailable("away")
        if "interrupt" in self.questions:
            super().begin(claim, timeout=timeout)
            raise KeyboardInterrupt
        return super().begin(claim, timeout=timeout)

    def complete(self, *args: Any, **facts: Any) -> bool:
        if "complete" in self.questions:
            raise OSError("a driver's own error")
        return super().complete(*args, **facts)


class TestStore:
    def test_away(self) -> None:
        app = Payments()
        closed = post(guarded(app, Away("begin"))).run()
        assert (closed.status[:3], closed.header("X-Refusal-Reason")) == (
            "503",
            "idempotency_store_unavailable",
        )
        assert closed.header("Retry-After") == "5"
        assert app.runs == 0
        assert post(guarded(app, Away("begin"), store_down="open")).run().status == "201 Created"
        assert app.runs == 1

    def test_an_answer_that_cannot_be_recorded_is_given_all_the_same(self) -> None:
        middleware = guarded(Payments(), Away("complete"))
        assert post(middleware).run().status == "201 Created"
        assert state_in(middleware) is State.RUNNING
        assert middleware.desk.figures.outcomes() == {"unrecorded": 1}

    def test_a_thread_that_is_ended_while_it_asks_leaves_nothing(self) -> None:
        app = Payments()
        middleware = guarded(app, Away("interrupt"))
        with pytest.raises(KeyboardInterrupt):
            post(middleware).run()
        assert state_in(middleware) is None
        assert app.runs == 0

    def test_one_for_event_loops_is_none(self) -> None:
        with pytest.raises(ValueError, match="must be one that blocks"):
            guarded(Payments(), ThreadedIdempotencyStore(MemoryIdempotencyStore()))


@pytest.mark.parametrize(
    ("verdict", "status", "runs"),
    [
        ("not_done", "201", 2),
        ("unknown", "409", 1),
        (None, "409", 1),
        (StoredAnswer(200, (), b"{}"), "200", 1),
    ],
)
def test_the_status_function_settles_the_unknown(verdict: Any, status: str, runs: int) -> None:
    def ask(_: Any) -> Any:
        if verdict is None:
            raise RuntimeError("the ledger is away")
        return verdict

    app = Payments(stream)
    middleware = guarded(app, on_unknown=ask)
    request = post(middleware).call()
    request.read(1)
    request.close()
    assert state_in(middleware) is State.UNKNOWN
    answer = post(middleware, validate=status != "200").run()
    assert answer.status.startswith(status)
    assert app.runs == runs
    assert state_in(middleware) is (State.UNKNOWN if status == "409" else State.COMPLETED)
    assert not any(not beat.stopped for beat in HEARTBEATS._beats)


def test_an_async_status_function_does_not_know() -> None:
    async def ask(_: Any) -> Any:
        return "not_done"

    middleware = guarded(Payments(stream), on_unknown=ask)
    request = post(middleware).call()
    request.read(1)
    request.close()
    assert post(middleware).run().status.startswith("409")


class TestRefusals:
    def test_pages_of_the_origins_of_admission_can_read_them(self) -> None:
        outer = ResilienceMiddleware(
            guarded(Payments(), use="required"), ServerPolicy(cors_origins=["https://shop.example"])
        )
        answer = post(outer, ("Origin", "https://shop.example")).run()
        assert answer.header("Access-Control-Allow-Origin") == "https://shop.example"
        assert answer.status.startswith("400")

    def test_the_application_draws_them(self) -> None:
        def page(refused: Any) -> RefusalPage:
            return RefusalPage(f"<h1>{refused.reason}</h1>", "text/html")

        outer = ResilienceMiddleware(guarded(Payments(), use="required"), ServerPolicy(refusal_page=page))
        assert post(outer, ("X-A", "1")).run().body == b"<h1>idempotency_key_missing</h1>"
