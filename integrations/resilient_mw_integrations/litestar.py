"""Litestar: a plugin that puts the middleware around the application, its routes, and pages by its exception handlers.

The route source asks the application's own router, whose answers it keeps for the request itself, so the route is the one
that Litestar will pick. Where only the method does not fit (405) it is the route whose path matches; other requests that no
handler serves are unmatched. Handlers that are registered while the application runs are seen.

Marks count on handlers (above and below Litestar's own decorator) and on controllers. Routers and applications cannot
carry an attribute: say it in their `opt`, which handlers and controllers have, too: `Router(..., opt=marked(priority="critical"))`.
The inner one goes before the outer one. What is mounted (`@asgi(is_mount=True)`) is one route, `/legacy/*`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Unpack

from litestar import Litestar, Response, Router
from litestar.config.app import AppConfig
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.handlers import ASGIRouteHandler, BaseRouteHandler
from litestar.plugins import InitPlugin
from litestar.utils import normalize_path

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.asgi.lifespan import ASYNCIO_ONLY, let_finish
from resilient_mw.core.errors import IdempotencyRefused, UnsupportedEventLoop
from resilient_mw.core.marks import ATTRIBUTE, Mark
from resilient_mw.core.pages import RefusalPage, RefusedRequest
from resilient_mw.core.problem import refusal_answer
from resilient_mw.core.routes import WEBSOCKET, Route, RouteResolver, RouteRule
from resilient_mw.idempotency.policy import IdempotencyPolicy
from resilient_mw.idempotency.protocol import AsyncIdempotencyStore, IdempotencyStore
from resilient_mw.runtime.configuration import policy_in_force
from resilient_mw_integrations._app_config import require_both
from resilient_mw_integrations._asgi_pages import page_of
from resilient_mw_integrations._endpoints import METHODS, KnownRoutes, parts

__all__ = ["RequestRefused", "ResiliencePlugin", "by_exception_handlers", "marked", "route_source"]

OPTION = "resilient_mw"
"""The key in `opt`."""


class ResiliencePlugin(InitPlugin):
    """Protects an application: `Litestar(..., plugins=[ResiliencePlugin(limit=20)])`.

    The middleware stands around everything that Litestar does with a request, its routing included, from the start of the
    lifespan on; at shutdown requests may finish before the application's own lifespan managers end.

    Args:
        policy: the policy; None: one is loaded, see `resilient_mw.runtime.configuration`.
        idempotency: the policy of idempotency keys; None: they are not looked at.
        store: where their records are.
        **overrides: fields of `ServerPolicy` that differ from `policy`.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed; the text names the field, the value and the range.
    """

    def __init__(
        self,
        policy: ServerPolicy | None = None,
        *,
        idempotency: IdempotencyPolicy | None = None,
        store: IdempotencyStore | AsyncIdempotencyStore | None = None,
        **overrides: Unpack[PolicyOverrides],
    ) -> None:
        if policy is not None and not isinstance(policy, ServerPolicy):
            raise ValueError(f"policy={policy!r} is not allowed: it must be a ServerPolicy")
        self.policy = policy_in_force(policy, overrides)
        require_both(idempotency, store)
        self._keys = idempotency
        self._store = store
        self._spans: dict[int, tuple[ResilienceMiddleware, object]] = {}

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Take part in the lifespan of the application."""
        app_config.lifespan.append(self._lifespan)
        app_config.on_startup.append(self._started)
        app_config.exception_handlers = {IdempotencyRefused: refused_answer, **app_config.exception_handlers}
        return app_config

    def middleware_around(self, app: Litestar) -> ResilienceMiddleware:
        """Return the middleware around an application, which is put there if it is not there yet."""
        handler: Any = app.asgi_handler
        if isinstance(handler, ResilienceMiddleware):
            return handler  # it is, after an earlier lifespan
        if self._keys is not None and self._store is not None:
            handler = IdempotencyMiddleware(handler, self._keys, store=self._store)
        middleware = ResilienceMiddleware(handler, self.policy)
        app.asgi_handler = middleware
        return middleware

    @asynccontextmanager
    async def _lifespan(self, app: Litestar) -> AsyncIterator[None]:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UnsupportedEventLoop(ASYNCIO_ONLY) from None
        handler = self.middleware_around(app)
        guard, span = handler.protection.guard, object()
        guard.lifecycle.begins(span)
        self._spans[id(app)] = handler, span
        try:
            yield
            # What was entered before this, and the hooks of the shutdown, come after it.
            await let_finish(guard, span)
        finally:
            del self._spans[id(app)]
            guard.lifecycle.ends(span)

    def _started(self, app: Litestar) -> None:
        # The application's own start-up may have registered routes, so they are bound after it.
        handler, span = self._spans[id(app)]
        handler.protection.start([app], inside=app)
        handler.protection.guard.lifecycle.started(span)


