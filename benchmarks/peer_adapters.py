"""The decorators of other libraries, as the conformance suite and the overhead measurement see them; none sends anything.

Each library is imported by its own class only, since each is installed in an environment of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

if TYPE_CHECKING:
    from collections.abc import Sequence


class Recorder(SpanProcessor):
    """Keeps what a suite asks for; as a processor, it sees starts as well as ends."""

    def __init__(self) -> None:
        self.starts: dict[int, dict[str, Any]] = {}
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Keep the attributes that are there at the start."""
        self.starts[span.get_span_context().span_id] = dict(span.attributes or {})

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the span."""
        self.ended.append(span)


class OtelAdapter:
    """Plain OpenTelemetry: ``tracer.start_as_current_span`` as a decorator."""

    def __init__(self) -> None:
        self.tracer: Any = None
        self.attach(None)

    def bare(self, function: Any) -> Any:
        """Decorate as the library's documentation says; names are given where it has no default."""
        return self.tracer.start_as_current_span(name_of(function))(function)

    def without_parentheses(self, function: Any) -> Any:
        """Decorate without parentheses."""
        return self.bare(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate with parentheses."""
        return self.bare(function)

    @contextmanager
    def recording(self) -> Iterator[Callable[[], Sequence[Any]]]:
        """Record a block with a recorder of its own."""
        recorder = Recorder()
        self.attach(recorder)
        yield lambda: [_span(span, recorder.starts) for span in recorder.ended if self.is_tool(span)]

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Make a provider with ``recorder``, or with nothing but the library's own part."""
        provider = TracerProvider(shutdown_on_exit=False)
        if recorder is not None:
            provider.add_span_processor(recorder)
        self.tracer = provider.get_tracer("plain")

    def is_tool(self, span: ReadableSpan) -> bool:
        """Tell whether a span is the decorator's, and not something else that the library makes."""
        return True

    def current_span_id(self) -> str | None:
        """Return the current span's id, 16 hex digits."""
        context = trace.get_current_span().get_span_context()
        return f"{context.span_id:016x}" if context.is_valid else None

    def started(self) -> int:
        """Return how many starts can be seen outside the process: none of these libraries writes any."""
        return 0


class LogfireAdapter(OtelAdapter):
    """Logfire's ``@instrument``; it sends pending spans in batches, which is when a start can be seen."""

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Configure Logfire without a token."""
        import logfire

        self.logfire = logfire.configure(
            local=True,
            send_to_logfire=False,
            console=False,
            inspect_arguments=False,
            additional_span_processors=[recorder] if recorder is not None else [],
        )

    def bare(self, function: Any) -> Any:
        """Decorate as ``@logfire.instrument`` does."""
        return self.logfire.instrument(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@logfire.instrument()``."""
        return self.logfire.instrument()(function)

    def is_tool(self, span: ReadableSpan) -> bool:
        """Leave pending spans out."""
        return (span.attributes or {}).get("logfire.span_type") != "pending_span"


class LangfuseAdapter(OtelAdapter):
    """Langfuse's ``@observe(as_type="tool")``."""

    client: Any = None
    provider: Any = None
    switch: Any = None

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Make the one client that the library allows, and let it write into the newest recorder."""
        from langfuse import Langfuse

        kind = type(self)
        if kind.client is None:
            kind.provider = TracerProvider(shutdown_on_exit=False)
            os.environ.setdefault("LANGFUSE_PUBLIC_KEY", "pk-lf-x")
            os.environ.setdefault("LANGFUSE_SECRET_KEY", "sk-lf-x")
            kind.client = Langfuse(tracer_provider=kind.provider, span_exporter=_NoExporter())
            kind.switch = Switch()
            kind.provider.add_span_processor(kind.switch)
        kind.switch.target = recorder

    def bare(self, function: Any) -> Any:
        """Decorate as ``@observe`` does; a tool needs parentheses."""
        from langfuse import observe

        return observe(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@observe(as_type="tool")``."""
        from langfuse import observe

        return observe(as_type="tool")(function)


class TraceloopAdapter(OtelAdapter):
    """OpenLLMetry's ``@tool``."""

    switch: Any = None

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Initialise the SDK once, with an exporter that drops everything."""
        from traceloop.sdk import Traceloop

        kind = type(self)
        if kind.switch is None:
            kind.switch = Switch()
            Traceloop.init("benchmark", telemetry_enabled=False, processor=kind.switch, instruments=set(), api_key="x")
        kind.switch.target = recorder

    def bare(self, function: Any) -> Any:
        """Decorate as ``@tool(name=…)``, the only form that is documented."""
        return self.with_parentheses(function)

    def without_parentheses(self, function: Any) -> Any:
        """Decorate as ``@tool``."""
        from traceloop.sdk.decorators import tool

        return tool(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@tool(name=…)``."""
        from traceloop.sdk.decorators import tool

        return tool(name=name_of(function))(function)


class OpenInferenceAdapter(OtelAdapter):
    """OpenInference's ``@tracer.tool``, which is Phoenix's too."""

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Make OpenInference's own provider."""
        from openinference.instrumentation import TracerProvider as OpenInferenceProvider

        provider = OpenInferenceProvider(shutdown_on_exit=False)
        if recorder is not None:
            provider.add_span_processor(recorder)
        self.tracer = provider.get_tracer("openinference")

    def bare(self, function: Any) -> Any:
        """Decorate as ``@tracer.tool``."""
        return self.tracer.tool(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@tracer.tool()``."""
        return self.tracer.tool()(function)


class LangsmithAdapter(OtelAdapter):
    """LangSmith's ``@traceable(run_type="tool")``, which knows runs instead of spans."""

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Make a client that keeps what it would have sent."""
        os.environ["LANGSMITH_TRACING"] = "true"
        self.client = RunKeeper()

    @contextmanager
    def recording(self) -> Iterator[Callable[[], Sequence[Any]]]:
        """Record a block as runs."""
        self.attach(None)
        yield lambda: [_run(run) for run in list(self.client.ended)]

    def bare(self, function: Any) -> Any:
        """Decorate with the client; ``@traceable`` alone would use one that sends."""
        return self.with_parentheses(function)

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@traceable(run_type="tool")``."""
        from langsmith import traceable

        return traceable(run_type="tool", client=self.client)(function)

    def current_span_id(self) -> str | None:
        """Return the current run's id, cut to 16 digits."""
        from langsmith.run_helpers import get_current_run_tree

        run = get_current_run_tree()
        return None if run is None else run.id.hex[-16:]

    def started(self) -> int:
        """Return the runs that were posted at their start."""
        return len(self.client.starts)


class RunKeeper:
    """Stands in for LangSmith's client: same calls, nothing sent."""

    tracing_queue = None
    otel_exporter = None

    def __init__(self) -> None:
        self.starts: dict[Any, dict[str, Any]] = {}
        self.ended: list[dict[str, Any]] = []

    def create_run(self, name: str, inputs: Any = None, run_type: str = "", **rest: Any) -> None:
        """Keep a start."""
        run = {"name": name, "run_type": run_type, "inputs": inputs, **rest}
        self.starts[rest.get("id")] = run
        if rest.get("end_time") is not None:
            self.ended.append(run)

    def update_run(self, run_id: Any = None, **rest: Any) -> None:
        """Keep an end."""
        self.ended.append(
            {**self.starts.get(run_id, {}), "id": run_id, **{k: v for k, v in rest.items() if v is not None}}
        )

    def flush(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Switch(SpanProcessor):
    """Passes spans on to whoever records now."""

    def __init__(self) -> None:
        self.target: SpanProcessor | None = None

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass a start on."""
        if self.target is not None:
            self.target.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass an end on."""
        if self.target is not None:
            self.target.on_end(span)


class _NoExporter:
    def export(self, spans: Any) -> Any:
        from opentelemetry.sdk.trace.export import SpanExportResult

        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


def name_of(function: Any) -> str:
    """Return the name of a function of any kind."""
    inner = getattr(function, "func", getattr(function, "__func__", function))
    return getattr(inner, "__name__", type(inner).__name__)


def _make(**fields: Any) -> Any:
    from tests.conformance.adapter import Span as Finished

    return Finished(**fields)


def _span(span: ReadableSpan, starts: dict[int, dict[str, Any]]) -> Any:
    context = span.get_span_context()
    assert context is not None
    name = span.name.removesuffix(".tool").rpartition(".")[2]
    if span.name.startswith("Calling "):  # Logfire's names
        name = span.name.removeprefix("Calling ").rpartition(".")[2]
    return _make(
        name=name,
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        start_unix_ns=span.start_time or 0,
        end_unix_ns=span.end_time or 0,
        error=span.status.status_code is trace.StatusCode.ERROR,
        attributes=dict(span.attributes or {}),
        start_attributes=starts.get(context.span_id, {}),
    )


def _run(run: dict[str, Any]) -> Any:
    start, end = run.get("start_time"), run.get("end_time")
    parent = run.get("parent_run_id")
    return _make(
        name=run["name"],
        span_id=run["id"].hex[-16:],
        parent_id=None if parent is None else parent.hex[-16:],
        start_unix_ns=int(start.timestamp() * 1e9) if start else 0,
        end_unix_ns=int(end.timestamp() * 1e9) if end else 0,
        error=run.get("error") is not None,
        attributes={"run_type": run["run_type"], "inputs": str(run.get("inputs")), "outputs": str(run.get("outputs"))},
        start_attributes={"run_type": run["run_type"]},
    )


class KvtraceOverhead:
    """kvtrace for the overhead measurement: records to a real file and a subscriber that queues."""

    def with_parentheses(self, function: Any) -> Any:
        """Decorate as ``@traced_tool()``."""
        from kvtrace.tracer import traced_tool

        return traced_tool()(function)

    def attach(self, recorder: SpanProcessor | None) -> None:
        """Record for the rest of this process."""
        from collections import deque

        from kvtrace.tracer import agent, subscribe
        from kvtrace.tracer.testing import capture

        self.held = (capture(), agent("benchmark"))
        for context in self.held:
            context.__enter__()
        signals: deque[Any] = deque(maxlen=16)
        subscribe(signals.append)
