"""The rules of the house: who may import whom, where third-party code lives, and where time and chance do.

`violations(root)` gives one line for each broken rule. `pyproject.toml` holds the same floors for
import-linter, which also follows chains of imports; this file knows what import-linter cannot say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source_tree import ROOT, Import, Module, loose_modules, shipped_modules

CORE = "resilient_mw"
INTEGRATIONS = "resilient_mw_integrations"

FLOORS = {
    "core": 0,
    "admission": 1,
    "calls": 1,
    "idempotency": 1,
    "runtime": 2,
    "stores": 2,
    "simulation": 2,
    "asgi": 3,
    "wsgi": 3,
    "transport": 3,
    "transactions": 3,
    "lab": 4,
    "testing": 4,
    "cli": 4,
}
# Rooms of one floor do not know each other; the command is there to start the lab.
MAY_KNOW_ITS_PEER = {("cli", "lab")}
# What the public face, `resilient_mw/__init__.py`, is made of.
BEHIND_THE_FACE = {"core", "admission", "calls", "idempotency", "runtime"}
# Who may use the public face: below it, an import of it would be an import upwards.
LOWEST_FLOOR_ABOVE_THE_FACE = 4
# The lab is a user: it types what a user types.
LAB_MAY_USE = {"asgi", "wsgi", "transport"}
LAB_MAY_USE_OF_THE_INTEGRATIONS = {"resilient_mw_integrations.httpx"}
# Modules directly under the package that stand on no floor, since they import nothing.
FLOORLESS = {"_version"}

PURE_ROOMS = {"core", "admission", "calls", "idempotency", "simulation"}
IMPURE = {
    "_thread",
    "asyncio",
    "concurrent",
    "contextvars",
    "logging",
    "multiprocessing",
    "os",
    "queue",
    "random",
    "sched",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "threading",
    "time",
}
# A simulation makes its own seeded generators; the module's shared functions stay out of reach there, too.
SEEDED_GENERATOR = "random.Random"

THE_CLOCK = f"{CORE}.runtime.clocks"
PYTEST_PLUGIN = f"{CORE}.testing.plugin"
ASGI_TYPES = "asgiref"
LAB_PACKAGES = {
    "anyio",
    "fastapi",
    "flask",
    "granian",
    "gunicorn",
    "httptools",
    "httpx",
    "starlette",
    "uvicorn",
    "uvloop",
    "waitress",
    "werkzeug",
}
# A module of the integrations has the package of its own name; these are known under more names than one.
FAMILIES = {
    "fastapi": {"fastapi", "starlette"},
    "flask": {"click", "flask", "werkzeug"},
    "httpx": {"httpx", "httpcore"},
    "httpx2": {"httpx2", "httpcore2"},
    "limits": {"limits", "redis", "valkey"},
    "postgres": {"psycopg", "psycopg_pool"},
    "prometheus": {"prometheus_client"},
    "uvicorn": {"uvicorn", "httptools"},
    "requests": {"requests", "urllib3"},
    "quart": {"quart", "werkzeug"},
    # Private modules that only the integrations of these packages import.
    "_aiohttp_bodies": {"aiohttp"},
    "_aiohttp_calls": {"aiohttp"},
    "_postgres_lines": {"psycopg", "psycopg_pool"},
    "_psycopg_budget": {"psycopg"},
    "_urllib3_bodies": {"urllib3"},
    "_urllib3_calls": {"urllib3"},
    "_urllib3_wire": {"urllib3"},
    "_werkzeug_pages": {"werkzeug"},
    "_werkzeug_rules": {"werkzeug"},
}


def violations(root: Path = ROOT) -> list[str]:
    """Name every broken rule of a tree, as `file:line: what is wrong`."""
    found = []
    for module in shipped_modules(root):
        where = module.path.relative_to(root)
        if module.package == CORE and module.room not in {"", *FLOORS, *FLOORLESS}:
            found.append(f"{where}:1: {module.name} stands on no floor")
        for imported in module.imports():
            found += [f"{where}:{imported.line}: {wrong}" for wrong in _broken_by(module, imported)]
    for module in loose_modules(root):
        where = module.path.relative_to(root)
        for imported in module.imports():
            found += [f"{where}:{imported.line}: {wrong}" for wrong in _second_copy(imported)]
    return found


def _broken_by(module: Module, imported: Import) -> Iterator[str]:
    if imported.relative:
        yield f"relative import of {imported.target}"
    yield from _second_copy(imported)
    if imported.top in {CORE, INTEGRATIONS}:
        yield from _floors(module, imported)
    elif imported.top in sys.stdlib_module_names:
        yield from _purity(module, imported)
    elif imported.top != "integrations":
        yield from _third_party(module, imported)


def _second_copy(imported: Import) -> Iterator[str]:
    if imported.top == "integrations":
        yield f"{imported.target} loads a second copy of every class; import {INTEGRATIONS}"


def _floors(module: Module, imported: Import) -> Iterator[str]:
    parts = imported.target.split(".")
    room = parts[1] if len(parts) > 1 and parts[1] in {*FLOORS, *FLOORLESS} else ""
    same_room = imported.top == module.package and room == module.room
    if not same_room:
        yield from _private(module, imported)
    if not same_room and room not in FLOORLESS and module.package == CORE:
        yield from _upwards(module, imported, room)


def _private(module: Module, imported: Import) -> Iterator[str]:
    if module.package == imported.top == INTEGRATIONS:
        return
    for part in imported.target.split("."):
        if part.startswith("_") and not part.endswith("__") and part not in FLOORLESS:
            yield f"{imported.target} is private ({part})"


def _upwards(module: Module, imported: Import, room: str) -> Iterator[str]:
    if imported.top == INTEGRATIONS:
        module_of = ".".join(imported.target.split(".")[:2])
        if module.room != "lab" or module_of not in LAB_MAY_USE_OF_THE_INTEGRATIONS:
            yield f"{module.name} may not know the integrations"
    elif module.name == CORE:
        if room not in BEHIND_THE_FACE:
            yield f"the public face is not made of {room}"
    elif module.room not in FLOORS:
        yield f"{module.name} stands on no floor and may import nothing of ours"
    elif not room:
        if FLOORS[module.room] < LOWEST_FLOOR_ABOVE_THE_FACE:
            yield f"{module.room} is below the public face"
    elif module.room == "lab" and room not in LAB_MAY_USE:
        yield f"the lab uses public names only, not {imported.target}"
    elif FLOORS[room] >= FLOORS[module.room] and (module.room, room) not in MAY_KNOW_ITS_PEER:
        yield f"{module.room} may not know {room}, which is not below it"


def _purity(module: Module, imported: Import) -> Iterator[str]:
    if imported.typing_only:
        return
    seeded = module.room == "simulation" and imported.target == SEEDED_GENERATOR
    if module.package == CORE and module.room in PURE_ROOMS and imported.top in IMPURE and not seeded:
        yield f"{module.room} is pure and may not import {imported.top}"
    elif imported.top == "time" and module.name != THE_CLOCK and module.room != "lab":
        yield f"only {THE_CLOCK} imports time"


def _third_party(module: Module, imported: Import) -> Iterator[str]:
    if imported.top == ASGI_TYPES:
        if not imported.typing_only:
            yield f"{ASGI_TYPES} is for types only: import it under TYPE_CHECKING"
        return
    if module.package == INTEGRATIONS:
        own = FAMILIES.get(module.room, set() if module.room.startswith("_") else {module.room})
        if imported.top not in own:
            yield f"{module.name} may import {', '.join(sorted(own)) or 'no other package'}, not {imported.top}"
    elif module.room == "lab":
        if imported.top not in LAB_PACKAGES:
            yield f"{imported.top} is not one of the packages of the lab"
    elif not (module.name == PYTEST_PLUGIN and imported.top in {"pytest", "pytest_asyncio"}):
        yield f"{CORE} imports no third-party package such as {imported.top}"
