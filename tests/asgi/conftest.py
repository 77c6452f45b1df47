from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _quick_collections() -> Iterator[None]:
    """Keep what was imported out of the garbage collections that these tests ask for."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
