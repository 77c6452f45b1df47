"""The fallbacks of a client: what is answered instead of an error or a failing response, and which answers are kept for it.

Only GET and HEAD. A control-flow exception (a cancellation, `KeyboardInterrupt`) is none of the library's errors and passes.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.fallback import HARMLESS, READS, REPLACED, Fallback, Kept, may_keep
from resilient_mw.core.errors import ResilienceError, ResilienceWarning
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.fallbacks import NOTHING, Standby
from resilient_mw.transport.errors import Closed
from resilient_mw.transport.library import Library
from resilient_mw.transport.reading import close_uncancelled
from resilient_mw.transport.recording import AsyncRecorded, SyncRecorded, recorder_of

STALE = "stale"
DEGRADED = "X-Degraded"


class FailedResponse(ResilienceError):
    """What a fallback function is given where the dependency answered, with an error.

    Attributes:
        status: the status of the answer.
        dependency: the name of the dependency.
    """

    def __init__(self, status: int, dependency: str) -> None:
        super().__init__(f"the dependency {dependency!r} answered with status {status}")
        self.status = status
        self.dependency = dependency


def can_fall_back(library: Library, dependencies: Sequence[Dependency]) -> bool:
    """Return whether responses of a library can be made here; warn of fallbacks that are not used because they cannot."""
    if hasattr(getattr(library.module, "Response", None), "iter_raw"):
        return True
    for dependency in dependencies:
        if dependency.fallback is not None:
            warnings.warn(
                f"Dependency({dependency.name!r}).fallback is not used by this client, which is none of httpx: guard the "
                "function that uses it (Dependency.guard)",
                ResilienceWarning,
                stacklevel=4,
            )
    return False


def call_or_fall_back(
    library: Library, owner: DependencyOwner, request: Any, call: Callable[[DependencyOwner, Any], Any]
) -> Any:
    """Make a call; return its response, or what stands in for it. What is replaced is closed."""
    policy = owner.dependency.fallback
    if policy is None or request.method not in READS:
        return _written(owner, request, call(owner, request))
    asked = Asked(library, owner, request, policy)
    try:
        response = call(owner, request)
    except library.transport_error as error:
        if asked.passes(error):
            raise
        replacement = asked.instead(error)
        if replacement is None:
            raise
        return replacement
    if response.status_code not in REPLACED:
        return asked.recorded(response, SyncRecorded)
    try:
        replacement = asked.instead(asked.failed(response))
    except BaseException:
        response.close()
        raise
    if replacement is None:
        return response
    response.close()
    return replacement


async def acall_or_fall_back(
    library: Library,
    owner: DependencyOwner,
    request: Any,
    call: Callable[[DependencyOwner, Any], Awaitable[Any]],
) -> Any:
    """Make a call in a coroutine; return its response, or what stands in for it. What is replaced is closed."""
    policy = owner.dependency.fallback
    if policy is None or request.method not in READS:
        return _written(owner, request, await call(owner, request))
    asked = Asked(library, owner, request, policy)
    try:
        response = await call(owner, request)
    except library.transport_error as error:
        if asked.passes(error):
            raise
        replacement = await asked.ainstead(error)
        if replacement is None:
            raise
        return replacement
    if response.status_code not in REPLACED:
        return asked.recorded(response, AsyncRecorded)
    try:
        replacement = await asked.ainstead(asked.failed(response))
    except BaseException:
        await close_uncancelled(response)
        raise
    if replacement is None:
        return response
    await close_uncancelled(response)
    return replacement


def _written(owner: DependencyOwner, request: Any, response: Any) -> Any:
    """Return the response to a write; what was kept of the same address is not good any more (RFC 9111 section 4.4)."""
    if request.method not in HARMLESS and response.status_code < 400:
        for method in READS:
            owner.keep((method, str(request.url)), None)
    return response


class Asked:
    """One request that may be answered by something else.

    Args:
        library: the client library.
        owner: the owner of the dependency's state.
        request: the request.
        policy: the fallback.
    """

    def __init__(self, library: Library, owner: DependencyOwner, request: Any, policy: Fallback) -> None:
        self._library = library
        self._owner = owner
        self._request = request
        self._policy = policy
        self._standby = Standby(owner, policy)
        self._key = (request.method, str(request.url))
        self._fields = {name.lower(): value for name, value in request.headers.items()}

    def passes(self, error: Exception) -> bool:
        """Return whether an error is none of the dependency: a mistake of the caller, a transport that was closed."""
        return isinstance(error, (Closed, *self._library.mistakes))

    def failed(self, response: Any) -> FailedResponse:
        """Return the error of a failing response."""
        return FailedResponse(response.status_code, self._owner.dependency.name)

    def instead(self, error: Exception) -> Any:
        """Return the response that stands in for an error; None: there is none."""
        stale = self._stale()
        return self._made(*self._standby.instead(error)) if stale is None else stale

    async def ainstead(self, error: Exception) -> Any:
        """Return the response that stands in for an error, in a coroutine; None: there is none."""
        stale = self._stale()
        return self._made(*await self._standby.ainstead(error)) if stale is None else stale

    def recorded(self, response: Any, recorder: type) -> Any:
        """Return a response that is kept when its body has been read to its end, if it may be."""
        told = {name.lower(): value for name, value in response.headers.items()}
        now = self._owner.clock.now()
        kept = may_keep(
            self._policy, self._request.method, response.status_code, asked=self._fields, told=told, now=now
        )
        if kept is None:
            return response
        head = (response.status_code, list(response.headers.raw))

        def complete(body: bytes) -> None:
            size = len(body) + sum(len(name) + len(value) for name, value in head[1]) + len(self._key[1])
            self._owner.keep(self._key, replace(kept, answer=(*head, body), size=size))

        if isinstance(response.stream, self._library.bytes_stream):
            whole: Any = response.stream
            complete(b"".join(whole))  # It is here already: nobody will read it.
            return response
        module = self._library.module
        base = module.SyncByteStream if recorder is SyncRecorded else module.AsyncByteStream
        response.stream = recorder_of(recorder, base)(response.stream, self._policy.largest, complete)
        return response

    def _stale(self) -> Any:
        kept = self._owner.last_good(self._key, self._fields)
        if kept is None:
            return None
        self._owner.fell_back(STALE)
        status, fields, body = kept.answer
        response = self._library.module.Response(status, headers=self._marked(kept, fields), content=body)
        response.request = self._request
        return response

    def _marked(self, kept: Kept, fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        # The body is in one piece now, whatever it came in.
        mine = {b"age", b"x-degraded", b"transfer-encoding", b"connection"}
        age = str(int(max(0.0, self._owner.clock.now() - kept.at)))
        left = [(name, value) for name, value in fields if name.lower() not in mine]
        return [*left, (DEGRADED.encode(), STALE.encode()), (b"Age", age.encode())]

    def _copied(self, answer: Any) -> Any:
        """Return a response of its own for this request: the library writes into what it gets."""
        if not answer.is_closed:
            return answer  # A body that is still to come can be read by one only.
        answer = copy(answer)
        answer.headers = self._library.module.Headers(answer.headers)
        return answer

    def _made(self, kind: str, answer: Any) -> Any:
        """Return a response of what a value or a function gives.

        Raises:
            TypeError: it is neither a response, nor bytes, text or what JSON can say.
        """
        if answer is NOTHING or not kind:
            return None
        module = self._library.module
        if answer is self._policy.value and isinstance(answer, module.Response):
            answer = self._copied(answer)
        if not isinstance(answer, module.Response):
            if isinstance(answer, bytes | str):
                answer = module.Response(200, content=answer)
            else:
                answer = module.Response(
                    200, content=json.dumps(answer), headers={"Content-Type": "application/json"}
                )
        answer.headers.setdefault(DEGRADED, "fallback")
        answer.request = self._request
        return answer
