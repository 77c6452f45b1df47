"""The Celery application of the tests: its worker runs as `python -m celery -A tests.integrations.celery_app worker`."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from resilient_mw import Dependency, RetryPolicy, current
from resilient_mw.runtime.job_context import current_job, idempotency_key
from resilient_mw_integrations.celery import install

URL = os.environ.get("CELERY_TEST_URL", "memory://")
NOTES = Path(os.environ.get("CELERY_TEST_NOTES", os.devnull))

app = Celery("tests.integrations.celery_app", broker=URL, backend=os.environ.get("CELERY_TEST_BACKEND"))
app.conf.update(
    broker_transport_options={
        "visibility_timeout": int(os.environ.get("CELERY_TEST_VISIBILITY", "300")),
        "unacked_mutex_expire": 2,  # a worker that is killed while it looks for lost tasks holds it
    },
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    task_ignore_result=True,
)
jobs = install(app)


def note(**facts: Any) -> None:
    job = current_job()
    assert job is not None
    with NOTES.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": job.key, "attempt": job.attempt, **facts}) + "\n")


@app.task
def look() -> None:
    note(task="look", left=current().remaining())


@app.task(acks_late=True)
def late() -> None:
    owner = current().retry_owner(("x-retry-owner", "x-retry-attempt"))
    note(task="late", left=current().remaining(), owner=None if owner is None else owner.name)


@app.task(acks_late=True, reject_on_worker_lost=True)
def dies_once(marker: str) -> None:
    first = not Path(marker).exists()
    note(task="dies_once", first=first)
    if first:
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, max_retries=2)
def flaky(self: Any, delay: float) -> None:
    note(task="flaky", left=current().remaining())
    raise self.retry(countdown=delay, exc=LookupError("not yet"))


@app.task(soft_time_limit=1, time_limit=30)
def endless() -> None:
    note(task="endless", left=current().remaining())
    try:
        while True:
            current().check()
    except (TimeoutError, SoftTimeLimitExceeded):
        note(task="endless", left=current().remaining())


def _calls(url: str) -> int:
    import httpx  # the other tests' workers start sooner

    from resilient_mw_integrations.httpx import ResilientTransport

    retry = RetryPolicy(attempts=3, backoff_base=0.0, budget_ratio=None)
    bank = Dependency("bank", match=f"{url.rpartition('/')[0]}/*", retry=retry)
    with httpx.Client(transport=ResilientTransport([bank])) as client:
        return client.get(url).status_code


@app.task(acks_late=True)
def calls(url: str) -> None:
    note(task="calls", status=_calls(url))


@app.task
def calls_once(url: str) -> None:
    note(task="calls_once", status=_calls(url))


@app.task(acks_late=True, reject_on_worker_lost=True)
def pays_and_dies(url: str, marker: str) -> None:
    """Make two calls that change something; the process dies after them, once."""
    import httpx

    from resilient_mw_integrations.httpx import ResilientTransport

    bank = Dependency("bank", match=f"{url}/*", idempotency_key="Idempotency-Key")
    with httpx.Client(transport=ResilientTransport([bank])) as client:
        client.post(f"{url}/charges", json={"order": 7})
        client.post(f"{url}/charges", json={"order": 8})
        client.post(f"{url}/mails", extensions={"idempotency_key": idempotency_key("mail")})
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    note(task="pays_and_dies")
