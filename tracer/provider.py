"""Set-up of this process, and its export over OTLP where somebody asked for one.

A provider that the program already has is used and never replaced. Without one, and without an endpoint, none is
made: span files and signals need no SDK.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from opentelemetry import trace

from . import attributes as names
from .clock import SYSTEM_CLOCK, Clock
from .diagnostics import internal_error, warn_once
from .engine_link import flush_engine, link_engine
from .ids import IdSource
from .runtime import RANDOM_IDS, Runtime, build_settings, configured, install, remove_old_runs
from .settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_EXPORT_TIMEOUT_S: Final = 5.0  # for one request, unless OTEL_EXPORTER_OTLP_TIMEOUT says otherwise


def configure(
    *,
    directory: str | os.PathLike[str] | None = None,
    service_name: str | None = None,
    run_id: str | None = None,
    capture_content: bool | None = None,
    endpoint: str | None = None,
    engine: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
    ids: IdSource = RANDOM_IDS,
    tracer_provider: trace.TracerProvider | None = None,
) -> Settings:
    """Set this process up and return what was decided; what is left out comes from the environment.

    Calling it is optional: the first span does it from the environment alone. ``directory`` and the run are also put
    into ``os.environ``, so that child processes write into the same run. ``capture_content=False`` is a veto over every
    tool's ``capture=``. ``endpoint`` is the base URL of an OTLP/HTTP receiver and is used only where the program has no
    TracerProvider. ``engine`` is the base URL of the engine that tool calls are signalled to, for child processes too;
    ``""`` for none. ``tracer_provider`` is used instead of the global one. Raises :class:`ValueError` for a ``run_id``
    that cannot name a folder, or an ``engine`` that is no URL.
    """
    settings = build_settings(
        directory=directory,
        service_name=service_name,
        run_id=run_id,
        capture_content=capture_content,
        endpoint=endpoint,
        engine=engine,
    )
    remove_old_runs(settings)
    before = install(Runtime(settings, clock=clock, ids=ids, tracer_provider=tracer_provider))
    if before is not None:
        before.close()
    os.environ[names.ENV_RUN] = settings.run_id
    os.environ[names.ENV_DIR] = str(settings.directory)
    if engine is not None:
        os.environ[names.ENV_ENGINE] = engine
    link_engine(None if settings.disabled else settings.engine, settings.service_name)
    if tracer_provider is None:
        export_if_asked(settings, endpoint)
    return settings


def flush(timeout_s: float = 5.0) -> bool:
    """Send what waits for the engine and in the program's TracerProvider, and tell whether all went out.

    Span files never need it.
    """
    return flush_engine(timeout_s) & _flush_export(timeout_s)


def _flush_export(timeout_s: float) -> bool:
    runtime = configured()
    provider = runtime.provider() if runtime is not None else trace.get_tracer_provider()
    force_flush = getattr(provider, "force_flush", None)
    if force_flush is None:
        return True
    # The SDK's batch processor does not look at the timeout: the exporter that we made does.
    bounded = _export[1] if _export is not None else None
    try:
        if bounded is not None:
            bounded.deadline = time.monotonic() + timeout_s
        return bool(force_flush(int(timeout_s * 1000)))
    except Exception as error:
        internal_error("flush", error)
        return False
    finally:
        if bounded is not None:
            bounded.deadline = None


def shutdown(timeout_s: float = 5.0) -> None:
    """Stop the signals and the export that kvtrace itself set up, within about ``timeout_s``; close the span file.

    A provider of the program's own is left running. A later span starts the recording again.
    """
    runtime = install(None)
    if runtime is not None:
        runtime.close()
    link_engine(None, "")
    _stop_export(timeout_s)


class BoundedExporter:
    """An exporter that drops what is still unsent at the deadline, so that a dead receiver cannot hold up an exit."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.deadline: float | None = None  # of time.monotonic()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export, or fail at once after the deadline."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            from opentelemetry.sdk.trace.export import SpanExportResult

            return SpanExportResult.FAILURE
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the exporter."""
        return self._exporter.force_flush(timeout_millis)


_export: tuple[TracerProvider, BoundedExporter] | None = None
_installing = threading.Lock()


def _forget_lock() -> None:
    global _installing
    _installing = threading.Lock()


# Whoever held the lock at a fork is not there to give it back in the child.
os.register_at_fork(after_in_child=_forget_lock)


def link_if_asked(settings: Settings) -> None:
    """Signal tool calls to the engine that the settings name, if they name one."""
    if settings.engine is not None and not settings.disabled:
        link_engine(settings.engine, settings.service_name)


def export_if_asked(settings: Settings, endpoint: str | None = None) -> None:
    """Install a provider with a batch exporter if an endpoint is set and the program has no provider yet."""
    environment = os.environ
    asked = settings.endpoint or environment.get(names.ENV_OTLP_TRACES_ENDPOINT)
    if not asked or settings.disabled or _export_is_off():
        return
    try:
        # Agents that start in several threads at once must not make a provider each.
        with _installing:
            if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
                _install_export(settings, endpoint)
    except ImportError as error:
        warn_once(
            "export", "kvtrace: no OTLP export, %s is missing: pip install opentelemetry-exporter-otlp", error.name
        )
    except Exception as error:
        internal_error("set-up of the OTLP export", error)


def _export_is_off() -> bool:
    sdk_off = os.environ.get(names.ENV_SDK_DISABLED, "").strip().lower() == "true"
    return sdk_off or os.environ.get(names.ENV_TRACES_EXPORTER, "").strip().lower() == "none"


def _install_export(settings: Settings, endpoint: str | None) -> None:
    global _export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = BoundedExporter(_make_exporter(endpoint))
    resource = Resource.create({names.SERVICE_NAME: settings.service_name, names.RUN_ID: settings.run_id})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))  # type: ignore[arg-type]
    trace.set_tracer_provider(provider)
    _export = (provider, exporter)
    atexit.register(_stop_export)


def _make_exporter(endpoint: str | None) -> SpanExporter:
    environment = os.environ
    timed = names.ENV_OTLP_TIMEOUT in environment or names.ENV_OTLP_TRACES_TIMEOUT in environment
    timeout = None if timed else _EXPORT_TIMEOUT_S
    protocol = environment.get(names.ENV_OTLP_TRACES_PROTOCOL) or environment.get(names.ENV_OTLP_PROTOCOL) or ""
    if endpoint is None and protocol.strip().lower() == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter(timeout=timeout)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if endpoint is None:
        return OTLPSpanExporter(timeout=timeout)
    url = endpoint.rstrip("/")
    return OTLPSpanExporter(endpoint=url if url.endswith("/v1/traces") else f"{url}/v1/traces", timeout=timeout)


def _stop_export(timeout_s: float = 5.0) -> None:
    global _export
    export, _export = _export, None
    if export is None:
        return
    provider, exporter = export
    exporter.deadline = time.monotonic() + timeout_s
    try:
        provider.shutdown()
    except Exception as error:
        internal_error("shutdown of the OTLP export", error)
