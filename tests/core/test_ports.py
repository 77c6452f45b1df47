"""The registries: what exporters see while others register."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from resilient_mw.core import ports


class Source:
    def __init__(self, name: str) -> None:
        self.name = name

    def snapshot(self) -> Any:
        return SimpleNamespace(app=self.name, dependency=self.name)


@pytest.mark.parametrize(
    ("registry", "register", "read"),
    [
        ("_sources", ports.register, ports.snapshots),
        ("_dependencies", ports.register_dependency, ports.dependency_snapshots),
    ],
    ids=["applications", "dependencies"],
)
def test_one_that_is_registered_while_another_thread_reads_is_seen(
    registry: str,
    register: Callable[[Any], None],
    read: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = [Source(name) for name in "cab"]
    late = [Source("d")]
    sources += late

    class Interleaved(WeakSet[Any]):
        """Another thread gets its turn after the first one was read."""

        def __iter__(self) -> Iterator[Any]:
            for source in super().__iter__():
                yield source
                while late:
                    register(late.pop())

    monkeypatch.setattr(ports, registry, Interleaved())
    for source in sources[:3]:
        register(source)
    assert [snapshot.app for snapshot in read()] == ["a", "b", "c", "d"]
