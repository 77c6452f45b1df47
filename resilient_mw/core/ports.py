"""Ports: what the outside may plug in, and where exporters find what runs in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Literal, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from resilient_mw.core.dependency_snapshot import DependencySnapshot
from resilient_mw.core.idempotency_snapshot import IdempotencySnapshot
from resilient_mw.core.jobs_snapshot import JobsSnapshot
from resilient_mw.core.snapshot import AppSnapshot


class Clock(Protocol):
    """The one clock: a source of monotonic seconds."""

    def now(self) -> float:
        """Return monotonic seconds. Never goes back; its zero means nothing."""
        ...


class SnapshotSource(Protocol):
    """Something that can tell its figures at any time, from any thread."""

    def snapshot(self) -> AppSnapshot:
        """Return the figures of this instant."""
        ...


class DependencySource(Protocol):
    """Something that can tell the figures of a dependency at any time, from any thread."""

    def snapshot(self) -> DependencySnapshot:
        """Return the figures of this instant."""
        ...


class JobsSource(Protocol):
    """A queue of jobs that can tell its figures at any time, from any thread."""

    def snapshot(self) -> JobsSnapshot:
        """Return the figures of this instant."""
        ...


class IdempotencySource(Protocol):
    """Idempotency keys of an application that can tell their figures at any time, from any thread."""

    def snapshot(self) -> IdempotencySnapshot:
        """Return the figures of this instant."""
        ...


Hand = Literal["open", "close", "reset"]
"""What somebody can do to a circuit."""


class CircuitOwner(DependencySource, Protocol):
    """A source whose circuit can be opened and closed by hand, from any thread."""

    def by_hand(self, hand: Hand) -> None:
        """Do it."""
        ...


class PoolSource(Protocol):
    """A pool of connections that can tell at any time, from any thread, how long they were waited for."""

    def waits(self) -> tuple[int, int, float]:
        """Return how many have come and no longer wait, how many wait, and the seconds waited in all, up to now."""
        ...


P = ParamSpec("P")
R = TypeVar("R")


class FunctionCalls(Protocol):
    """Calls functions for a dependency, and is a decorator that has it called like this."""

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function and return what it returns."""
        ...

    async def acall(self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Await what a function returns."""
        ...

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function guarded."""
        ...


class MakeFunctionCalls(Protocol):
    """Makes what calls the functions of a dependency."""

    def __call__(self, dependency: object, idempotent: bool) -> FunctionCalls:
        """Return it."""
        ...


SourceT = TypeVar("SourceT")

_sources: WeakSet[SnapshotSource] = WeakSet()
_dependencies: WeakSet[DependencySource] = WeakSet()
_pools: WeakSet[PoolSource] = WeakSet()
_jobs: WeakSet[JobsSource] = WeakSet()
_idempotency: WeakSet[IdempotencySource] = WeakSet()
_makers: list[MakeFunctionCalls] = []
_clocks: list[Clock] = []


def register(source: SnapshotSource) -> None:
    """Make a source visible to exporters for as long as it is alive."""
    _sources.add(source)


def snapshots() -> Iterable[AppSnapshot]:
    """Return the figures of every live source, in a stable order."""
    return sorted((source.snapshot() for source in _alive(_sources)), key=lambda snapshot: snapshot.app)


def register_dependency(source: DependencySource) -> None:
    """Make a dependency visible to exporters for as long as it is alive."""
    _dependencies.add(source)


def dependency_snapshots() -> Iterable[DependencySnapshot]:
    """Return the figures of every live dependency, in a stable order."""
    return sorted(
        (source.snapshot() for source in _alive(_dependencies)), key=lambda snapshot: snapshot.dependency
    )


def dependency_sources() -> list[DependencySource]:
    """Return every live dependency itself, in no particular order."""
    return _alive(_dependencies)


def register_pool(source: PoolSource) -> None:
    """Have the waits for a pool's connections count for the overload of this process, for as long as it is alive."""
    _pools.add(source)


def pool_sources() -> list[PoolSource]:
    """Return every live pool, in no particular order."""
    return _alive(_pools)


def register_jobs(source: JobsSource) -> None:
    """Make a queue of jobs visible to exporters for as long as it is alive."""
    _jobs.add(source)


def jobs_snapshots() -> Iterable[JobsSnapshot]:
    """Return the figures of every live queue of jobs, in a stable order."""
    return sorted((source.snapshot() for source in _alive(_jobs)), key=lambda snapshot: snapshot.jobs)


def register_idempotency(source: IdempotencySource) -> None:
    """Make the idempotency keys of an application visible to exporters for as long as the source is alive."""
    _idempotency.add(source)


def idempotency_snapshots() -> Iterable[IdempotencySnapshot]:
    """Return the figures of every live source, in a stable order."""
    return sorted((source.snapshot() for source in _alive(_idempotency)), key=lambda snapshot: snapshot.app)


def use_function_calls(maker: MakeFunctionCalls) -> None:
    """Have the functions of dependencies called by what this makes."""
    _makers[:] = [maker]


def function_calls(dependency: object, *, idempotent: bool) -> FunctionCalls:
    """Return what calls the functions of a dependency.

    Raises:
        RuntimeError: nothing in this process can.
    """
    if not _makers:
        raise RuntimeError("nothing here calls functions: import resilient_mw first")
    return _makers[0](dependency, idempotent)


def use_process_clock(clock: Clock) -> None:
    """Have those who may not read the time themselves get this clock."""
    _clocks[:] = [clock]


def process_clock() -> Clock:
    """Return the monotonic clock of this process.

    Raises:
        RuntimeError: nothing in this process has one.
    """
    if not _clocks:
        raise RuntimeError("nothing here tells the time: import resilient_mw first")
    return _clocks[0]


def _alive(sources: WeakSet[SourceT]) -> list[SourceT]:
    """Return the sources that are alive, also while another thread registers one."""
    while True:
        try:
            return list(sources)
        except RuntimeError:  # "Set changed size during iteration": then it has one more now.
            continue
