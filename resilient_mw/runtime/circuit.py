"""A circuit breaker of its own, for anything that can be called: the machine of `Dependency(breaker=...)`, without HTTP.

While the circuit is closed and nothing is due, a call takes the machine's short way: no lock, and nothing to wait for. The
lock is held for decisions alone, never over a call or a listener. An outcome is never waited for either: it goes into a
list, which whoever has the lock works off, so a finalizer may end a call at any time, in any thread.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from resilient_mw.calls.breaker import SHADOW, Breaker, BreakerState, Permit
from resilient_mw.calls.breaker_policy import BreakerPolicy
from resilient_mw.calls.classify import classify_exception
from resilient_mw.core import ports
from resilient_mw.core.checks import require_function, require_name
from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.errors import CallRefused
from resilient_mw.core.ports import Clock
from resilient_mw.core.rejection import Reason
from resilient_mw.core.snapshot import Histogram
from resilient_mw.runtime.circuit_news import tell_listeners
from resilient_mw.runtime.circuit_wraps import wrapped
from resilient_mw.runtime.clocks import MONOTONIC
from resilient_mw.runtime.forks import after_fork

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

ONE_AT_A_TIME: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether the interpreter runs one thread at a time, which the short way relies on."""
OUTCOMES = {True: "error", False: "ok", None: "cancelled"}


