"""Quart: the extension `Resilience`, and the route source that makes marks on views, websockets and blueprints count."""

from __future__ import annotations

from resilient_mw_integrations.quart.extension import Resilience
from resilient_mw_integrations.quart.routes import QuartRouteSource, route_source

__all__ = ["QuartRouteSource", "Resilience", "route_source"]
