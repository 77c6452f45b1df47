"""The Django app: what is registered when Django starts."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db.backends.signals import connection_created

from resilient_mw_integrations.django.checking import check_policy, check_protection
from resilient_mw_integrations.django.database import keep_budget


class ResilienceConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    """`resilient_mw_integrations.django` in `INSTALLED_APPS`."""

    name = "resilient_mw_integrations.django"
    label = "resilient_mw"
    verbose_name = "resilient_mw"

    def ready(self) -> None:
        """Register the system checks, and what gives statements their time."""
        checks.register(check_policy, "resilient_mw")
        checks.register(check_protection, "resilient_mw")
        connection_created.connect(keep_budget, dispatch_uid="resilient_mw")
