"""Idempotency keys of the calls that a job makes: those of its record, whoever delivers it, and however often."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from resilient_mw.calls.config import RetryPolicy
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.key import IdempotencyKeys, derived_key
from resilient_mw.runtime.jobs import RunningJob, current_job, idempotency_key
from resilient_mw.runtime.running_job import RUNNING_JOB
from resilient_mw_integrations.httpx import ResilientTransport
from tests.docs.pages import ROOT
from tests.integrations.client_wires import client, every_client
from tests.integrations.test_httpx_deadlines import names
from tests.transport.tcp_server import Connection, RawServer

__all__ = ["client", "names"]

QUICK = RetryPolicy(attempts=2, backoff_base=0.01, backoff_cap=0.02)


def answers(connection: Connection) -> None:
    while connection.request():
        connection.answer()


def busy_once(connection: Connection) -> None:
    while connection.request():
        connection.answer(503 if len(connection.server.requests) == 1 else 200)


def bank(url: str, keys: Any = "Idempotency-Key") -> Dependency:
    return Dependency("bank", match=f"{url}/*", retry=QUICK, idempotency_key=keys)


@contextmanager
def delivered(key: str = "order-7", task: str | None = "pay", attempt: int = 1) -> Iterator[RunningJob]:
    """Run as a delivery of a job does."""
    job = RunningJob(id="job", key=key, task=task, attempt=attempt)
    token = RUNNING_JOB.set(job)
    try:
        yield job
    finally:
        RUNNING_JOB.reset(token)


def keys_of(server: RawServer) -> list[str]:
    """Return the keys that came in, and forget the requests."""
    found = [key for each in server.requests for key in each.all("idempotency-key")]
    assert len(found) == len(server.requests)
    server.requests.clear()
    return found


# -- each client -------------------------------------------------------------------------------------------------------


@every_client
def test_every_attempt_of_a_call_has_one_key(client: Any) -> None:
    with RawServer(busy_once) as server:
        client.open([bank(server.url)])
        assert client.request("POST", server.url + "/charges", data=b"1").status == 200
        first, again = keys_of(server)
        assert first == again
        assert client.request("POST", server.url + "/charges", data=b"1").status == 200
        (other, *_) = keys_of(server)
        assert other != first
        assert UUID(first.strip('"')).version == 7


@every_client
def test_a_second_delivery_calls_with_the_same_keys(client: Any) -> None:
    with RawServer(answers) as server:
        client.open([bank(server.url)])
        seen = []
        for attempt in (1, 2):
            with delivered(attempt=attempt):
                client.request("POST", server.url + "/charges", data=b"1")
                client.request("POST", server.url + "/charges", data=b"2")
                client.request("PATCH", server.url + "/charges", data=b"2")
                client.request("POST", server.url + "/mails?to=a", data=b"")
            seen.append(keys_of(server))
        assert seen[0] == seen[1]
        assert len(set(seen[0])) == 4
        with delivered("order-8"):
            client.request("POST", server.url + "/charges", data=b"1")
        with delivered(task="mail"):
            client.request("POST", server.url + "/charges", data=b"1")
        assert not set(keys_of(server)) & set(seen[0])


@every_client
def test_what_the_caller_says_goes_before_the_job(client: Any) -> None:
    with RawServer(answers) as server, delivered():
        client.open([bank(server.url)])
        client.request("POST", server.url + "/charges", data=b"1", headers={"Idempotency-Key": '"mine"'})
        assert keys_of(server) == ['"mine"']


def test_a_named_key_does_not_depend_on_the_order_of_calls() -> None:
    with RawServer(answers) as server:
        dependency = bank(server.url)
        with httpx.Client(transport=ResilientTransport([dependency])) as session:
            seen = []
            for order in ((7, 8), (8, 7)):
                with delivered():
                    for each in order:
                        named = {"idempotency_key": idempotency_key(f"charge {each}")}
                        session.post(server.url + "/charges", content=str(each), extensions=named)
                seen.append(dict(zip(order, keys_of(server), strict=True)))
        assert seen[0] == seen[1]
        assert seen[0][7] != seen[0][8]


@pytest.mark.parametrize(("version", "form"), [(4, 4), (7, 8)])
def test_the_form_of_a_derived_key(version: Any, form: int) -> None:
    with RawServer(answers) as server, delivered():
        dependency = bank(server.url, IdempotencyKeys(version=version))
        with httpx.Client(transport=ResilientTransport([dependency])) as session:
            session.post(server.url + "/charges")
        (key,) = keys_of(server)
        made = UUID(key.strip('"'))
        assert (made.version, made.variant) == (form, "specified in RFC 4122")
        assert UUID(idempotency_key("charge", version=version)).version == form


# -- the job -----------------------------------------------------------------------------------------------------------


def test_no_two_lists_of_texts_have_one_key() -> None:
    lists = [
        ("a", "bc"),
        ("ab", "c"),
        ("abc",),
        ("a", "b", "c"),
        ("abc", ""),
        ("", "abc"),
        ("1:a",),
        ("a", "1:"),
    ]
    assert len({derived_key(7, *each) for each in lists}) == len(lists)


def test_calls_from_many_threads_get_keys_of_their_own() -> None:
    with delivered() as job:
        go = threading.Barrier(8)

        def take(_: int) -> list[str]:
            go.wait(10)
            return [job.next_call(7, "bank", "POST", "/charges") for _ in range(200)]

        with ThreadPoolExecutor(8) as pool:
            found = [key for keys in pool.map(take, range(8)) for key in keys]
    assert len(set(found)) == 1600


def test_a_name_outside_of_jobs_is_an_error() -> None:
    assert current_job() is None
    with pytest.raises(LookupError, match="no job runs here"):
        idempotency_key("charge")
    with delivered(), pytest.raises(ValueError, match="name='' is not allowed"):
        idempotency_key("")


# -- a real kill -------------------------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys, threading
import httpx
from resilient_mw import Dependency
from resilient_mw.runtime.jobs_threads import JobsPolicy, ThreadedJobs, current_job, idempotency_key
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore
from resilient_mw_integrations.httpx import ResilientTransport

path, url = sys.argv[1:]
bank = Dependency("bank", match=url + "/*", idempotency_key="Idempotency-Key")
client = httpx.Client(transport=ResilientTransport([bank]))
jobs = ThreadedJobs(JobsPolicy(lease=0.5, grace=0.5, poll=0.05), store=SQLiteJobStore(path))
done = threading.Event()

@jobs.task("pay")
def pay(order):
    client.post(url + "/charges", json={"order": order})
    client.post(url + "/charges", json={"order": order, "tip": True})
    client.post(url + "/mails", extensions={"idempotency_key": idempotency_key("mail")})
    if current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    done.set()

jobs.put_durable(pay, 7)  # its key is made by the queue, and kept in the file
sys.exit(0 if done.wait(60) else 1)
"""
HEIR = WORKER.replace("jobs.put_durable(pay, 7)", "jobs.start()")


def test_a_worker_that_is_killed_leaves_the_keys_of_its_calls_to_the_next(tmp_path: Path) -> None:
    def run(source: str, url: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", source, str(tmp_path / "jobs.db"), url]
        path = f"{ROOT}:{ROOT / 'integrations'}"
        return subprocess.run(
            command, cwd=ROOT, env={"PYTHONPATH": path}, timeout=120, capture_output=True, check=False
        )

    with RawServer(answers) as server:
        killed = run(WORKER, server.url)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        first = keys_of(server)
        assert len(set(first)) == 3
        heir = run(HEIR, server.url)
        assert heir.returncode == 0, heir.stderr
        assert keys_of(server) == first
