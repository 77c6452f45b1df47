"""A service that answers 202 and keeps its word: jobs with bounds, deferred to a file where there is no place.

python examples/jobs.py [port] [file]      needs: pip install "resilient-mw[fastapi]" uvicorn

Then, in another terminal:
    for i in $(seq 30); do curl -s -X POST localhost:8000/invoices/$i; echo; done
    curl localhost:8000/sent

Stop it with Ctrl-C while invoices wait, and start it again: they are sent.
"""

import asyncio
import sys
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI

from resilient_mw.runtime.jobs import BoundedJobs, JobRefused, JobsPolicy, current_job
from resilient_mw.stores.jobs_sqlite import SQLiteJobStore
from resilient_mw_integrations.starlette.background import BoundedTasks, bounded_tasks, job_refused

FILE = sys.argv[2] if len(sys.argv) > 2 else "jobs.db"
jobs = BoundedJobs(
    JobsPolicy(name="invoices", places=5, workers=2, max_wait=0.05, lease=10.0, drain=1.0, poll=0.1),
    store=SQLiteJobStore(FILE),
)
app = FastAPI(lifespan=jobs.lifespan)
app.add_exception_handler(JobRefused, job_refused)
sent: list[str] = []


@jobs.task("invoice")
async def send_invoice(order: int) -> None:
    job = current_job()
    assert job is not None
    await asyncio.sleep(0.3)  # a slow mail server, which gets the key as its message id
    sent.append(job.key)
    print(f"sent invoice {order}, delivery {job.attempt}", flush=True)


@app.post("/invoices/{order}", status_code=202)
async def invoice(order: int) -> dict[str, object]:
    job = await jobs.put_or_defer(send_invoice, order, key=f"invoice-{order}")
    return {"key": job.key, "deferred": job.deferred}


@app.post("/reminders/{order}", status_code=202)
async def reminder(order: int, tasks: Annotated[BoundedTasks, Depends(bounded_tasks(jobs))]) -> None:
    tasks.add_task(send_invoice, order)  # 503 where there is no place: a reminder can be asked for again


@app.get("/sent")
async def what_was_sent() -> list[str]:
    return sent


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
