from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_project.settings")

from django.conf import settings
from django.core.asgi import get_asgi_application

from resilient_mw_integrations.django import protect

application = get_asgi_application()
if settings.FORM in {"protect", "both"}:
    application = protect(application)
