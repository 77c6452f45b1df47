"""The command `resilient-mw`."""

from __future__ import annotations
