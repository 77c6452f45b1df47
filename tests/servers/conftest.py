from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.processes import Server, listening

SERVERS = ["uvicorn-h11", "uvicorn-httptools", "hypercorn", "granian", "gunicorn", "daphne"]


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each server in turn, with the probe application. It is ended before the next one starts."""
    module = request.param.split("-")[0]
    pytest.importorskip(module)
    with listening(request.param, tmp_path_factory.mktemp("servers")) as running:
        yield running
