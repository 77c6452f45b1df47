"""Celery: deadlines and idempotency keys in task headers, and retries inside the budget.

Example:
    app = Celery("shop", broker="redis://localhost")
    install(app)

    @app.task(bind=True, acks_late=True)
    def charge(self, order):
        client.post("https://bank/charges", json=order, extensions={"idempotency_key": current_job().key})

    charge.apply_async((order,), **task_options(key=f"order-{order['id']}", carry_budget=True))

In a task `current()` knows a deadline: the earliest of the task's `expires`, its soft and hard time limit, and, for a task
that is acknowledged late, the broker's visibility timeout. `current_job()` knows its idempotency key: the same for every
retry and every redelivery. A task whose `expires` has passed is not begun, and is revoked as Celery does it.
"""

from __future__ import annotations

import logging
import re
from contextvars import Token
from datetime import UTC, datetime
from math import inf
from typing import Any, NamedTuple
from weakref import WeakSet

from celery import Celery, Task, current_app, signals
from celery.exceptions import Ignore

from resilient_mw.core import ports
from resilient_mw.core.checks import require_flag, require_number
from resilient_mw.core.errors import DeadlineExceeded
from resilient_mw.core.headers.retry_owner import RetryOwner
from resilient_mw.runtime.carry import LEFT, WRITTEN, export_context, imported_context
from resilient_mw.runtime.clocks import MONOTONIC, wall_clock
from resilient_mw.runtime.context import CURRENT, RequestContext, current, reset
from resilient_mw.runtime.job_context import RUNNING_JOB, RunningJob, ThreadJob
from resilient_mw_integrations._celery_figures import CeleryJobs

__all__ = ["CeleryJobs", "ResilientTask", "install", "task_options"]

KEY = "idempotency-key"
"""The header of a task that holds its idempotency key."""
LOGGER = logging.getLogger("resilient_mw.jobs")
NOT_OF_AN_OWNER = re.compile(r"[^0-9A-Za-z._:/-]")
_installed: WeakSet[Celery] = WeakSet()


def task_options(*, key: str | None = None, carry_budget: bool = False) -> dict[str, Any]:
    """Return options for `apply_async`: an idempotency key, and what is left of the caller's budget.

    Args:
        key: of the task; None: its task id, which no other task has and all its retries share.
        carry_budget: whether the task is worthless when the caller's deadline has passed. Most tasks are not.

    Raises:
        DeadlineExceeded: the budget is to be carried, and nothing of it is left.
    """
    headers: dict[str, str] = {}
    options: dict[str, Any] = {"headers": headers}
    if key is not None:
        headers[KEY] = key
    if carry_budget and current().remaining() < inf:
        current().check()
        headers.update(export_context())
        options["expires"] = current().remaining()
    return options


class _Entered(NamedTuple):
    """What a task has made current."""

    context: ThreadJob
    expires_at: float
    token: Token[RequestContext]
    job_token: Token[RunningJob | None]


class ResilientTask(Task):  # type: ignore[misc]  # Celery ships no types
    """A task that is not begun after its `expires`, and is retried only if that can finish before.

    Attributes:
        retries_itself: whether the task calls `retry()` of its own accord, so that nothing below it should. It is taken for
            granted where the task is acknowledged late or has `autoretry_for`.
        typical_run: seconds that a run usually takes; a retry has to leave so much time.
    """

    abstract = True
    retries_itself = False
    typical_run = 0.0

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Refuse to begin what has expired since the worker last looked."""
        super().before_start(task_id, args, kwargs)
        entered = _entered(self)
        if entered is not None and entered.expires_at <= MONOTONIC.now():
            self.backend.mark_as_revoked(task_id, "expired", request=self.request, store_result=True)
            signals.task_revoked.send(
                sender=self, request=self.request, terminated=False, signum=None, expired=True
            )
            raise Ignore("expired before it began")

    def retry(  # noqa: PLR0917  as Celery's own
        self, args: Any = None, kwargs: Any = None, exc: Any = None, throw: bool = True, eta: Any = None,
        countdown: float | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """Retry if the delay and a typical run fit into what is left until `expires`; else raise `exc`.

        Arguments as of Celery's own.

        Raises:
            DeadlineExceeded: it does not fit, and there is no `exc`.
        """
        entered = _entered(self)
        delay = (self.default_retry_delay if countdown is None else countdown) if eta is None else _until(eta)
        if entered is not None and entered.expires_at - MONOTONIC.now() <= delay + self.typical_run:
            _figures(self.app).count("retry_refused")
            if isinstance(exc, BaseException):
                raise exc
            raise DeadlineExceeded(
                f"a retry of {self.name} in {delay:g} s cannot finish before the task expires"
            )
        return super().retry(args, kwargs, exc, throw, eta, countdown, **options)


def install(app: Celery, *, carry_budget: bool = False) -> CeleryJobs:
    """Give the tasks of an application deadlines and idempotency keys. Call it before tasks are defined.

    Args:
        app: the application.
        carry_budget: whether each task expires with the deadline of the request that publishes it, as `task_options` does
            for one. `current()` must be that of a request.

    Returns:
        The figures. A second call for the same application returns the same.

    Raises:
        ValueError: `carry_budget` is no flag.
    """
    require_flag("carry_budget", carry_budget)
    known = getattr(app, "resilient_mw_jobs", None)
    if isinstance(known, CeleryJobs):
        return known
    jobs = CeleryJobs(f"celery:{app.main or 'app'}")
    app.resilient_mw_jobs = jobs
    app.resilient_mw_carries = carry_budget
    app.Task = type("ResilientTask", (ResilientTask, app.Task), {"abstract": True})
    ports.register_jobs(jobs)
    _installed.add(app)
    signals.before_task_publish.connect(_published, weak=False, dispatch_uid="resilient_mw")
    signals.task_prerun.connect(_begins, weak=False, dispatch_uid="resilient_mw")
    signals.task_postrun.connect(_ends, weak=False, dispatch_uid="resilient_mw")
    signals.task_revoked.connect(_revoked, weak=False, dispatch_uid="resilient_mw")
    return jobs


def _figures(app: Any) -> CeleryJobs:
    jobs = getattr(app, "resilient_mw_jobs", None)
    return jobs if isinstance(jobs, CeleryJobs) else CeleryJobs("celery:unknown")


def _entered(task: Any) -> _Entered | None:
    found = getattr(task.request, "resilient_mw_entered", None)
    return found if isinstance(found, _Entered) else None


# -- the publisher -----------------------------------------------------------------------------------------------------


def _published(headers: Any = None, **_: Any) -> None:
    """Write the key, and what is left of the budget, into the headers of a message."""
    app = _publisher()
    if app is None or not isinstance(headers, dict) or "id" not in headers:
        return
    running = RUNNING_JOB.get()
    if running is not None and running.id == headers["id"]:
        headers.setdefault(KEY, running.key)
        # What was written down for the first delivery says too much by now; `expires` is an instant and still right.
        headers.pop(LEFT, None)
        headers.pop(WRITTEN, None)
        return
    headers.setdefault(KEY, headers["id"])
    if app.resilient_mw_carries and LEFT not in headers and current().remaining() < inf:
        headers.update(export_context())
        ends = wall_clock() + current().remaining()
        before = _instant(headers.get("expires"), app)
        headers["expires"] = datetime.fromtimestamp(min(ends, before), UTC).isoformat()
    app.resilient_mw_jobs.publishes()


def _publisher() -> Any:
    """Return the application that publishes: Celery's current one, or the only one that is installed."""
    app = current_app._get_current_object()  # noqa: SLF001  Celery's way through its proxy
    if app in _installed:
        return app
    return next(iter(_installed)) if len(_installed) == 1 else None


