"""A Django project as people write them: the tests serve it by real servers, and drive it in process."""

from __future__ import annotations

import importlib
import os


def ready() -> None:
    """Set Django up for this process, once: no process can have two projects."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_project.settings")
    importlib.import_module("django").setup()
