from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import threading
from collections.abc import AsyncIterator

import hypothesis  # noqa: F401  its plugin imports it at the end, and then finds nobody who refers to what was frozen
import pytest
from hypothesis import HealthCheck, settings

from resilient_mw.core import marks
from tests.own_time import own_time_of

# Some tests send themselves, or a process of theirs, what Ctrl-C sends. A runner in the background has that signal ignored,
# and so would everything it starts.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that a busy machine holds up for half a second is no finding.
settings.register_profile("of any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("of any speed")


def pytest_collection_finish() -> None:
    """Forget what test modules marked while they were imported: one process imports them all, and serves few of them."""
    marks._marked.clear()


@pytest.hookimpl(trylast=True)  # after the fixtures
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave what a finished module has made out of later collections: after some thousand tests each would stop time for long."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture
async def own_time(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Give a test, all of which is in one event loop, a time that no busy machine moves. Not for those `in_real_time`."""
    in_a_loop = inspect.iscoroutinefunction(request.function)
    if not in_a_loop or request.node.get_closest_marker("in_real_time") is not None:
        yield
        return
    with own_time_of(asyncio.get_running_loop()):
        yield
