"""The head of a WSGI request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.wsgi.answers import environ_key

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment


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
        key = {"content-length": "CONTENT_LENGTH", "content-type": "CONTENT_TYPE"}.get(name) or environ_key(
            name
        )
        value = self.scope.get(key)
        return [value] if value else []
