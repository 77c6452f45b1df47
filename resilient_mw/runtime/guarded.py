"""Calls of functions: SDKs, SQL, stubs of gRPC. The machine and the drivers are those of the transports.

An attempt is one run of the function. `current()` inside it knows the attempt's deadline, so resilient clients, `check()` and
`remaining()` there obey it. A coroutine is cancelled at that instant; a function in a thread cannot be: what it returns
late is returned, and counted as an attempt that took too long.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from types import CoroutineType
from typing import Any

from resilient_mw.calls.attempt import EARLY
from resilient_mw.calls.bulkhead import Waiter
from resilient_mw.calls.call import Call
from resilient_mw.calls.dependency import Dependency
from resilient_mw.calls.events import Action, Deliver, Expire, Failure, Head, Phase, Refuse, Start
from resilient_mw.calls.guarded import ANSWER, FUNCTION, OVERRUN, Effect, effect_of, told
from resilient_mw.core.call_watch import WATCHES
from resilient_mw.core.errors import CallRefused, DeadlineExceeded, RequestCancelled, ResilienceWarning
from resilient_mw.runtime import drive_async, drive_sync
from resilient_mw.runtime.context import current
from resilient_mw.runtime.dependency_owner import DependencyOwner, owner_of
from resilient_mw.runtime.fallbacks import NOTHING, ends_at, kept_value
from resilient_mw.runtime.guarded_errors import CallExpired, expired_message, refused_why
from resilient_mw.runtime.slot_waits import check_wanted, pause_task, pause_thread
from resilient_mw.runtime.watched import watched
from resilient_mw.runtime.within import Within


class Guarding:
    """How functions of one dependency are called: made by `Dependency.guard()`, and a decorator itself.

    Args:
        dependency: the dependency.
        idempotent: whether a function may run a second time although the dependency may have acted on the first one.
    """

    __slots__ = ("_idempotent", "_owner")

    def __init__(self, dependency: Dependency, *, idempotent: bool = False) -> None:
        self._owner = owner_of(dependency)
        self._idempotent = idempotent

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function and return what it returns; see `Dependency.call`."""
        owner = watched(self._owner, http=False) if WATCHES else self._owner
        run = SyncRun(owner, self._idempotent, fn, args, kwargs)
        kept = kept_value(self._owner, fn, args, kwargs, kept=self._idempotent)
        if kept is None:
            return run.outcome(drive_sync.drive(owner, run.call, run))
        try:
            return kept.keep(run.outcome(drive_sync.drive(owner, run.call, run)))
        except Exception as error:
            answer = NOTHING if run.passes(error) else kept.instead(error)
            if answer is NOTHING:
                raise
            return answer

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Await what a function returns; see `Dependency.acall`."""
        owner = watched(self._owner, http=False) if WATCHES else self._owner
        run = AsyncRun(owner, self._idempotent, fn, args, kwargs)
        kept = kept_value(self._owner, fn, args, kwargs, kept=self._idempotent)
        if kept is None:
            return run.outcome(await drive_async.drive(owner, run.call, run))
        try:
            return kept.keep(run.outcome(await drive_async.drive(owner, run.call, run)))
        except Exception as error:
            answer = NOTHING if run.passes(error) else await kept.ainstead(error)
            if answer is NOTHING:
                raise
            return answer

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function guarded: each call of it is a call to the dependency.

        Raises:
            TypeError: it is no function, or a generator function.
        """
        if not callable(function):
            raise TypeError(f"Dependency.guard takes a function, and not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"Dependency.guard cannot guard the generator function {function!r}: its body runs where it is read. "
                "Guard the function that reads it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def acall(*args: Any, **kwargs: Any) -> Any:
                return await self.acall(function, *args, **kwargs)

            return acall

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, *args, **kwargs)

        return call


