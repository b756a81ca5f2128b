"""``GET /metrics``: what Prometheus sees of the server."""

from __future__ import annotations

from .routes import metrics_routes

__all__ = ["metrics_routes"]
