"""The FastAPI application over a :class:`.service.Service`."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI

from .chat import chat_routes
from .completions import completion_routes
from .errors import add_handlers
from .guard import Guard
from .metrics import metrics_routes
from .others import health_routes, span_routes, state_routes
from .responses import response_routes
from .service import Service
from .telemetry import install_spans


def create_app(service: Service) -> FastAPI:
    """All routes, errors and guards. The engine may come later: until then routes that need it answer 503."""
    app = FastAPI(
        title="kvtrace",
        summary="OpenAI-compatible server that parks the KV cache of agents while they wait for tools",
        version=version("kvtrace"),
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        strict_content_type=False,
        telemetry={"tracing": False},  # spans of requests are kvtrace's own
    )
    add_handlers(app)
    app.add_middleware(Guard, settings=service.settings, most_body=service.most_body_bytes)
    for router in (
        chat_routes(service),
        response_routes(service),
        completion_routes(service),
        health_routes(service),
        state_routes(service),
        span_routes(service),
        metrics_routes(service),
    ):
        app.include_router(router)
    service.on_close(install_spans(service))
    return app