class Run:
    """One call: what the two halves have in common.

    Args:
        owner: the owner of the dependency's state.
        idempotent: whether the function may be repeated.
        function: what is called.
        args, kwargs: with what.

    Attributes:
        call: the call machine.
        answered: whether what the last attempt raised counts as an answer.
    """

    def __init__(
        self,
        owner: DependencyOwner,
        idempotent: bool,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        now = owner.clock.now()
        heard = owner.dependency.fields.heard
        self.call = Call(
            owner.state,
            FUNCTION,
            deadline_at=ends_at(owner.dependency, now),
            keyed=idempotent,
            owned=heard is not None and current().retry_owner(heard) is not None,
        )
        self._owner = owner
        self._idempotent = idempotent
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._until = math.inf
        self._value: Any = None
        self._error: Exception | None = None
        self.answered = False

    def passes(self, error: Exception) -> bool:
        """Return whether nothing stands in for an error: it is an answer, or the request is cancelled."""
        return self.answered or isinstance(error, RequestCancelled)

    def begins(self, start: Start) -> Within:
        """Take note of an attempt that begins; return the scope of it."""
        self._value = self._error = None
        self.answered = False
        self._until = self._owner.clock.now() + start.timeout
        # Clients inside would multiply its attempts: where the function may run again, they hear so.
        again = self._owner.dependency.fields.repeats(start.number) if self._idempotent else None
        return Within(current(), start.timeout, again)

    def broke(self, error: Exception) -> Head | Failure:
        """Keep what the function raised; return what it says."""
        self._error = error
        if type(error) is DeadlineExceeded and self._owner.clock.now() >= self._until - EARLY:
            self._error = self._overdue(error)
        dependency = self._owner.dependency
        excluded = () if dependency.breaker is None else tuple(dependency.breaker.exclude)
        try:
            effect = effect_of(dependency.exceptions, error, excluded)
        except Exception as mistake:  # noqa: BLE001  code of the user
            # Whatever the hook thinks, the caller is to see what his function raised.
            warnings.warn(
                f"Dependency({dependency.name!r}).exceptions could not say what {error!r} means: {mistake!r}. "
                "It counts as failed",
                ResilienceWarning,
                stacklevel=2,
            )
            effect = Effect.FAILED
        self.answered = effect is Effect.ANSWERED
        return told(effect, error, dependency.fields.retry_if)

    def outcome(self, action: Action) -> Any:
        """Return what the last attempt returned.

        Raises:
            CallExpired: the caller's budget is over.
            CallRefused: the function was not called (again).
            Exception: what the last attempt raised.
        """
        # What is raised knows this frame: it must not know the error in turn, or both wait for a collection.
        error, value, raised = self._error, self._value, None
        self._error = self._value = None
        try:
            if isinstance(action, Deliver):
                late = self._owner.clock.now() >= self._until
                self._owner.end(self.call, OVERRUN if late else None)
                if error is None:
                    return value
                raise error
            raised = self._raised(action, error)
            if raised is error:
                raise raised
            raise raised from error
        finally:
            del error, raised

    def _raised(self, action: Action, error: Exception | None) -> Exception:
        name = self._owner.dependency.name
        if isinstance(action, Expire):
            message = expired_message(name, action.phase, self.call.attempts)
            return CallExpired(message, action.phase, name)
        if isinstance(action, Refuse):
            made = (
                f"{action.attempts} attempt(s) were made before" if action.attempts else "It was not called"
            )
            why = refused_why(self._owner.dependency, action)
            return CallRefused(f"{why}. {made}", action.reason, name, action.retry_in)
        return error or RuntimeError(f"the call ended with {action!r} and without an error")

    def _overdue(self, error: DeadlineExceeded) -> CallExpired:
        dependency = self._owner.dependency
        overdue = CallExpired(
            f"attempt {self.call.attempts} at {dependency.name!r} was not over in time: "
            f"Dependency(timeout={dependency.timeout}) and the caller's budget bound it",
            Phase.HEAD,
            dependency.name,
        )
        overdue.__cause__ = error
        return overdue


class SyncRun(Run):
    """A call from a thread: what the driver is given."""

    def attempt(self, start: Start) -> Head | Failure:
        """Run the function once."""
        try:
            with self.begins(start):
                value = self._function(*self._args, **self._kwargs)
        except RequestCancelled:
            raise
        except Exception as error:  # noqa: BLE001  whatever the function raises
            return self.broke(error)
        if isinstance(value, CoroutineType):
            value.close()
            self.answered = True  # A mistake of the caller: nothing stands in for it.
            raise TypeError(f"{self._function!r} is a coroutine function: use acall() for it")
        self._value = value
        return ANSWER

    def discard(self, number: int) -> None:  # noqa: ARG002  there is one at a time
        """Let go of what the last attempt returned."""
        self._value = None

    def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant, or until a waiter is granted its slot."""
        pause_thread(until - self._owner.clock.now(), waiter)
        check_wanted()


class AsyncRun(Run):
    """A call from a coroutine: what the driver is given."""

    async def attempt(self, start: Start) -> Head | Failure:
        """Run the function once; it is cancelled when the attempt's time is over."""
        try:
            async with self.begins(start):
                self._value = await self._function(*self._args, **self._kwargs)
        except RequestCancelled:
            raise
        except Exception as error:  # noqa: BLE001  whatever the function raises
            return self.broke(error)
        return ANSWER

    async def discard(self, number: int) -> None:  # noqa: ARG002  there is one at a time
        """Let go of what the last attempt returned."""
        self._value = None

    async def sleep(self, until: float, waiter: Waiter | None = None) -> None:
        """Wait until an instant, or until a waiter is granted its slot."""
        await pause_task(until - self._owner.clock.now(), waiter)
        check_wanted()
