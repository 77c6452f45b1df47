"""The head of a WSGI request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from resilient_mw.wsgi.answers import environ_key

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

OWN: Final = {"content-length": "CONTENT_LENGTH", "content-type": "CONTENT_TYPE"}
"""Fields that have a name of their own in an environ, where servers write them empty if they were not sent."""


class WsgiHead:
    """A `RequestHead` over an environ. Made only where a policy asks for more than the path.

    Args:
        environ: of the request.
        path: below the root path, decoded.
    """

    __slots__ = ("path", "scope")

    def __init__(self, environ: WSGIEnvironment, path: str) -> None:
        self.scope = environ
        self.path = path

    @property
    def method(self) -> str:
        """The HTTP method."""
        return str(self.scope.get("REQUEST_METHOD", ""))

    @property
    def peer(self) -> str | None:
        """The address of the connection's peer."""
        return self.scope.get("REMOTE_ADDR")

    def values(self, name: str) -> list[str]:
        """Return the values of a header's lines: one at most, as servers join them."""
        own = OWN.get(name)
        value = self.scope.get(environ_key(name)) if own is None else self.scope.get(own) or None
        return [] if value is None else [value]
