"""Spans of other libraries in our files: a processor that sees their starts, and an exporter that sees only their ends.

Both write what ``foreign_records`` lets through. Spans of kvtrace's own decorators pass by: they are recorded already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.context import Context, get_current
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from . import attributes as names
from . import conventions
from .diagnostics import internal_error
from .foreign_records import encode_inferred, encode_span
from .identity import Agent, carried_agent, disown_span, find_agent, own_span, process_agent, span_owner
from .runtime import SCOPE_NAME, current
from .signals import ToolEnded, ToolStarted
from .sinks import deliver, has_sinks
from .spanfile import SpanFile

_MOST_OPEN: Final = 10_000  # spans that never end must not pile up in a long life


@dataclass(frozen=True, slots=True)
class _Open:
    """What is known of a span from its start, for its end."""

    agent: Agent | None
    kind: conventions.Kind | None
    file: SpanFile
    started: ToolStarted | None


@dataclass(frozen=True, slots=True)
class _Wait:
    """An agent whose model asked for tools and has not been called again."""

    agent: Agent
    trace_id: int
    parent_id: int | None
    since_unix_ns: int


class KvtraceSpanProcessor(SpanProcessor):
    """Records and signals the spans of a TracerProvider that the program has for itself.

    ``provider.add_span_processor(KvtraceSpanProcessor())`` goes beside Logfire's, Langfuse's or Phoenix's own: the
    start record and :class:`ToolStarted` before a tool runs, the complete record and :class:`ToolEnded` after it.
    Prompts, answers, arguments and every attribute not known to be free of content are left out unless capture is on
    (``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``). A sampler that drops a span hides it from here as well.

    Where a library traces model calls only, the time from a response that asks for tools to the agent's next request is
    recorded as a tool span with ``kvtrace.inferred``, unless a tool span shows up in between.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._waits: dict[str, _Wait] = {}

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Write the start record of a span and tell who waits for tools."""
        try:
            if not current().settings.disabled and not conventions.is_pending(span.attributes or {}):
                self._start(span, get_current() if parent_context is None else parent_context)
        except Exception as error:
            internal_error("the start of another library's span", error)

    def on_end(self, span: ReadableSpan) -> None:
        """Write the complete record of a span."""
        try:
            if not current().settings.disabled and not conventions.is_pending(span.attributes or {}):
                self._end(span)
        except Exception as error:
            internal_error("the end of another library's span", error)

    def shutdown(self) -> None:
        """Do nothing: every record is on disk already."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Tell that nothing waits."""
        return True

    def _start(self, span: Span, context: Context) -> None:
        attributes = span.attributes or {}
        kind = conventions.kind_of(attributes)
        if _is_ours(span):
            self._notice(kind, str(attributes.get(names.AGENT_ID)), span.start_time or 0)
            return
        runtime, ids = current(), span.get_span_context()
        agent = _agent_of(span, context, kind)
        if agent is not None:
            own_span(ids.span_id, agent)
            self._notice(kind, agent.id, span.start_time or 0)
        started = _tool_started(span, agent) if kind == "tool" else None
        while len(self._open) >= _MOST_OPEN:
            oldest = next(iter(self._open))
            if (forgotten := self._forget(oldest)) is not None:
                forgotten.file.span_ended(f"{oldest:016x}")
        self._open[ids.span_id] = _Open(agent, kind, runtime.file, started)
        runtime.file.append(encode_span(span, agent, runtime, ended=False))
        runtime.file.heartbeat.enter(f"{ids.span_id:016x}")
        if started is not None and has_sinks():
            deliver(started)

    def _end(self, span: ReadableSpan) -> None:
        ids = span.get_span_context()
        if ids is None or _is_ours(span):
            return
        runtime = current()
        opened = self._forget(ids.span_id) or _Open(None, None, runtime.file, None)
        if opened.file.abandoned:  # begun in the parent process, which ends it
            return
        opened.file.append(encode_span(span, opened.agent, runtime, ended=True))
        opened.file.span_ended(f"{ids.span_id:016x}")
        attributes = span.attributes or {}
        kind = conventions.kind_of(attributes) or opened.kind
        if kind == "model" and opened.agent is not None and conventions.asks_for_tools(attributes):
            parent = span.parent.span_id if span.parent else None
            self._waits[opened.agent.id] = _Wait(opened.agent, ids.trace_id, parent, span.end_time or 0)
        elif kind == "agent" and opened.agent is not None:
            self._waits.pop(opened.agent.id, None)
        if opened.started is not None and has_sinks():
            deliver(_tool_ended(opened.started, span))

    def _forget(self, span_id: int) -> _Open | None:
        disown_span(span_id)
        return self._open.pop(span_id, None)

    def _notice(self, kind: conventions.Kind | None, agent_id: str, start_unix_ns: int) -> None:
        """End an agent's wait: by a traced tool, which tells more, or by its next model call."""
        if kind not in ("tool", "model"):
            return
        wait = self._waits.pop(agent_id, None)
        if wait is None or kind == "tool" or start_unix_ns <= wait.since_unix_ns:
            return
        runtime = current()
        parent = None if wait.parent_id is None else f"{wait.parent_id:016x}"
        ids = (f"{wait.trace_id:032x}", f"{runtime.ids.span_id():016x}", parent)
        runtime.file.append(encode_inferred(ids, wait.agent, wait.since_unix_ns, start_unix_ns, runtime))


