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
        server: its name.
    """

    name: str
    title: str
    module: str
    packages: tuple[str, ...]
    server: str = ""

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [package for package in self.packages if importlib.util.find_spec(package) is None]


def _flask_behind(server: str, title: str) -> Stack:
    return Stack(
        "wsgi", f"Flask behind {title}", "resilient_mw.lab.apps_wsgi", ("flask", server, "httpx"), server
    )


WSGI = _flask_behind("waitress", "waitress")
WSGI_STACKS = {
    each.server: each
    for each in (WSGI, _flask_behind("gunicorn", "gunicorn, gthread"), _flask_behind("granian", "granian"))
}
"""By the name of the server."""
ASGI = Stack(
    "asgi",
    "FastAPI behind uvicorn, sync endpoints",
    "resilient_mw.lab.apps_asgi",
    ("fastapi", "uvicorn", "httptools", "httpx"),
    "uvicorn",
)
