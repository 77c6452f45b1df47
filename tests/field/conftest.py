"""Makes the clients of httpx and httpx2 known here as well."""

from tests.integrations.httpx_wires import wire

__all__ = ["wire"]
