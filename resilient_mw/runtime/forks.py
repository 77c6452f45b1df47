"""What a forked child must not inherit: a lock that a thread of the parent holds, slots that its requests have taken.

Servers that load an application before they fork workers (gunicorn's `preload_app`) copy everything to each of them: locks as
they are at that instant, but no other thread, so one that was held would stay so for ever. State that belongs to the requests
of the parent is nobody's in the child.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something with locks, or with state that belongs to one process."""

    def forked(self) -> None:
        """Begin anew: this is a child, with one thread."""
        ...


_known: WeakSet[Forked] = WeakSet()
_locks: list[tuple[str, str]] = []


def after_fork(each: Forked) -> None:
    """Have an object begin anew in every child that is forked while it is alive."""
    _known.add(each)


def renew_lock(module: str, name: str) -> None:
    """Have a lock of a module replaced by a new one in every child.

    Args:
        module: its `__name__`.
        name: of the lock in it; the code that uses it looks it up each time.
    """
    _locks.append((module, name))


def _renew() -> None:
    for module, name in _locks:
        setattr(sys.modules[module], name, threading.Lock())
    for each in list(_known):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
