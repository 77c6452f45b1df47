"""Background tasks of Starlette and FastAPI with back-pressure: refused before they are promised.

Starlette runs any number of them, each in the slot of its request. Here a task gets a place in a `BoundedJobs` when it is
added, or `JobRefused` is raised while the route can still say so; it begins when the response has been sent, and runs
under the queue's own limit.

Example:
    jobs = BoundedJobs(JobsPolicy(places=100, workers=4))
    app = FastAPI(lifespan=jobs.lifespan)
    app.add_exception_handler(JobRefused, job_refused)

    @app.post("/signup", status_code=202)
    async def signup(address: str, tasks: Annotated[BoundedTasks, Depends(bounded_tasks(jobs))]):
        tasks.add_task(send_mail, address)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any
from weakref import finalize

from starlette.background import BackgroundTasks
from starlette.requests import Request
from starlette.responses import Response

from resilient_mw.admission.job import Job
from resilient_mw.core.errors import JobRefused
from resilient_mw.core.problem import problem_body, refusal_headers
from resilient_mw.core.rejection import REFUSAL_RULES, Reason
from resilient_mw.runtime.jobs import BoundedJobs

__all__ = ["BoundedTasks", "bounded_tasks", "job_refused"]


class BoundedTasks(BackgroundTasks):
    """Background tasks of one response that are promised by a bounded queue of jobs.

    Give it to a response: `Response(background=tasks)`. Tasks of a response that is never sent are not done.

    Args:
        jobs: the queue. It must have been started: `lifespan=jobs.lifespan`.
        priority: the class of the tasks.
        carry_budget: whether a task is worthless after the deadline of the request.
    """

    def __init__(self, jobs: BoundedJobs, *, priority: str = "normal", carry_budget: bool = False) -> None:
        super().__init__()
        self._jobs = jobs
        self._priority = priority
        self._carry_budget = carry_budget
        self._held: list[Job] = []
        # A request that failed is over before the garbage collector finds this: its error leads here.
        task = _current_task()
        if task is not None:
            task.add_done_callback(partial(_withdraw, jobs, self._held), context=Context())
        finalize(self, _withdraw, jobs, self._held).atexit = False

    def add_task(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Promise a task, to begin when the response has been sent.

        Raises:
            JobRefused: there is no place for it. Nothing has been promised.
        """
        work = partial(func, *args, **kwargs) if kwargs else func
        held = self._jobs.put_nowait(
            work, *(() if kwargs else args), priority=self._priority, carry_budget=self._carry_budget, hold=True
        )  # fmt: skip
        self._held.append(held)

    async def __call__(self) -> None:
        """Let the tasks begin: the response has been sent. Nothing waits for them here."""
        while self._held:
            self._jobs.let_go(self._held.pop(0))


def bounded_tasks(
    jobs: BoundedJobs, *, priority: str = "normal", carry_budget: bool = False
) -> Callable[[BackgroundTasks], Awaitable[BoundedTasks]]:
    """Return a dependency for FastAPI, `Depends(bounded_tasks(jobs))`, that gives a route its bounded tasks.

    Arguments as of `BoundedTasks`.
    """

    async def tasks(background: BackgroundTasks) -> BoundedTasks:
        made = BoundedTasks(jobs, priority=priority, carry_budget=carry_budget)
        background.add_task(made)
        return made

    return tasks


def job_refused(request: Request, error: Exception) -> Response:  # noqa: ARG001  what frameworks give
    """Answer a request whose job was refused, as other refusals are answered: `app.add_exception_handler(JobRefused, job_refused)`.

    The route was at work already, so nothing says that the request may be repeated whatever its method.
    """
    reason = error.reason if isinstance(error, JobRefused) else None
    reason = reason if isinstance(reason, Reason) else Reason.QUEUE_FULL
    headers = refusal_headers(reason, getattr(error, "retry_after", None), begun=True)
    return Response(problem_body(reason), REFUSAL_RULES[reason].status, headers=dict(headers))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread
        return None


def _withdraw(jobs: BoundedJobs, held: list[Job], _: object = None) -> None:
    for job in held:
        jobs.withdraw(job)
