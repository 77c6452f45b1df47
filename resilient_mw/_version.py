"""Keep the version in one place: the wheel, the command and `resilient_mw.__version__` read it here."""

from __future__ import annotations

__version__ = "0.1.0"