def marked(**rule: Any) -> dict[str, Mark]:
    """Return what to give as `opt` to an application, a router, a controller or a handler.

    Args:
        **rule: what `RouteRule` takes beside path and methods.

    Raises:
        ValueError: naming the field, the value and what is allowed.
    """
    return {OPTION: RouteRule("/*", **rule).mark}


def refused_answer(_: Any, error: IdempotencyRefused) -> Response[bytes]:
    """Answer for a handler whose idempotency key is refused: Litestar would make an error of the handler's own of it."""
    status, headers, body = refusal_answer(error.reason, error.retry_after)
    return Response(body, status_code=status, headers=dict(headers), media_type=headers[0][1])


# -- routes --------------------------------------------------------------------------------------------------------------


class LitestarRouteSource:
    """Knows the routes of `Litestar` applications."""

    def resolver(self, app: object) -> RouteResolver | None:
        """Return a resolver for `app`; None if it is none of these."""
        return LitestarRoutes(app) if isinstance(app, Litestar) else None

    def adds_cors(self, layer: object) -> bool:
        """Return whether `layer` is an application that answers preflights and adds the fields of CORS."""
        return isinstance(layer, Litestar) and layer.cors_config is not None


route_source = LitestarRouteSource()


class LitestarRoutes:
    """Finds the route of each request to one application."""

    def __init__(self, app: Litestar) -> None:
        self._app = app
        self._known = KnownRoutes()
        self._said: dict[int, _Said] = {}
        self._bind()

    def _bind(self) -> None:
        self._count = len(self._app.routes)
        self._routes: dict[tuple[int, str], Route] = {}
        self._mounts: dict[int, list[tuple[str, Route]]] = {}
        self._listed: list[Route] = []
        for route in self._app.routes:
            handlers: Any = getattr(route, "route_handlers", None) or [getattr(route, "route_handler", None)]
            for handler in handlers:
                self._add(route.path, route.path_format, handler)

    def _add(self, path: str, template: str, handler: BaseRouteHandler) -> None:
        owners = tuple(self._owners(handler))
        methods = getattr(handler, "http_methods", None)
        served = frozenset(methods) if methods else None
        if isinstance(handler, ASGIRouteHandler) and handler.is_mount:
            found = self._known.get(f"{path.rstrip('/')}/*", owners)
            self._mounts.setdefault(id(handler), []).append((path, found))
            self._listed.append(Route(f"{path.rstrip('/')}/{{path:path}}", found.mark, owners))
            return
        if served is None and not isinstance(handler, ASGIRouteHandler):
            served = WEBSOCKET
        found = self._known.get(template, owners, served)
        # The application keeps its handlers, so their ids stay theirs.
        self._routes[id(handler), template] = found
        self._listed.append(found if path == template else Route(path, found.mark, owners, served))

    def _owners(self, handler: BaseRouteHandler) -> Iterator[object]:
        """Yield the objects whose marks count for a handler, the innermost first."""
        function: Any = handler.fn
        yield from parts(function)
        yield handler
        yield from self._opt(handler)
        controller = getattr(function, "__self__", None)
        if controller is not None:
            yield from parts(type(controller))
            for kind in type(controller).__mro__:  # Litestar serves copies of what stands there
                yield from (each for each in vars(kind).values() if isinstance(each, BaseRouteHandler)
                            and each.fn is getattr(function, "__func__", None))  # fmt: skip
        owner: Any = handler.owner
        while owner is not None:
            yield from self._opt(owner)
            owner = owner.owner if isinstance(owner, Router) else None

    def _opt(self, owner: BaseRouteHandler | Router) -> Iterator[_Said]:
        mark = (owner.opt or {}).get(OPTION)
        if isinstance(mark, Mark):
            yield self._said.setdefault(id(owner), _Said(owner, mark))

    def resolve(self, path: str, scope: Mapping[str, Any]) -> Route | None:  # noqa: ARG002  as Litestar reads the scope
        """Return the route of the handler that Litestar would pick; None if none would run."""
        whole: str = scope["path"]
        root = scope.get("root_path", "")
        if root:
            whole = whole.split(root, maxsplit=1)[-1]
        whole = normalize_path(whole)
        router = self._app.asgi_router
        for method in (scope.get("method"), *METHODS):  # where only the method does not fit, one that does
            try:
                found = router.handle_routing(path=whole, method=method)
            except MethodNotAllowedException:
                continue
            except HTTPException:
                return None
            break
        else:
            return None
        handler, template = found[1], found[4]
        route = self._found(whole, handler, template)
        if route is None and len(self._app.routes) != self._count:
            self._bind()
            route = self._found(whole, handler, template)
        return route

    def _found(self, path: str, handler: object, template: str) -> Route | None:
        route = self._routes.get((id(handler), template))
        if route is None:
            for mount, everything in self._mounts.get(id(handler), ()):
                if path.startswith(mount):
                    return everything
        return route

    def routes(self) -> Iterator[Route]:
        """Yield all routes; parameters are written as their author did."""
        return iter(self._listed)


