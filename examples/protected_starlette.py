"""A protected Starlette service whose refusals are drawn by its own exception handler.

python examples/protected_starlette.py [port]      needs: pip install "resilient-mw[starlette]" uvicorn

Then, in another terminal:
    curl -i localhost:8000/checkout
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/report       504 after 100 ms
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/page/1       504 as a page
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
"""

import asyncio
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from resilient_mw import ServerPolicy, current, priority
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw_integrations.starlette.pages import RequestRefused, handled_by


@priority("critical")
async def checkout(request: Request) -> JSONResponse:
    return JSONResponse({"seconds_left": current().remaining()})


@priority("sheddable")
async def report(request: Request) -> JSONResponse:
    await asyncio.sleep(1)
    return JSONResponse({"rows": 42})


async def page(request: Request) -> HTMLResponse:
    await asyncio.sleep(1)
    return HTMLResponse(f"<h1>Page {request.path_params['number']}</h1>")


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"ok": True})


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefused)
    if request.url.path.startswith("/page"):
        return HTMLResponse(f"<h1>{error.detail}</h1><p>Please come back in a moment.</p>", error.status_code)
    return JSONResponse({"reason": error.refused.reason, "message": error.detail}, error.status_code)


app = Starlette(
    routes=[
        Route("/checkout", checkout),
        Route("/report", report),
        Route("/health", health),
        Mount("/page", routes=[Route("/{number:int}", page)]),
    ],
    exception_handlers={RequestRefused: refused},
)
policy = ServerPolicy(limit=4, queue=4, name="shop", refusal_page=handled_by(app))
app.add_middleware(ResilienceMiddleware, policy=policy)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
