"""The route of ``/metrics``, and what feeds it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from ...records import Snapshot
from ..service import Service
from .instruments import Metrics


def metrics_routes(service: Service) -> APIRouter:
    """``GET /metrics`` over ``service``; while the model loads it says just that."""
    metrics = Metrics(
        lambda: _snapshot(service),
        lambda: service.engine.dropped_signals if service.ready else 0,
        vllm=service.settings.vllm_metrics,
    )
    service.on_request(metrics.request)
    service.on_ready(lambda ready: ready.engine.on_event(metrics.event))
    router = APIRouter()

    @router.get("/metrics", include_in_schema=False)
    async def get_metrics(request: Request) -> Response:
        """All metrics in Prometheus' text format, or in OpenMetrics' where that is asked for."""
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        text = await service.in_worker(lambda: encoder(metrics.registry))
        return Response(text, media_type=content_type)

    return router


def _snapshot(service: Service) -> Snapshot | None:
    return service.engine.state() if service.ready else None
