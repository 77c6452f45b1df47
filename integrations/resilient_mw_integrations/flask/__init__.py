"""Flask: the extension `Resilience`, and the route source that makes marks on views and blueprints count."""

from __future__ import annotations

from resilient_mw_integrations.flask.extension import Resilience
from resilient_mw_integrations.flask.routes import FlaskRouteSource, route_source

__all__ = ["FlaskRouteSource", "Resilience", "route_source"]
