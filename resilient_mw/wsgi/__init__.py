"""F3: the WSGI middleware.

Example:
    app.wsgi_app = ResilienceMiddleware(app.wsgi_app, policy=ServerPolicy(limit=10))
"""

from resilient_mw.wsgi.middleware import ResilienceMiddleware

__all__ = ["ResilienceMiddleware"]
