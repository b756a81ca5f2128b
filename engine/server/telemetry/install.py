"""Hooks the recorder into a server."""

from __future__ import annotations

from collections.abc import Callable

from opentelemetry import trace

from ..service import Service
from .provider import end, own_provider
from .recorder import SpanRecorder


def install_spans(service: Service, provider: trace.TracerProvider | None = None) -> Callable[[], None]:
    """Record spans of ``service`` if an export is configured; what is returned writes the last ones and ends it.

    Args:
        service: whose requests and events are recorded.
        provider: takes the spans; without it, the one that the environment asks for.
    """
    provider = provider or own_provider()
    if provider is None:
        return lambda: None
    recorder = SpanRecorder(
        provider.get_tracer("kvtrace.engine.server"), lambda: service.model.model_id if service.ready else "unknown"
    )
    service.on_request(recorder.request)
    service.on_ready(lambda ready: ready.engine.on_event(recorder.event))

    def close() -> None:
        recorder.close()
        end(provider)

    return close
