"""The head of an ASGI request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resilient_mw.core.routes import below_root

if TYPE_CHECKING:
    from asgiref.typing import HTTPScope


class AsgiHead:
    """A `RequestHead` over a scope. Made only where a policy asks for more than the path."""

    __slots__ = ("scope",)

    def __init__(self, scope: HTTPScope) -> None:
        self.scope = scope

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.scope["method"]

    @property
    def path(self) -> str:
        """The path below the root path."""
        return below_root(self.scope["path"], self.scope.get("root_path", ""))

    @property
    def peer(self) -> str | None:
        """The address of the connection's peer."""
        client = self.scope.get("client")
        return client[0] if client else None

    def values(self, name: str) -> list[str]:
        """Return the values of a header's lines."""
        wanted = name.encode("latin-1")
        return [value.decode("latin-1") for each, value in self.scope["headers"] if each == wanted]
