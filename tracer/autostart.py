"""Set-up of a process that knows nothing of kvtrace: what ``kvtrace run`` does inside the programs it starts.

OpenTelemetry's own auto-instrumentation loads the instrumentation packages that are installed; our hook among its entry
points brings the span files. Without that package, whatever provider the program makes is joined all the same.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace

from . import attributes as names
from .diagnostics import internal_error
from .identity import Agent, set_process_agent
from .provider import export_if_asked
from .runtime import RANDOM_IDS, current

if TYPE_CHECKING:
    from .processor import KvtraceSpanProcessor, Relay

# A library, and the packages that instrument it, the one to recommend first. docs/zero-code.md says which were tried.
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "agents": ("opentelemetry-instrumentation-genai-openai-agents",),
    "anthropic": ("opentelemetry-instrumentation-anthropic",),
    "langchain_core": ("opentelemetry-instrumentation-langchain", "openinference-instrumentation-langchain"),
    "openai": ("opentelemetry-instrumentation-genai-openai",),
}
_ENTRY_NAMES: Final[Mapping[str, frozenset[str]]] = {
    "agents": frozenset({"openai_agents", "openai-agents"}),
    "anthropic": frozenset({"anthropic"}),
    "langchain_core": frozenset({"langchain", "langchain_core"}),
    "openai": frozenset({"openai", "openai_v2"}),
}
_EXPORTERS: Final = (names.ENV_TRACES_EXPORTER, "OTEL_METRICS_EXPORTER", "OTEL_LOGS_EXPORTER")


def start() -> None:
    """Set this process up. Never raises, and says on stderr in one line what it could not do."""
    try:
        _name_the_process(os.environ)
        if not current().settings.disabled:
            _instrument()
    except Exception as error:
        internal_error("zero-code set-up", error)


def pre_instrument() -> None:
    """Bring the span files into a process that OpenTelemetry's auto-instrumentation sets up for ``kvtrace run``.

    An entry point of ``opentelemetry_pre_instrument``: called in every auto-instrumented program, it does nothing in
    those that somebody else started.
    """
    if os.environ.get(names.ENV_AUTO) is None or current().settings.disabled:
        return
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        export_if_asked(current().settings)
        provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider):
        _stand_in()
    else:
        join(provider)


def join(provider: Any) -> None:
    """Add this process's one processor to an SDK provider; to any other nothing can be added."""
    if hasattr(provider, "add_span_processor"):
        provider.add_span_processor(_processor())


@cache
def _processor() -> KvtraceSpanProcessor:
    from .processor import KvtraceSpanProcessor

    return KvtraceSpanProcessor()


def missing(installed: Callable[[str], bool], instrumentors: frozenset[str]) -> list[tuple[str, str]]:
    """Return (library, package to install) for each known library that nothing instruments."""
    return [
        (library, packages[0])
        for library, packages in KNOWN.items()
        if installed(library) and not instrumentors & _ENTRY_NAMES[library]
    ]


def _name_the_process(environment: Mapping[str, str]) -> None:
    agent_id = environment.get(names.ENV_AGENT_ID)
    agent = Agent(agent_id or f"{RANDOM_IDS.span_id():016x}", environment.get(names.ENV_AGENT) or None)
    set_process_agent(agent, explicit=bool(agent_id))


def _instrument() -> None:
    environment = os.environ
    try:
        from opentelemetry.instrumentation.auto_instrumentation import initialize
    except ImportError:
        _join_later()
        _say(missing(_is_installed, frozenset()), "opentelemetry-instrumentation")
        return
    environment.setdefault("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    if names.ENV_OTLP_ENDPOINT not in environment and names.ENV_OTLP_TRACES_ENDPOINT not in environment:
        # Where opentelemetry-distro is installed, it would send to a collector that nobody named.
        for name in _EXPORTERS:
            environment.setdefault(name, "none")
    initialize()
    _say(missing(_is_installed, _instrumentors()), None)


def _stand_in() -> None:
    """Put a provider in place that gives way to the program's own, if it makes one."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    from .processor import Relay

    settings = current().settings
    resource = Resource.create({names.SERVICE_NAME: settings.service_name, names.RUN_ID: settings.run_id})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    relay = Relay(_processor())
    provider.add_span_processor(relay)
    # Not set_tracer_provider: that works once, and belongs to the program.
    trace._TRACER_PROVIDER = provider
    _join_later(relay)


def _join_later(relay: Relay | None = None) -> None:
    """Join the provider that the program sets, and let its processors have what libraries trace through ``relay``."""
    set_tracer_provider = trace.set_tracer_provider

    def set_and_join(tracer_provider: trace.TracerProvider) -> None:
        set_tracer_provider(tracer_provider)
        if trace.get_tracer_provider() is not tracer_provider:
            return
        try:
            join(tracer_provider)
            theirs = getattr(tracer_provider, "_active_span_processor", None)
            if relay is not None and theirs is not None:
                relay.target = theirs
        except Exception as error:
            internal_error("joining the program's TracerProvider", error)

    trace.set_tracer_provider = set_and_join


def _is_installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except (ImportError, ValueError):
        return False


def _instrumentors() -> frozenset[str]:
    from importlib.metadata import entry_points

    return frozenset(entry.name for entry in entry_points(group="opentelemetry_instrumentor"))


def _say(lacking: list[tuple[str, str]], also: str | None) -> None:
    """Name what is not instrumented and how to change that, once for all processes of a run."""
    if not lacking or os.environ.get(names.ENV_AUTO) != "1":
        return
    os.environ[names.ENV_AUTO] = "said"
    libraries = ", ".join(library for library, _ in lacking)
    packages = " ".join(([also] if also else []) + [package for _, package in lacking])
    print(f"kvtrace: not instrumented: {libraries}. To trace them: pip install {packages}", file=sys.stderr)  # noqa: T201
