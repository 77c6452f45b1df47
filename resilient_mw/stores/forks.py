"""What a forked child must not inherit of a store: its lock, its connections."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something with locks or connections."""

    def forked(self) -> None:
        """Begin anew: this is a child, with one thread."""
        ...


_known: WeakSet[Forked] = WeakSet()


def after_fork(each: Forked) -> None:
    """Have an object begin anew in every child that is forked while it is alive."""
    _known.add(each)


def _renew() -> None:
    for each in list(_known):
        each.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
