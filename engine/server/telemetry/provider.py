"""Where the server's spans go: a provider of its own, made only where the environment names an endpoint."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

from kvtrace.tracer import attributes as names
from kvtrace.tracer.provider import BoundedExporter

SERVICE: Final = "kvtrace-serve"
EXPORT_TIMEOUT_S: Final = 5.0  # for one request, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
_log = logging.getLogger(__name__)


def own_provider(environment: Mapping[str, str] = os.environ) -> trace.TracerProvider | None:
    """A provider that exports as the environment says; ``None`` where it asks for no export.

    A provider that the program has set already is used instead. The exporter, its protocol, headers and limits, and
    the sampler are configured by OpenTelemetry's own variables.
    """
    if environment.get(names.ENV_SDK_DISABLED, "").strip().lower() == "true":
        return None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return trace.get_tracer_provider()
    endpoint = environment.get(names.ENV_OTLP_TRACES_ENDPOINT) or environment.get(names.ENV_OTLP_ENDPOINT)
    if not endpoint or environment.get(names.ENV_TRACES_EXPORTER, "").strip().lower() == "none":
        return None
    try:
        exporter = BoundedExporter(_exporter(environment))
    except Exception as error:  # whatever an exporter dislikes about its settings, the server serves without it
        _log.warning("no spans are exported: %s: %s", type(error).__name__, error)
        return None
    resource = Resource.create(
        {
            names.SERVICE_NAME: environment.get(names.ENV_SERVICE_NAME) or SERVICE,
            "service.version": version("kvtrace"),
        }
    )
    return OwnProvider(exporter, resource)


class OwnProvider(TracerProvider):
    """A provider that can be ended in bounded time, even if nobody listens at the endpoint."""

    def __init__(self, exporter: BoundedExporter, resource: Resource) -> None:
        super().__init__(resource=resource, shutdown_on_exit=False)
        self._exporter = exporter
        self.add_span_processor(BatchSpanProcessor(exporter))  # type: ignore[arg-type]

    def end(self, timeout_s: float) -> None:
        """Send what is left, but begin no request after ``timeout_s``."""
        self._exporter.deadline = time.monotonic() + timeout_s
        self.shutdown()


def end(provider: trace.TracerProvider, timeout_s: float = EXPORT_TIMEOUT_S) -> None:
    """Send what is left; a provider of ours ends with that, the program's own lives on."""
    try:
        if isinstance(provider, OwnProvider):
            provider.end(timeout_s)
        elif isinstance(provider, TracerProvider):
            provider.force_flush(int(timeout_s * 1e3))
    except Exception as error:
        _log.warning("the last spans were not sent: %s: %s", type(error).__name__, error)


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    timed = names.ENV_OTLP_TIMEOUT in environment or names.ENV_OTLP_TRACES_TIMEOUT in environment
    timeout = None if timed else EXPORT_TIMEOUT_S
    protocol = environment.get(names.ENV_OTLP_TRACES_PROTOCOL) or environment.get(names.ENV_OTLP_PROTOCOL) or ""
    if protocol.strip().lower() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    return HttpExporter(timeout=timeout)