class _Said:
    """What the `opt` of something says, in the shape of a mark."""

    def __init__(self, owner: object, mark: Mark) -> None:
        self.owner = owner  # so that its id stays its own
        setattr(self, ATTRIBUTE, mark)


# -- pages ---------------------------------------------------------------------------------------------------------------


class RequestRefused(HTTPException):
    """What exception handlers are told of a request that is answered in the application's place. Never raised.

    Attributes:
        refused: what is known of it: reason, title, whether the work had begun.
    """

    def __init__(self, refused: RefusedRequest) -> None:
        super().__init__(detail=refused.title, status_code=refused.status)
        self.refused = refused


async def by_exception_handlers(refused: RefusedRequest) -> RefusalPage | None:
    """Draw the page of a refusal by the application's own exception handlers: a `refusal_page` for `ResiliencePlugin`.

    Its handler is chosen as for an exception of the application's own: one for the status (503, 504, 429, 413), else the one for
    `RequestRefused`, else the one for `HTTPException` or `Exception`. Without any, the problem document is sent.
    """
    app = refused.request.get("litestar_app")
    if not isinstance(app, Litestar):
        return None
    handlers: Any = app.exception_handlers
    handler: Callable[..., Any] | None = handlers.get(refused.status)
    for kind in RequestRefused.__mro__:
        handler = handler or handlers.get(kind)
    if handler is None:
        return None
    scope: Any = dict(refused.request)
    request: Any = app.request_class(scope=scope)
    response: Callable[[Any, Any, Any], Awaitable[None]] = handler(
        request, RequestRefused(refused)
    ).to_asgi_response(app=None, request=request, type_encoders=app.type_encoders)
    return await page_of(response, scope)
