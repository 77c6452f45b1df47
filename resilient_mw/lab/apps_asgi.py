"""The application under test on the ASGI stack: FastAPI behind uvicorn, sync endpoints in a thread pool."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import AsyncIterator, Callable, Sequence

import anyio.to_thread
import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from resilient_mw.lab.busy import Busy
from resilient_mw.lab.processes import allow_many_connections, announce, exit_with_parent
from resilient_mw.lab.settings import STATE_PATH, AppSettings, open_socket, read_settings


def build(settings: AppSettings) -> FastAPI:
    """Make the application, with what the step gives it of ours."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # The pool in which sync endpoints run; it belongs to the event loop, so it cannot be set before.
        anyio.to_thread.current_default_thread_limiter().total_tokens = settings.threads
        yield

    busy = Busy()
    app = FastAPI(lifespan=lifespan, openapi_url=None)
    # No proxy from the environment, and no bound but the worker threads: the step decides what limits the calls.
    limits = httpx.Limits(max_connections=None)
    transport = None
    if settings.protected:
        # Imported here, so that nothing of ours is in the process of a step that goes without.
        from resilient_mw.asgi import ResilienceMiddleware
        from resilient_mw.lab.protections import Protections

        protections = Protections(settings)
        transport = protections.transport(limits)

        @app.get(STATE_PATH, response_model=None)
        async def state() -> JSONResponse:
            return JSONResponse(protections.state(busy.peak))

        if protections.policy is not None:
            app.add_middleware(ResilienceMiddleware, policy=protections.policy)
    client = httpx.Client(timeout=settings.timeout, trust_env=False, limits=limits, transport=transport)

    def endpoint_for(addresses: Sequence[str]) -> Callable[[], JSONResponse]:
        def endpoint() -> JSONResponse:
            try:
                with busy:
                    return JSONResponse([client.get(each).raise_for_status().json() for each in addresses])
            except httpx.HTTPError as error:
                return JSONResponse({"error": type(error).__name__}, 503)

        return endpoint

    for path, addresses in settings.routes.items():
        app.add_api_route(path, endpoint_for(addresses), response_model=None)

    # A response, not a value: FastAPI validates the value of a sync endpoint in the pool, too, and the second
    # wait for a thread would double what the steps measure.
    @app.get("/health", response_model=None)
    def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return app


def main(argv: list[str] | None = None) -> None:
    """Serve the application on a free port, and say on which."""
    settings = read_settings(argv)
    exit_with_parent()
    allow_many_connections()
    sock = open_socket()
    # It listens from here on, and connections wait in the backlog until the server takes over.
    sock.listen(4096)
    config = uvicorn.Config(
        build(settings),
        loop="uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        http="httptools",
        backlog=4096,
        log_level="warning",
        access_log=False,
    )
    announce({"port": sock.getsockname()[1]})
    uvicorn.Server(config).run(sockets=[sock])


if __name__ == "__main__":
    main()
