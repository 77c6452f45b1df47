"""The client library that a transport is made for: httpx or a fork of it, known only as the module that is passed in.

`import httpx` may give httpx2 (`httpx2.alias_httpx()`), and the two share no class: everything is taken from the module,
nothing is compared by name.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from resilient_mw.calls.events import UNSENT, Phase
from resilient_mw.transport.streams import AsyncBody, AsyncUpload, SyncBody, SyncUpload


class Library:
    """The names that the transports use of one library, and the errors and streams that are made for it.

    Args:
        module: httpx or a fork of it.
        expired: makes the error of a deadline: (message, phase, dependency).
        refused: makes the error of a refusal: (message, reason, dependency, retry_in).
        too_small: the same where the budget is too small to begin.
        closed: makes the error of a transport that was closed: (message, dependency).
    """

    def __init__(
        self,
        module: ModuleType,
        *,
        expired: Callable[..., Exception],
        refused: Callable[..., Exception],
        too_small: Callable[..., Exception],
        closed: Callable[..., Exception],
    ) -> None:
        self.module = module
        self.name = module.__name__
        self.expired, self.refused, self.too_small, self.closed = expired, refused, too_small, closed
        self.request: Callable[..., Any] = module.Request
        self.transport_error: type[Exception] = module.TransportError
        self.timeout: type[Exception] = module.TimeoutException
        self.mistakes: tuple[type[Exception], ...] = (module.LocalProtocolError, module.UnsupportedProtocol)
        """Errors of the caller: they say nothing about the dependency, and would come again."""
        self.bytes_stream: type = module.ByteStream
        # The library insists that streams are of its own classes.
        self.sync_body: Callable[..., SyncBody] = type("Body", (SyncBody, module.SyncByteStream), {})
        self.async_body: Callable[..., AsyncBody] = type("Body", (AsyncBody, module.AsyncByteStream), {})
        self.sync_upload: Callable[..., SyncUpload] = type("Upload", (SyncUpload, module.SyncByteStream), {})
        self.async_upload: Callable[..., AsyncUpload] = type(
            "Upload", (AsyncUpload, module.AsyncByteStream), {}
        )

    def timed_out(self, phase: Phase | None, message: str) -> Exception:
        """Return the library's own error for a timeout in a phase."""
        name = "ReadTimeout"
        if phase is Phase.POOL:
            name = "PoolTimeout"
        elif phase in UNSENT:
            name = "ConnectTimeout"
        elif phase is Phase.WRITE:
            name = "WriteTimeout"
        error: Exception = getattr(self.module, name)(message)
        return error