class CircuitBreaker:
    """A circuit breaker around functions, generators and blocks. Safe in any thread and any event loop.

    As a decorator it takes functions, async functions, generators and async generators; a call of the latter two lasts
    until they end. `with breaker:` and `async with breaker:` guard a block, `call` and `acall` a single call.

    Args:
        name: a stable name, also a metric label.
        policy: when it opens and closes.
        classify: given an exception, whether it is a failure: True, False, or None for one that says nothing. Without
            it every `Exception` is a failure but those of `policy.exclude` and those of this package.
        clock: the one clock.
        rng: source of jitter.

    Raises:
        ValueError: naming the field, the value and the allowed range.
    """

    def __init__(
        self,
        name: str,
        policy: BreakerPolicy | None = None,
        *,
        classify: Callable[[BaseException], bool | None] | None = None,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
    ) -> None:
        require_name("CircuitBreaker.name", name)
        if policy is not None and not isinstance(policy, BreakerPolicy):
            raise ValueError(
                f"CircuitBreaker.policy={policy!r} is not allowed: it must be a BreakerPolicy or None"
            )
        if classify is not None:
            require_function("CircuitBreaker.classify", classify, "the exception")
        self.name = name
        self.policy = policy or BreakerPolicy()
        self.now = clock.now
        self.machine = Breaker(self.policy, rng or random.SystemRandom())
        self.numbered = self.policy.slow_after is not None
        self.short = ONE_AT_A_TIME
        self._classify = classify
        self._outcomes: Counter[str] = Counter()
        self._refused = 0
        self._lock = threading.Lock()
        self._decides = 0
        self._ended: deque[tuple[float, Permit, bool | None]] = deque()
        self._blocks: ContextVar[tuple[Permit, ...]] = ContextVar(f"circuit of {name}", default=())
        ports.register_dependency(self)
        after_fork(self)

    # -- use -----------------------------------------------------------------------------------------------------------

    def __call__(self, function: F) -> F:
        """Guard a function, async function, generator or async generator."""
        return wrapped(self, function)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function.

        Raises:
            CallRefused: the circuit is open.
        """
        with self:
            return function(*args, **kwargs)

    async def acall(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an async function. See `call`."""
        with self:
            return await function(*args, **kwargs)

    def __enter__(self) -> Self:
        self._blocks.set((*self._blocks.get(), self.begin()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permits = self._blocks.get()
        if not permits:
            return  # left in another context than it was entered in: the lease ends it
        self._blocks.set(permits[:-1])
        self.end(permits[-1], error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    # -- by hand -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> BreakerState:
        """Where it stands."""
        return self.machine.state

    def open(self) -> None:
        """Refuse everything until `close` or `reset`."""
        self._decide(self.machine.open)

    def close(self) -> None:
        """Let everything through until `open` or `reset`, whatever fails."""
        self._decide(self.machine.close)

    def reset(self) -> None:
        """Judge again, beginning closed and with nothing counted."""
        self._decide(self.machine.reset)

    def snapshot(self) -> DependencySnapshot:
        """Return the figures of this instant. Calls of the short way are known as `ok` once they are counted."""
        self._decide(self.machine.notice)
        machine = self.machine
        attempts = dict(self._outcomes)
        attempts["ok"] = attempts.get("ok", 0) + machine.recent.short
        return DependencySnapshot(
            dependency=self.name,
            calls=sum(attempts.values()) + self._refused,
            attempts=attempts,
            retries=0,
            refused={Reason.CIRCUIT_OPEN.value: self._refused} if self._refused else {},
            retries_refused={},
            expired={},
            in_use=len(machine.recent.running),
            bulkhead=None,
            breaker=machine.state.value,
            transitions=dict(machine.counts),
            recent_transitions=tuple(machine.transitions),
            seconds=Histogram(),
            budgets=Histogram(),
            circuit=machine.figures(),
        )

    def forked(self) -> None:
        """Begin anew in a forked child: calls, lock and counts are the parent's."""
        self._lock = threading.Lock()
        self._decides = 0
        self._ended.clear()
        self._outcomes.clear()
        self._refused = 0
        self.machine.anew()

    # -- one call: for the wrappers ------------------------------------------------------------------------------------

    def begin(self) -> Permit:
        """Return the permit of one call.

        Raises:
            CallRefused: the circuit is open.
        """
        if self._decides == threading.get_ident():
            # A finalizer that runs while this very thread decides: there is no answer to wait for.
            permit = SHADOW if self.machine.state is BreakerState.CLOSED else None
            retry_in = 0.0
        else:
            now = self.now()
            with self._lock:
                self._decides = threading.get_ident()
                try:
                    self._work_off()
                    permit = self.machine.ask(now)
                    retry_in = self.machine.retry_in(now)
                finally:
                    self._decides = 0
            self._afterwards()
        if permit is None:
            self._refused += 1
            raise CallRefused(
                f"the circuit {self.name!r} is {self.machine.state.value}: the call was not made. Come back in "
                f"{retry_in:.3g} s, give an answer without it, or change its BreakerPolicy",
                Reason.CIRCUIT_OPEN,
                self.name,
                retry_in,
            )
        return permit

    def end(self, permit: Permit, error: BaseException | None) -> None:
        """Tell how a call ended; never waits."""
        failed: bool | None = False
        if error is not None:
            failed = self._judged(error)
        self._ended.append((self.now(), permit, failed))
        self._afterwards()

    def _judged(self, error: BaseException) -> bool | None:
        if self._classify is None or not isinstance(error, Exception):
            return classify_exception(error, self.policy.exclude)
        try:
            failed = self._classify(error)
            return None if failed is None else bool(failed)
        except Exception:  # noqa: BLE001  the caller is owed the error of the call, not this one
            self.machine.failed_listeners += 1
            return None

    def _decide(self, verb: Callable[[float], None]) -> None:
        with self._lock:
            self._decides = threading.get_ident()
            try:
                self._work_off()
                verb(self.now())
            finally:
                self._decides = 0
        self._afterwards()

    def _work_off(self) -> None:
        while self._ended:
            now, permit, failed = self._ended.popleft()
            self._outcomes[OUTCOMES[failed]] += 1
            self.machine.record(now, permit, failed=failed)

    def _afterwards(self) -> None:
        """Work off what has ended, unless somebody else is at it and will, and tell the listeners."""
        while self._ended and self._lock.acquire(blocking=False):
            self._decides = threading.get_ident()
            try:
                self._work_off()
            finally:
                self._decides = 0
                self._lock.release()
        if self.machine.untold and self._decides != threading.get_ident():
            machine = self.machine
            machine.failed_listeners += tell_listeners(self.name, machine.untold, self.policy.listeners)
