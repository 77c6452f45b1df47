"""Deadlines, keys and retries of Celery tasks: with real workers over Redis, and in process."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.task import Context
from celery.app.trace import trace_task

from resilient_mw import DeadlineExceeded, budget, current
from resilient_mw.core import ports
from resilient_mw.core.jobs_snapshot import JobsSnapshot
from resilient_mw.runtime.job_context import current_job
from resilient_mw_integrations.celery import ResilientTask, install, task_options
from tests.integrations.redis_server import RedisServer, redis_server
from tests.transport.tcp_server import Connection, RawServer

__all__ = ["redis_server"]

ROOT = Path(__file__).parents[2]
WITHIN = 90.0


def until(condition: Callable[[], object], what: Callable[[], object] = lambda: "") -> None:
    end = time.monotonic() + WITHIN
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.02)


class Shop:
    """An application over a Redis server of its own, with workers in processes of their own."""

    def __init__(self, server: RedisServer, folder: Path) -> None:
        self.url = f"{server.url}/0"
        self.notes_path = folder / "notes"
        self.log = folder / "log"
        self.app = Celery("tests.integrations.celery_app", broker=self.url)
        self.app.conf.task_ignore_result = True
        install(self.app)

    def send(self, name: str, *args: Any, **options: Any) -> str:
        return str(self.app.send_task(f"tests.integrations.celery_app.{name}", args, **options).id)

    def notes(self) -> list[dict[str, Any]]:
        if not self.notes_path.exists():
            return []
        return [json.loads(line) for line in self.notes_path.read_text(encoding="utf-8").splitlines()]

    def noted(self, task: str, number: int = 1) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            return [each for each in self.notes() if each["task"] == task]

        until(
            lambda: len(found()) >= number, lambda: f"{self.notes()} {self.log.read_text(encoding='utf-8')}"
        )
        return found()

    @contextmanager
    def worker(self, *options: str, visibility: int = 300) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "celery", "-A", "tests.integrations.celery_app", "worker", "-c", "1"]
        command += ["-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat", *options]
        more = {
            "CELERY_TEST_URL": self.url,
            "CELERY_TEST_VISIBILITY": str(visibility),
            "CELERY_TEST_NOTES": str(self.notes_path),
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "integrations"))),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **more}, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # its own session: it and its children
            except ProcessLookupError:
                pass
            process.wait(10)


@pytest.fixture
def shop(redis_server: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(redis_server, tmp_path)
    yield made
    made.app.close()


class Failing(http.server.BaseHTTPRequestHandler):
    """Answers 503, and counts."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def failing_peer() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Failing,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_a_prefork_worker_knows_deadlines_keys_and_who_retries(shop: Shop, tmp_path: Path) -> None:
    shop.send("look", expires=0.001)  # before the worker is there
    time.sleep(0.05)
    with failing_peer() as (url, asked), shop.worker("--pool", "prefork"):
        plain = shop.send("look")
        with budget(500.0):
            shop.send("look", **task_options(key="the key", carry_budget=True))
        shop.send("late", expires=600.0)
        shop.send("calls", f"{url}/late")
        shop.send("calls_once", f"{url}/once")
        shop.send("flaky", 0.05, expires=1000.0, **task_options(key="flaky"))
        shop.send("endless")
        shop.send("dies_once", str(tmp_path / "marker"), **task_options(key="dies"))

        first, second = shop.noted("look", 2)
        assert (first["key"], first["attempt"], first["left"]) == (plain, 1, float("inf"))
        assert second["key"] == "the key"
        assert 400.0 < second["left"] <= 500.0
        (late,) = shop.noted("late")
        assert (late["left"] <= 300.0, late["owner"]) == (True, "celery:tests.integrations.celery_app.late")
        # A task that may be redelivered is the retry owner; another one is not.
        shop.noted("calls")
        shop.noted("calls_once")
        assert (asked.count("/late"), asked.count("/once")) == (1, 3)
        flaky = shop.noted("flaky", 3)
        assert [(each["key"], each["attempt"]) for each in flaky] == [("flaky", n) for n in range(1, 4)]
        assert all(each["left"] <= 1000.0 for each in flaky)
        began, over = shop.noted("endless", 2)
        assert 0.0 < began["left"] <= 1.0
        assert over["left"] < 0.5
        # Its process is killed, and the message comes back to the next one.
        dies = shop.noted("dies_once", 2)
        assert [(each["key"], each["first"]) for each in dies] == [("dies", True), ("dies", False)]
    assert len([each for each in shop.notes() if each["task"] == "look"]) == 2  # the expired one never ran


