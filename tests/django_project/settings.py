"""Settings. The environment says in which form the project is protected, see `FORM`."""

from __future__ import annotations

import os
import sys
from typing import Any

FORM = os.environ.get("PROJECT_FORM", "")
"""`protect`: by wsgi.py or asgi.py. `middleware`: by MIDDLEWARE. `both`. `sync_only`: by MIDDLEWARE, above a middleware that is
not async-capable. Nothing: not at all, for tests in process."""

if os.environ.get("PROJECT_ENTRY_POINTS"):
    sys.path.insert(0, os.environ["PROJECT_ENTRY_POINTS"])

SECRET_KEY = "test"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.django_project.urls"
INSTALLED_APPS = ["resilient_mw_integrations.django", "tests.django_project.shop"]
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
LANGUAGE_CODE = "en"
LOGGING_CONFIG = None if not FORM else "logging.config.dictConfig"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("PROJECT_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 20},
    }
}
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "OPTIONS": {
            "loaders": [
                (
                    "django.template.loaders.locmem.Loader",
                    {
                        "busy.html": "<h1>{{ status }}: {{ title }}</h1><p>{{ reason }}</p>",
                        "broken.html": "{% no %}",
                    },
                )
            ]
        },
    }
]
GUARD = "resilient_mw_integrations.django.ResilienceMiddleware"
MIDDLEWARE = [
    *([GUARD] if FORM in {"middleware", "both", "sync_only"} else []),
    *(["tests.django_project.shop.middleware.sync_only"] if FORM == "sync_only" else []),
]
RESILIENT_MW: dict[str, Any] = {
    "limit": 2,
    "queue": 2,
    "max_wait": 5.0,
    "wait_share": 1.0,
    "deadline_default": 20.0,
    "databases": ["default"],
}
