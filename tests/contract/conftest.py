from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.contract.stacks import Service, serve

Serve = Callable[..., AbstractContextManager[Service]]


@pytest.fixture(params=["asgi", "wsgi"])
def stack(request: pytest.FixtureRequest) -> str:
    """Each stack in turn."""
    name: str = request.param
    return name


@pytest.fixture
def serving(stack: str) -> Serve:
    """Serve the service on each stack in turn."""
    return partial(serve, stack)
