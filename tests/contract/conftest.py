from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.contract.stacks import Service, serve

Serve = Callable[..., AbstractContextManager[Service]]


@pytest.fixture(params=["asgi", "wsgi"])
def serving(request: pytest.FixtureRequest) -> Serve:
    """Serve the service on each stack in turn."""
    return partial(serve, request.param)
