"""What stands in for the error of a call: the function of the user, inside what is left of the budget, or the value."""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable
from contextlib import suppress
from types import CoroutineType
from typing import Any

from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.fallback import UNSET, Fallback, Kept
from resilient_mw.core.errors import RequestCancelled
from resilient_mw.runtime.context import current
from resilient_mw.runtime.dependency_owner import DependencyOwner
from resilient_mw.runtime.within import Within

NOTHING: Any = object()
"""There is no fallback: the error is raised."""


def ends_at(dependency: Dependency, now: float) -> float:
    """Return the instant at which the answer to a call that begins now becomes worthless."""
    left = current().remaining()
    if left == math.inf and dependency.total_timeout is not None:
        left = dependency.total_timeout
    return now + left


class Standby:
    """Stands by while one call is made.

    Args:
        owner: the owner of the dependency's state.
        policy: its fallback.
    """

    __slots__ = ("_ends_at", "_policy", "owner")

    def __init__(self, owner: DependencyOwner, policy: Fallback) -> None:
        self.owner = owner
        self._policy = policy
        self._ends_at = ends_at(owner.dependency, owner.clock.now())

    def left(self) -> float:
        """Return the seconds that a function may take."""
        return max(0.0, min(self._ends_at - self.owner.clock.now(), current().remaining()))

    def instead(self, error: Exception) -> tuple[str, Any]:
        """Return what stands in for an error, and its kind; `NOTHING` if there is nothing.

        A function that breaks, or for which no time is left, has no answer: the value is next, then the error itself.

        Raises:
            TypeError: the function is an async one, and this is a thread.
        """
        function, left = self._policy.function, self.left()
        if function is not None and left > 0:
            try:
                with Within(current(), left):
                    answer = function(error, left)
            except RequestCancelled:
                raise
            except Exception as mistake:  # noqa: BLE001  the error of the call is what the caller is to see
                self._broke(error, mistake)
            else:
                if isinstance(answer, CoroutineType):
                    answer.close()
                    raise TypeError("Fallback.function is an async one: it can be used in coroutines only")
                if answer is not None:
                    return self._counted("function", answer)
        return self._value()

    async def ainstead(self, error: Exception) -> tuple[str, Any]:
        """Return what stands in for an error, in a coroutine; an async function is cancelled when no time is left."""
        function, left = self._policy.function, self.left()
        if function is not None and left > 0:
            try:
                async with Within(current(), left):
                    answer = function(error, left)
                    if inspect.isawaitable(answer):
                        answer = await answer
            except RequestCancelled:
                raise
            except Exception as mistake:  # noqa: BLE001  the error of the call is what the caller is to see
                self._broke(error, mistake)
            else:
                if answer is not None:
                    return self._counted("function", answer)
        return self._value()

    def _value(self) -> tuple[str, Any]:
        if self._policy.value is UNSET:
            return "", NOTHING
        return self._counted("value", self._policy.value)

    def _counted(self, kind: str, answer: Any) -> tuple[str, Any]:
        self.owner.fell_back(kind)
        return kind, answer

    def _broke(self, error: Exception, mistake: Exception) -> None:
        self.owner.fell_back("failed")
        error.add_note(f"the fallback of {self.owner.dependency.name!r} did not help: {mistake!r}")


class KeptValue:
    """The last good value of a guarded function, by its arguments.

    Args:
        standby: who stands by.
        function: what is called.
        args, kwargs: with what; nothing is kept if they cannot be hashed.
        kept: whether it may be kept at all: only what reads, and that is what may be repeated.
    """

    __slots__ = ("_key", "_owner", "_standby")

    def __init__(
        self, standby: Standby, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, kept: bool
    ) -> None:
        self._standby = standby
        self._owner = standby.owner
        self._key: Hashable = None
        if kept and self._owner.state.last_good is not None:
            self._key = _key(function, args, kwargs)

    def keep(self, value: Any) -> Any:
        """Keep a good value, and return it."""
        if self._key is not None:
            with suppress(Exception):  # The comparison may break: the value is good all the same.
                self._owner.keep(self._key, Kept(value, self._owner.clock.now()))
        return value

    def instead(self, error: Exception) -> Any:
        """Return what stands in for an error; `NOTHING` if there is nothing."""
        kept = self._last_good()
        return self._standby.instead(error)[1] if kept is None else kept.answer

    async def ainstead(self, error: Exception) -> Any:
        """Return what stands in for an error, in a coroutine; `NOTHING` if there is nothing."""
        kept = self._last_good()
        return (await self._standby.ainstead(error))[1] if kept is None else kept.answer

    def _last_good(self) -> Kept | None:
        kept: Kept | None = None
        if self._key is not None:
            with suppress(Exception):
                kept = self._owner.last_good(self._key)
        if kept is not None:
            self._owner.fell_back("stale")
        return kept


def kept_value(
    owner: DependencyOwner, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, kept: bool
) -> KeptValue | None:
    """Return who stands by while a function is called; None: its dependency has no fallback."""
    policy = owner.dependency.fallback
    return None if policy is None else KeptValue(Standby(owner, policy), function, args, kwargs, kept=kept)


def _key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """Return the key of a call; None: it has none, because something in it cannot be hashed."""
    try:
        key = (function, args, frozenset(kwargs.items()))
        hash(key)
    except Exception:  # noqa: BLE001  code of the user
        return None
    return key
