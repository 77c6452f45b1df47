"""Tells the dependencies who calls functions for them, without loading it before somebody does."""

from __future__ import annotations

from typing import Any

from resilient_mw.core import ports


def _make(dependency: Any, idempotent: bool) -> ports.FunctionCalls:
    from resilient_mw.runtime.guarded import Guarding

    return Guarding(dependency, idempotent=idempotent)


def use_guards() -> None:
    """Have `Dependency.call`, `acall` and `guard` work; called once, by the package itself."""
    ports.use_function_calls(_make)
