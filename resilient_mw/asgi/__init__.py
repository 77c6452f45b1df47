"""F3: the ASGI middleware.

Example:
    app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(limit=20))
"""

from resilient_mw.asgi.middleware import ResilienceMiddleware

__all__ = ["ResilienceMiddleware"]