# -- the worker --------------------------------------------------------------------------------------------------------


def _begins(task_id: str = "", task: Any = None, **_: Any) -> None:
    """Make the context of a task current, in its own thread or process."""
    if not hasattr(task.app, "resilient_mw_jobs"):
        return
    request = task.request
    now = MONOTONIC.now()
    expires_at = min(now + _instant(request.expires, task.app) - wall_clock(), _carried_until(request))
    hard, soft = getattr(request, "timelimit", None) or (None, None)  # of this message, in that order
    limits = [soft or task.soft_time_limit, hard or task.time_limit]
    late = task.acks_late or task.app.conf.task_acks_late
    if late:
        limits.append((task.app.conf.broker_transport_options or {}).get("visibility_timeout"))
    deadline_at = min([expires_at, *(now + limit for limit in limits if limit)])
    attempt = (request.retries or 0) + 1
    owner = None
    if late or getattr(task, "autoretry_for", None) or getattr(task, "retries_itself", False):
        owner = RetryOwner(NOT_OF_AN_OWNER.sub("_", f"celery:{task.name}")[:64], attempt)
    # A task that is done at once, without a worker, is part of the request that calls it.
    outer = current() if request.is_eager else None
    context = ThreadJob(deadline_at, MONOTONIC, owner, outer=outer)
    key = request.get(KEY)
    job = RunningJob(
        id=task_id, key=key if isinstance(key, str) else task_id, task=task.name, attempt=attempt
    )
    request.resilient_mw_entered = _Entered(context, expires_at, CURRENT.set(context), RUNNING_JOB.set(job))
    _figures(task.app).begins(redelivered=bool((request.delivery_info or {}).get("redelivered")))


def _ends(task: Any = None, state: str | None = None, **_: Any) -> None:
    """Take the context of a task back, whatever became of it."""
    entered = _entered(task)
    if entered is None:
        return
    del task.request.resilient_mw_entered
    entered.context.end()
    reset(entered.token)
    try:
        RUNNING_JOB.reset(entered.job_token)
    except ValueError:
        pass  # closed elsewhere, as `reset` says
    jobs = _figures(task.app)
    jobs.stops()
    if state != "IGNORED":
        jobs.count("completed" if state == "SUCCESS" else "retry" if state == "RETRY" else "error")


def _revoked(sender: Any = None, expired: bool = False, **_: Any) -> None:
    """Count a task that was not begun."""
    app = getattr(sender, "app", None)
    if expired and hasattr(app, "resilient_mw_jobs"):
        _figures(app).count("expired")
        LOGGER.warning("the task %s had expired and was not begun", getattr(sender, "name", sender))


def _instant(expires: Any, app: Any) -> float:
    """Return when a task expires, in seconds since 1970; inf: never, or what stands there is no instant."""
    if isinstance(expires, str):
        try:
            expires = datetime.fromisoformat(expires)
        except ValueError:
            return inf
    if not isinstance(expires, datetime):
        return inf
    return (expires if expires.tzinfo else expires.replace(tzinfo=app.timezone)).timestamp()


def _carried_until(request: Any) -> float:
    """Return the instant at which the budget in the headers is used up; inf: there is none."""
    headers = {name: value for name in (LEFT, WRITTEN) if isinstance(value := request.get(name), str)}
    with imported_context(headers) as context:
        return context.deadline.at


def _until(eta: Any) -> float:
    """Return seconds until an instant."""
    return eta.timestamp() - wall_clock() if isinstance(eta, datetime) else require_number("eta", eta)
