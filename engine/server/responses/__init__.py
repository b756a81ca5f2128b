"""OpenAI's Responses API, for clients that speak nothing else. Stateless: each request brings its whole history."""

from __future__ import annotations

from .routes import response_routes

__all__ = ["response_routes"]
