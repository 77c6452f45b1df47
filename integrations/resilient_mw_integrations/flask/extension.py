"""The Flask extension: protects applications, reads their configuration, and lists how each route is treated."""

from __future__ import annotations

from typing import Any, Unpack

from flask import Flask

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.admission.overrides import PolicyOverrides
from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw_integrations._app_config import policy_for
from resilient_mw_integrations.flask.listing import command
from resilient_mw_integrations.flask.pages import ErrorPages

NAME = "resilience"


class Resilience:
    """Protects Flask applications: `Resilience(app)`, or `init_app` for applications that a factory makes.

    One object may protect several applications. They share one limit and one queue if they are given a policy and their
    configuration says nothing that differs; else each has its own.

    Make it after other middlewares of the application (`app.wsgi_app = ...`), so that it is the outermost.

    Args:
        app: the application; None: call `init_app`.
        policy: the policy. None: one is loaded from `app.config`, a file and the environment, in this order.
        error_pages: whether refusals and 504s are drawn by the application's own error handlers, those of 503, 504, 429 and so on,
            where it has them.
        **overrides: fields of `ServerPolicy` that nothing outside the code changes.

    Raises:
        TypeError: an override names no field of the policy.
        ValueError: a value is not allowed; the text names its source, the field and the range.
    """

    def __init__(
        self,
        app: Flask | None = None,
        policy: ServerPolicy | None = None,
        *,
        error_pages: bool = False,
        **overrides: Unpack[PolicyOverrides],
    ) -> None:
        if error_pages and overrides.get("refusal_page") is not None:
            raise ValueError("error_pages=True is not allowed beside refusal_page: both draw the same pages")
        self._policy = policy
        self._error_pages = error_pages
        self._overrides: dict[str, Any] = {**overrides}
        self._shared: ServerPolicy | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Protect an application.

        Raises:
            RuntimeError: it is protected already.
            ValueError: its configuration is not allowed.
        """
        if NAME in app.extensions:
            raise RuntimeError(
                f"the application {app.name!r} is protected already: call init_app once for it"
            )
        policy = policy_for(app.config, self._policy)
        if policy is self._policy and self._shared is not None and not self._error_pages:
            middleware = ResilienceMiddleware(app.wsgi_app, self._shared)
        else:
            changes = self._overrides
            if self._error_pages:
                changes = {**changes, "refusal_page": ErrorPages(app)}
            middleware = ResilienceMiddleware(app.wsgi_app, policy, **changes)
            if policy is self._policy:
                self._shared = middleware.protection.policy
        app.wsgi_app = middleware  # type: ignore[method-assign]
        app.extensions[NAME] = middleware
        app.cli.add_command(command, NAME)

    def policy_of(self, app: Flask) -> ServerPolicy:
        """Return the policy in force for an application: to drain it, to reload it, for its snapshot.

        Raises:
            KeyError: the application is not protected.
        """
        middleware: ResilienceMiddleware = app.extensions[NAME]
        return middleware.protection.policy