def test_a_killed_worker_leaves_its_task_to_the_next_with_the_same_key(shop: Shop, tmp_path: Path) -> None:
    shop.send("dies_once", str(tmp_path / "marker"), **task_options(key="order-7"))
    with shop.worker("--pool", "threads", visibility=1) as worker:
        shop.noted("dies_once")
        assert worker.wait(10) == -signal.SIGKILL
    # A worker looks for lost tasks at its start, and not again for 100 s: by then this one has to be one, and its mutex gone.
    time.sleep(3.0)
    with shop.worker("--pool", "threads", visibility=1):
        found = shop.noted("dies_once", 2)
    assert [(each["key"], each["first"]) for each in found] == [("order-7", True), ("order-7", False)]


def test_a_task_that_is_delivered_again_makes_its_calls_with_the_same_keys(
    shop: Shop, tmp_path: Path
) -> None:
    def bank(connection: Connection) -> None:
        while connection.request():
            connection.answer()

    with RawServer(bank) as server:
        shop.send("pays_and_dies", server.url, str(tmp_path / "marker"))
        shop.send("pays_and_dies", server.url, str(tmp_path / "marker"))
        with shop.worker("--pool", "prefork"):
            shop.noted("pays_and_dies", 2)
        sent = Counter((each.path, *each.all("idempotency-key")) for each in server.requests)
    # One of the two tasks was delivered twice.
    assert sorted(sent.values()) == [1, 1, 1, 2, 2, 2]
    assert len({key for _, key in sent}) == 6


# -- in process --------------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("in-process", broker="memory://", backend="cache+memory://")
    install(made)
    yield made
    made.close()


def run(task: Any, *args: Any, **request: Any) -> Any:
    """Trace a task as a worker does; return its result."""
    request = {"id": "id-1", "delivery_info": {}, "hostname": "here", "is_eager": False, **request}
    return trace_task(task, request["id"], args, {}, request, app=task.app)


def figures(app: Celery) -> JobsSnapshot:
    found: JobsSnapshot = app.resilient_mw_jobs.snapshot()
    return found


def ended(app: Celery) -> dict[str, int]:
    return dict(figures(app).classes[0].ended)


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_an_expired_task_is_not_begun_and_is_revoked(app: Celery) -> None:
    ran: list[int] = []

    @app.task
    def work() -> None:
        ran.append(1)

    run(work, expires=in_seconds(-1))
    assert ran == []
    assert app.AsyncResult("id-1").state == "REVOKED"
    assert ended(app) == {"expired": 1}
    assert figures(app).running == 0


def test_the_context_is_that_of_the_task_and_is_gone_afterwards(app: Celery) -> None:
    seen: list[Any] = []

    @app.task
    def work() -> None:
        seen.append((current().remaining(), current_job()))

    before = current()
    run(work, expires=in_seconds(60))
    run(work, **{"idempotency-key": "k", "retries": 2, "timelimit": [20, 10]})
    (left, job), (limited, again) = seen
    assert 50.0 < left <= 60.0
    assert job.key == "id-1"
    assert 5.0 < limited <= 10.0
    assert (again.key, again.attempt) == ("k", 3)
    assert current() is before
    assert current_job() is None
    assert ended(app) == {"completed": 2}


