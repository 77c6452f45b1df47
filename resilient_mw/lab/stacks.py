"""The two stacks on which every step runs, and what they need installed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stack:
    """A framework and a server.

    Attributes:
        name: `wsgi` or `asgi`; selects the number of threads of a step.
        title: for a reader.
        module: what runs as the application's process.
        packages: import names that it needs.
    """

    name: str
    title: str
    module: str
    packages: tuple[str, ...]

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for package in self.packages if importlib.util.find_spec(package) is None]


WSGI = Stack("wsgi", "Flask behind waitress", "resilient_mw.lab.apps_wsgi", ("flask", "waitress", "httpx"))
ASGI = Stack(
    "asgi",
    "FastAPI behind uvicorn, sync endpoints",
    "resilient_mw.lab.apps_asgi",
    ("fastapi", "uvicorn", "httptools", "httpx"),
)
