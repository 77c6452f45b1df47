"""The floors hold: imports go down only, third-party code and time stay where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.floor_rules import FLOORS, violations
from tests.architecture.source_tree import ROOT, shipped_modules

WRONG = {
    "upwards": (
        "resilient_mw/core/bad.py",
        "from resilient_mw.runtime import clocks",
        "core may not know runtime",
    ),
    "upwards for types": (
        "resilient_mw/core/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from resilient_mw.asgi import middleware",
        "core may not know asgi",
    ),
    "upwards inside a function": (
        "resilient_mw/admission/bad.py",
        "def f() -> None:\n    import resilient_mw.runtime.flush",
        "admission may not know runtime",
    ),
    "upwards by name": (
        "resilient_mw/core/bad.py",
        "import importlib\nimportlib.import_module('resilient_mw.wsgi')",
        "core may not know wsgi",
    ),
    "a peer": ("resilient_mw/asgi/bad.py", "from resilient_mw import wsgi", "asgi may not know wsgi"),
    "a pure peer": (
        "resilient_mw/admission/bad.py",
        "import resilient_mw.calls.retry",
        "admission may not know calls",
    ),
    "the simulation and a shell": (
        "resilient_mw/simulation/bad.py",
        "from resilient_mw.runtime.context import current",
        "simulation may not know runtime",
    ),
    "the lab and the command": (
        "resilient_mw/lab/bad.py",
        "import resilient_mw.cli",
        "the lab uses public names only",
    ),
    "the lab behind the face": (
        "resilient_mw/lab/bad.py",
        "from resilient_mw.admission.controller import Controller",
        "the lab uses public names only",
    ),
    "the face from below": (
        "resilient_mw/asgi/bad.py",
        "from resilient_mw import ServerPolicy",
        "below the public face",
    ),
    "a shell in the face": (
        "resilient_mw/__init__.py",
        "from resilient_mw.asgi.middleware import ResilienceMiddleware",
        "not made of asgi",
    ),
    "integrations from below": (
        "resilient_mw/testing/bad.py",
        "import resilient_mw_integrations.flask",
        "may not know the integrations",
    ),
    "a room without a floor": ("resilient_mw/attic/bad.py", "", "stands on no floor"),
    "a file without a floor": ("resilient_mw/helpers.py", "", "stands on no floor"),
    "relative": (
        "resilient_mw/core/bad.py",
        "from . import deadline",
        "relative import of resilient_mw.core.deadline",
    ),
    "relative and upwards": (
        "resilient_mw/core/bad.py",
        "from ..asgi import middleware",
        "core may not know asgi",
    ),
    "private module": (
        "resilient_mw/asgi/bad.py",
        "from resilient_mw.core._tables import rows",
        "private (_tables)",
    ),
    "private name": (
        "integrations/resilient_mw_integrations/flask.py",
        "from resilient_mw.core.routes import _match",
        "private (_match)",
    ),
    "second copy": (
        "integrations/resilient_mw_integrations/flask.py",
        "import integrations.resilient_mw_integrations.starlette",
        "second copy",
    ),
    "second copy in a test": (
        "tests/test_bad.py",
        "from integrations.resilient_mw_integrations import flask",
        "second copy",
    ),
    "time in a decision": ("resilient_mw/core/bad.py", "import time", "core is pure and may not import time"),
    "time in a shell": (
        "resilient_mw/runtime/bad.py",
        "from time import monotonic",
        "only resilient_mw.runtime.clocks",
    ),
    "time in an integration": (
        "integrations/resilient_mw_integrations/flask.py",
        "def f() -> None:\n    import time",
        "only resilient_mw.runtime.clocks",
    ),
    "time in the test help": (
        "resilient_mw/testing/bad.py",
        "import time",
        "only resilient_mw.runtime.clocks",
    ),
    "chance": (
        "resilient_mw/admission/bad.py",
        "import random",
        "admission is pure and may not import random",
    ),
    "chance in the simulation": (
        "resilient_mw/simulation/bad.py",
        "from random import Random, expovariate",
        "simulation is pure and may not import random",
    ),
    "threads": (
        "resilient_mw/simulation/bad.py",
        "import threading",
        "simulation is pure and may not import threading",
    ),
    "a loop": (
        "resilient_mw/core/bad.py",
        "import asyncio.events",
        "core is pure and may not import asyncio",
    ),
    "the environment": (
        "resilient_mw/core/bad.py",
        "from os import environ",
        "core is pure and may not import os",
    ),
    "a framework": (
        "resilient_mw/asgi/bad.py",
        "import starlette.routing",
        "no third-party package such as starlette",
    ),
    "a framework for types": (
        "resilient_mw/wsgi/bad.py",
        "import typing\nif typing.TYPE_CHECKING:\n    import flask",
        "no third-party package such as flask",
    ),
    "pytest outside the plugin": (
        "resilient_mw/testing/bad.py",
        "import pytest",
        "no third-party package such as pytest",
    ),
    "a stranger in the lab": (
        "resilient_mw/lab/bad.py",
        "import numpy",
        "not one of the packages of the lab",
    ),
    "asgiref at run time": ("resilient_mw/asgi/bad.py", "from asgiref.typing import Scope", "for types only"),
    "asgiref in the else branch": (
        "resilient_mw/asgi/bad.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asgiref.typing\nelse:\n    import asgiref.typing",
        "for types only",
    ),
    "another family": (
        "integrations/resilient_mw_integrations/starlette.py",
        "import fastapi",
        "may import starlette, not fastapi",
    ),
    "a family in a shared file": (
        "integrations/resilient_mw_integrations/_shared.py",
        "import starlette",
        "no other package, not starlette",
    ),
}

RIGHT = {
    "resilient_mw/__init__.py": "from resilient_mw._version import __version__\nfrom resilient_mw.runtime.context import current",
    "resilient_mw/_version.py": "__version__ = '1'",
    "resilient_mw/core/_tables.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import random",
    "resilient_mw/core/deadline.py": "import math\nfrom resilient_mw.core._tables import _rows\nfrom resilient_mw.core import errors",
    "resilient_mw/simulation/engine.py": "from random import Random\nfrom resilient_mw.admission import controller",
    "resilient_mw/runtime/clocks.py": "import time",
    "resilient_mw/asgi/middleware.py": (
        "import asyncio\nfrom typing import TYPE_CHECKING\nfrom resilient_mw.runtime import context\n"
        "if TYPE_CHECKING:\n    from asgiref.typing import Scope"
    ),
    "resilient_mw/lab/app.py": (
        "import time\nimport flask\nfrom resilient_mw import ServerPolicy\nfrom resilient_mw.wsgi import ResilienceMiddleware\n"
        "import resilient_mw.lab.load"
    ),
    "resilient_mw/cli/main.py": "from resilient_mw.lab import run\nfrom resilient_mw import __version__",
    "resilient_mw/testing/plugin.py": "import pytest\nfrom resilient_mw.runtime.clocks import ManualClock",
    "integrations/resilient_mw_integrations/_shared.py": "from resilient_mw.core.routes import RouteRule",
    "integrations/resilient_mw_integrations/fastapi.py": (
        "import fastapi\nimport starlette\nfrom resilient_mw_integrations._shared import _helper\nimport resilient_mw"
    ),
    "tests/test_good.py": "import time\nimport resilient_mw_integrations.fastapi",
}


def plant(root: Path, file: str, source: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source + "\n", encoding="utf-8")


def test_the_floors_hold() -> None:
    assert violations() == []


def test_the_check_reads_the_real_tree() -> None:
    rooms = {module.room for module in shipped_modules() if module.package == "resilient_mw"}
    assert {"core", "admission", "runtime", "simulation", "asgi", "wsgi"} <= rooms
    assert rooms - {"", "_version"} <= set(FLOORS)
    assert any(module.package == "resilient_mw_integrations" and module.room for module in shipped_modules())


@pytest.mark.parametrize(("file", "source", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_planted_violation_is_reported(tmp_path: Path, file: str, source: str, message: str) -> None:
    plant(tmp_path, file, source)
    found = violations(tmp_path)
    assert any(message in line and line.startswith(f"{file}:") for line in found), found


def test_a_tree_that_keeps_the_rules_is_not_reported(tmp_path: Path) -> None:
    for file, source in RIGHT.items():
        plant(tmp_path, file, source)
    assert violations(tmp_path) == []


def test_the_folder_of_the_integrations_is_not_a_package() -> None:
    # With an __init__.py there, type checkers and imports would name the files `integrations.…`.
    assert not (ROOT / "integrations" / "__init__.py").exists()
