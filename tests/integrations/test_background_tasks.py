"""Background tasks of Starlette and FastAPI that are promised by a bounded queue of jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from resilient_mw import ServerPolicy
from resilient_mw.admission.jobs_policy import JobsPolicy
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.errors import JobRefused
from resilient_mw.runtime.guard import guard_of
from resilient_mw.runtime.jobs import BoundedJobs
from resilient_mw_integrations.starlette.background import BoundedTasks, bounded_tasks, job_refused

WITHIN = 10.0


class Work:
    """Tasks that stay at work until they are let go."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.done: list[Any] = []

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        assert self.open.wait(WITHIN)
        self.done.append((args, kwargs))


def until(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(1000):
        if condition():
            return
        pause.wait(WITHIN / 1000)
    raise AssertionError("it did not happen")


def starlette_app(jobs: BoundedJobs, work: Work) -> Starlette:
    async def route(request: Request) -> JSONResponse:
        tasks = BoundedTasks(jobs)
        tasks.add_task(work, 1, name="a")
        if "fail" in request.query_params:
            raise LookupError
        return JSONResponse({}, 202, background=tasks)

    app = Starlette(routes=[Route("/", route, methods=["POST"])], lifespan=jobs.lifespan)
    app.add_exception_handler(JobRefused, job_refused)
    return app


def fastapi_app(jobs: BoundedJobs, work: Work) -> FastAPI:
    app = FastAPI(lifespan=jobs.lifespan)
    app.add_exception_handler(JobRefused, job_refused)

    @app.post("/", status_code=202)
    def route(
        fail: str | None = None,
        tasks: BoundedTasks = Depends(bounded_tasks(jobs)),  # noqa: B008  as FastAPI wants it
    ) -> dict[str, str]:
        tasks.add_task(work, 1, name="a")
        if fail is not None:
            raise LookupError
        return {}

    return app


@pytest.fixture(params=[starlette_app, fastapi_app])
def made(request: pytest.FixtureRequest) -> tuple[Any, BoundedJobs, Work]:
    jobs, work = BoundedJobs(JobsPolicy(places=1, workers=1)), Work()
    return request.param(jobs, work), jobs, work


@contextmanager
def serving(app: Any, work: Work) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        try:
            yield client
        finally:
            work.open.set()


def test_a_task_is_refused_before_it_is_promised(made: tuple[Any, BoundedJobs, Work]) -> None:
    app, jobs, work = made
    with serving(app, work) as client:
        assert client.post("/").status_code == 202
        until(lambda: jobs.snapshot().running == 1)
        assert client.post("/").status_code == 202
        refused = client.post("/")
        assert refused.status_code == 503
        assert refused.json()["reason"] == "queue_full"
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["cache-control"] == "no-store"
        assert "x-refusal-reason" not in refused.headers  # the route was at work already
    assert work.done == [((1,), {"name": "a"})] * 2


def test_a_response_that_is_not_sent_gives_the_place_back(
    made: tuple[Any, BoundedJobs, Work], caplog: pytest.LogCaptureFixture
) -> None:
    app, _, work = made
    with serving(app, work) as client:
        for _ in range(3):
            until(lambda: client.post("/?fail=1").status_code == 500)
        until(lambda: client.post("/").status_code == 202)
    assert work.done == [((1,), {"name": "a"})]
    assert caplog.text.count("was withdrawn before it began") == 3


def test_the_slot_of_the_request_does_not_wait_for_the_task(made: tuple[Any, BoundedJobs, Work]) -> None:
    app, jobs, work = made
    policy = ServerPolicy(limit=1, queue=0)
    with serving(ResilienceMiddleware(app, policy), work) as client:
        assert client.post("/").status_code == 202
        until(lambda: jobs.snapshot().running == 1)
        until(lambda: guard_of(policy).controller.slots.in_use == 0)
        assert work.done == []


async def test_tasks_begin_after_the_response() -> None:
    order: list[str] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(0.05)
            order.append("sent")

    async with BoundedJobs() as jobs:
        tasks = BoundedTasks(jobs)
        tasks.add_task(order.append, "task")
        response = JSONResponse({}, background=tasks)
        await response({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert order == ["sent", "task"]


def test_other_errors_are_answered_as_a_full_queue() -> None:
    answer = job_refused(None, LookupError())  # type: ignore[arg-type]
    assert answer.status_code == 503
