"""Django: protection before Django's own work, marks in the URLconf, settings, system checks, database time.

    # settings.py
    INSTALLED_APPS = [..., "resilient_mw_integrations.django"]
    RESILIENT_MW = {"limit": 20, "queue": 40}

    # wsgi.py, asgi.py
    application = protect(get_wsgi_application())

`ResilienceMiddleware` in the setting `MIDDLEWARE` is for those who cannot touch wsgi.py; it comes after the request was
parsed. Both read the one policy of the settings, so a request that passes both is guarded once.
"""

from resilient_mw_integrations.django.database import budgeted
from resilient_mw_integrations.django.marking import marked
from resilient_mw_integrations.django.middleware import ResilienceMiddleware
from resilient_mw_integrations.django.options import policy
from resilient_mw_integrations.django.protecting import protect
from resilient_mw_integrations.django.routes import DjangoRouteSource, route_source

__all__ = [
    "DjangoRouteSource",
    "ResilienceMiddleware",
    "budgeted",
    "marked",
    "policy",
    "protect",
    "route_source",
]