def test_the_limits_of_a_message_are_read_where_every_celery_has_them(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Celery 5.5 knows them as a pair only.
    for name in ("time_limit", "soft_time_limit"):
        monkeypatch.delattr(Context, name, raising=False)
    monkeypatch.setattr(Context, "update", lambda self, *args, **more: self.__dict__.update(*args, **more))
    left: list[float] = []

    @app.task(soft_time_limit=100)
    def work() -> None:
        left.append(current().remaining())

    for pair in ([20, 10], [20, None], None):
        run(work, timelimit=pair)
    assert [round(each, -1) for each in left] == [10, 20, 100]


def test_a_task_that_is_done_at_once_keeps_the_deadline_of_its_caller(app: Celery) -> None:
    left: list[float] = []

    @app.task
    def work() -> None:
        left.append(current().remaining())

    with budget(60.0):
        work.apply()
        work()
    assert [0.0 < each <= 60.0 for each in left] == [True, True]


def test_a_task_that_raises_whatever_leaves_no_context(app: Celery) -> None:
    @app.task
    def fails() -> None:
        raise LookupError

    @app.task
    def stops() -> None:
        raise SystemExit(3)

    run(fails)
    with pytest.raises(SystemExit):
        run(stops)
    assert current_job() is None
    assert figures(app).running == 0
    assert ended(app) == {"error": 2}


def test_a_retry_that_cannot_finish_before_the_task_expires_is_not_made(app: Celery) -> None:
    @app.task(bind=True, typical_run=30.0)
    def work(self: Any) -> None:
        raise self.retry(countdown=40, exc=LookupError("no time"))

    @app.task(bind=True)
    def nameless(self: Any) -> None:
        raise self.retry(countdown=100)

    @app.task(autoretry_for=(OSError,), retry_kwargs={"countdown": 100})
    def automatic() -> None:
        raise OSError("again")

    for task, kind in ((work, LookupError), (nameless, DeadlineExceeded), (automatic, OSError)):
        assert isinstance(run(task, expires=in_seconds(60)).retval.exception, kind)
    assert ended(app)["retry_refused"] == 3
    assert "retry" not in ended(app)
    run(work, expires=in_seconds(600))
    assert ended(app)["retry"] == 1


def sent(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the headers of messages that are published from now on."""
    found: list[dict[str, Any]] = []

    def publish(self: Any, body: Any, headers: Any = None, **_: Any) -> None:
        found.append(headers)

    monkeypatch.setattr("kombu.messaging.Producer.publish", publish)
    return found


def test_an_application_may_carry_every_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("carries", broker="memory://", set_as_current=True)
    install(app, carry_budget=True)
    found = sent(app, monkeypatch)
    with budget(60.0):
        app.send_task("work")
        app.send_task("work", expires=10)
    app.send_task("work")
    lefts = [
        None
        if each["expires"] is None
        else (datetime.fromisoformat(each["expires"]) - datetime.now(UTC)).total_seconds()
        for each in found
    ]
    assert lefts[0] == pytest.approx(60.0, abs=20.0)
    assert lefts[1] == pytest.approx(10.0, abs=9.0)
    assert lefts[2] is None
    assert 0 < int(found[0]["x-request-timeout-ms"]) <= 60_000
    assert figures(app).classes[0].deferred == 3
    app.close()


def test_nothing_is_carried_unless_somebody_wants_it(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    app.set_current()
    found = sent(app, monkeypatch)
    with budget(60.0):
        app.send_task("work", task_id="id-9")
    assert found[0]["expires"] is None
    assert found[0]["idempotency-key"] == "id-9"
    assert "x-request-timeout-ms" not in found[0]


def test_no_budget_left_publishes_nothing() -> None:
    with budget(0.0), pytest.raises(DeadlineExceeded):
        task_options(carry_budget=True)
    assert task_options(carry_budget=True) == {"headers": {}}
    assert task_options(key="k") == {"headers": {"idempotency-key": "k"}}


def test_installing_twice_is_installing_once(app: Celery) -> None:
    assert install(app) is app.resilient_mw_jobs
    assert issubclass(app.Task, ResilientTask)
    assert "celery:in-process" in {each.jobs for each in ports.jobs_snapshots()}
    with pytest.raises(ValueError, match="carry_budget"):
        install(Celery("other"), carry_budget=1)  # type: ignore[arg-type]
