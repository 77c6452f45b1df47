"""The head of a request, as both protocols show it to what decides about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class RequestHead(Protocol):
    """What is known of a request before its body is read."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        ...

    @property
    def path(self) -> str:
        """The path below the root path, as the server decoded it."""
        ...

    @property
    def peer(self) -> str | None:
        """The address of the connection's peer; None if the server does not tell."""
        ...

    @property
    def scope(self) -> Mapping[str, Any]:
        """The ASGI scope or the WSGI environ."""
        ...

    def values(self, name: str) -> Sequence[str]:
        """Return the values of a header's lines; `name` is lower-case."""
        ...
