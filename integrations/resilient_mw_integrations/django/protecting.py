"""Protects the application of wsgi.py or asgi.py: outside of all that Django does."""

from __future__ import annotations

from inspect import iscoroutinefunction
from typing import Any

from resilient_mw.asgi import ResilienceMiddleware as AsgiMiddleware
from resilient_mw.wsgi import ResilienceMiddleware as WsgiMiddleware
from resilient_mw_integrations.django.options import policy


def protect(application: Any) -> Any:
    """Return the protected application, WSGI or ASGI as the given one is, under the policy of the settings.

        application = protect(get_asgi_application())

    What Django does not see (WhiteNoise, a router of Channels) may stand inside or outside of it.

    Raises:
        ImproperlyConfigured: a value of the setting `RESILIENT_MW` is not allowed.
    """
    is_async = iscoroutinefunction(application) or iscoroutinefunction(type(application).__call__)
    return (AsgiMiddleware if is_async else WsgiMiddleware)(application, policy())
