"""`wsgiref.validate` above and below: the middleware is a correct application to its server, and a correct server.

`ScriptedWSGI` puts it above. Tests that play a faulty server or application take it out there with `validate=False`, which
takes it out here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from wsgiref.validate import ErrorWrapper, validator

import pytest

from resilient_mw.wsgi import ResilienceMiddleware
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


class Validated:
    """An application under `wsgiref.validate`, wherever the server of its request is under it, too.

    Attributes:
        app: the application itself, so that its routes are found.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self.app = app

    def __call__(self, environ: Any, start_response: Any) -> Any:
        if not isinstance(environ["wsgi.errors"], ErrorWrapper):
            return self.app(environ, start_response)
        given: list[Any] = []

        def app(environ: Any, start_response: Any) -> Any:
            given.append(self.app(environ, start_response))
            return given[0]

        body: Any = validator(app)(environ, start_response)
        if type(given[0]) not in {list, tuple}:
            return body
        # The middleware treats a list as one, so it has to get one.
        try:
            return type(given[0])(body)
        finally:
            body.close()


@pytest.fixture(autouse=True)
def validated_below(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ResilienceMiddleware, IdempotencyMiddleware):
        monkeypatch.setattr(kind, "__init__", validating(kind.__init__))


def validating(make: Any) -> Any:
    """Return the `__init__` of a middleware that is given its application under validation."""

    def make_validated(self: Any, app: WSGIApplication, *args: Any, **options: Any) -> None:
        make(self, Validated(app), *args, **options)

    return make_validated
