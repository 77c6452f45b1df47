"""Chance: a generator of its own for each question, so that the answers to one do not change those to another."""

from __future__ import annotations

from random import Random


def generator(seed: int, purpose: str) -> Random:
    """Return the generator for one purpose: the same for the same seed, in every process."""
    return Random(f"{seed}/{purpose}")  # noqa: S311  it must be repeatable, not secret
