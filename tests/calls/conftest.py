"""Makes the profiles of hypothesis known."""

from tests.admission import profiles  # noqa: F401
