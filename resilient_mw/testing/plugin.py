"""The pytest plugin: fixtures that are there as soon as the package is installed. None is used by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from resilient_mw.testing.clock import ManualClock
from resilient_mw.testing.off import disabled


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test moves it. Give it to a policy with `use_clock()`."""
    return ManualClock()


@pytest.fixture
def resilience_disabled() -> Iterator[None]:
    """Both middlewares pass requests straight to the application while the test runs."""
    with disabled():
        yield