class Relay(SpanProcessor):
    """Passes everything on to ``target``, which may change while spans are open."""

    def __init__(self, target: SpanProcessor) -> None:
        self.target = target

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Pass a start on."""
        self.target.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass an end on."""
        self.target.on_end(span)

    def shutdown(self) -> None:
        """Do nothing: the target is its owner's to shut down."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the target."""
        return self.target.force_flush(timeout_millis)


class KvtraceSpanExporter(SpanExporter):
    """Writes ended spans to this process's span file: ``OTEL_TRACES_EXPORTER=kvtrace`` in any OpenTelemetry program.

    An exporter sees no starts. Use :class:`KvtraceSpanProcessor` where the program's code, or ``kvtrace run``, can add one.
    """

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write one line for each span."""
        runtime = current()
        if runtime.settings.disabled:
            return SpanExportResult.SUCCESS
        theirs = [s for s in spans if not _is_ours(s) and not conventions.is_pending(s.attributes or {})]
        agent = process_agent()
        written = [runtime.file.append(encode_span(span, agent, runtime, ended=True)) for span in theirs]
        return SpanExportResult.SUCCESS if all(written) else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """Do nothing: the file stays open for other writers of this process."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Tell that nothing waits."""
        return True


def _is_ours(span: ReadableSpan) -> bool:
    scope = span.instrumentation_scope
    return scope is not None and scope.name == SCOPE_NAME


def _agent_of(span: Span, context: Context, kind: conventions.Kind | None) -> Agent | None:
    """Return whom a span belongs to: whom it names, who is current, its parent's agent, or itself if it is an agent."""
    attributes = span.attributes or {}
    carried = carried_agent(context) or process_agent(only_if_explicit=True)
    named = attributes.get(names.AGENT_ID)
    if isinstance(named, str) and (carried is None or carried.id != named):
        return Agent(named)
    if carried is not None:
        return carried
    parent = span_owner(span.parent.span_id) if span.parent else None
    if kind == "agent":
        name = attributes.get(names.GEN_AI_AGENT_NAME)
        return Agent(
            f"{span.get_span_context().span_id:016x}",
            name if isinstance(name, str) else None,
            None if parent is None else parent.id,
            conventions.conversation(attributes),
        )
    # A process that is an agent only for want of a better one takes calls, not the containers that others put them in.
    return parent or (None if kind is None else find_agent(context))


def _tool_started(span: Span, agent: Agent | None) -> ToolStarted:
    ids, attributes = span.get_span_context(), span.attributes or {}
    return ToolStarted(
        f"{ids.trace_id:032x}",
        f"{ids.span_id:016x}",
        span.start_time or 0,
        conventions.tool_name(span.name, attributes),
        None if agent is None else agent.id,
        conventions.conversation(attributes) or (None if agent is None else agent.conversation),
        conventions.call_id(attributes),
    )


def _tool_ended(started: ToolStarted, span: ReadableSpan) -> ToolEnded:
    attributes = span.attributes or {}
    error = attributes.get(names.ERROR_TYPE)
    if error is None and not span.status.is_ok:
        error = "error"
    return ToolEnded(
        started.trace_id,
        started.span_id,
        span.end_time or 0,
        started.tool,
        started.agent,
        started.conversation,
        started.call_id or conventions.call_id(attributes),
        None if error is None else str(error),
    )
