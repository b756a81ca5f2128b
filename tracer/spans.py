"""The life of one span: a start record, the call itself, a complete record, and the user's own span beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from . import attributes as names
from .diagnostics import internal_error
from .identity import Agent, owner_of
from .otlp_json import (
    KIND_CLIENT,
    KIND_INTERNAL,
    RECORD_END,
    STATUS_ERROR,
    AttributeValue,
    encode_attributes,
    encode_text,
)
from .runtime import current

_OTEL_KINDS: Final = {KIND_INTERNAL: SpanKind.INTERNAL, KIND_CLIENT: SpanKind.CLIENT}
_CANCELLED: Final = frozenset({"CancelledError", "Cancelled"})  # asyncio's and trio's, neither of which is imported


@dataclass(frozen=True, slots=True)
class SpanTemplate:
    """What all spans of one decorated function have in common, encoded once."""

    name: str
    kind: int = KIND_INTERNAL
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    head_json: str = field(init=False)
    attributes_json: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "head_json", f'"name":{encode_text(self.name)},"kind":{self.kind},')
        object.__setattr__(self, "attributes_json", encode_attributes(self.attributes))


class OpenSpan:
    """A span from its start to its end.

    Constructing one starts it: the start record is on disk afterwards. Where recording is disabled, or fails, the span
    records nothing and only carries ``context``, the caller's own by default. It is current only between :meth:`attach` and
    :meth:`detach`. :meth:`end` may be called any number of times and never raises; a span that is dropped without it
    (a generator nobody finished) ends then, as closed.
    """

    __slots__ = (
        "_context",
        "_ended",
        "_file",
        "_otel_span",
        "_record",
        "_token",
        "agent",
        "late_attributes",
        "runtime",
        "span_id",
        "start_unix_ns",
        "trace_id",
    )

    def __init__(
        self,
        template: SpanTemplate,
        *,
        agent: Agent | None = None,
        extra: Mapping[str, AttributeValue] | None = None,
        context: Context | None = None,
    ) -> None:
        self._ended = True  # until it really began: what fails half-way has nothing to end
        base = otel_context.get_current() if context is None else context
        self.runtime = runtime = current()
        self._file = runtime.file
        self._context = base
        self._otel_span: Span | None = None
        self._token: Token[Context] | None = None
        self.late_attributes: dict[str, AttributeValue] = {}
        self.agent = agent
        if runtime.settings.disabled:
            return
        try:
            self._start(template, extra, base)
        except Exception as error:
            internal_error("the start of a span", error)

    def attach(self) -> None:
        """Make the span current in the caller's context."""
        self._token = otel_context.attach(self._context)

    def detach(self) -> None:
        """Give the caller's context back as it was before :meth:`attach`."""
        token, self._token = self._token, None
        if token is not None:
            reset_context(token)

    def suspend(self) -> None:
        """Detach, and keep what the call made current (its own child spans) for the next :meth:`attach`."""
        self._context = otel_context.get_current()
        self.detach()

    def end(self, error: BaseException | None = None) -> None:
        """End the span now; ``error`` is what the call raised, of which only the class is recorded."""
        if self._ended:
            return
        self._ended = True
        if self._file.abandoned:  # begun in the parent process, which ends it
            return
        try:
            self._finish(error)
        except Exception as failure:
            internal_error("the end of a span", failure)

    def end_with(self, result: object) -> None:
        """End the span of a call that returned ``result``."""
        if not self._ended:
            self._returned(result)
            self.end()

    def __del__(self) -> None:
        if not self._ended:
            # Possibly during the interpreter's last moments, when anything may be gone.
            with contextlib.suppress(BaseException):
                self.end(GeneratorExit())

    def _start(self, template: SpanTemplate, extra: Mapping[str, AttributeValue] | None, base: Context) -> None:
        runtime = self.runtime
        self.agent = owner = self.agent or owner_of(base)
        self.start_unix_ns = runtime.clock.unix_ns()
        parent = trace.get_current_span(base).get_span_context()
        ids = self._begin_otel(template, owner, extra, base, parent) or self._own_ids(parent)
        self.trace_id, self.span_id = f"{ids.trace_id:032x}", f"{ids.span_id:016x}"
        self._context = trace.set_span_in_context(self._otel_span or NonRecordingSpan(ids), base)
        self._record = self._encode_start(template, owner, extra, parent)
        self._ended = False
        self._file.append(self._record + "]}" + RECORD_END)
        self._file.heartbeat.enter(self.span_id)
        self._started()

    def _started(self) -> None:
        """Tell who wants to know; the start record is on disk."""

    def _returned(self, result: object) -> None:
        """Look at what the call returned, just before the end."""

    def _finished(self, end_unix_ns: int, error_type: str | None) -> None:
        """Tell who wants to know; the complete record is on disk."""

    def _begin_otel(
        self,
        template: SpanTemplate,
        owner: Agent,
        extra: Mapping[str, AttributeValue] | None,
        base: Context,
        parent: SpanContext,
    ) -> SpanContext | None:
        """Start the user's own span and return its ids, or ``None`` where it has none of its own."""
        try:
            tracer = self.runtime.tracer()
            if tracer is None:
                return None
            span = tracer.start_span(
                template.name,
                context=base,
                kind=_OTEL_KINDS[template.kind],
                attributes={**template.attributes, **owner.attributes, **(extra or {})},
                start_time=self.start_unix_ns,
            )
            ids = span.get_span_context()
        except Exception as error:
            internal_error("the start of an OpenTelemetry span", error)
            return None
        # A tracer that does nothing hands out its parent, or an invalid span.
        if not ids.is_valid or ids.span_id == parent.span_id:
            return None
        self._otel_span = span
        return ids

    def _own_ids(self, parent: SpanContext) -> SpanContext:
        """Make ids that children can nest under. A root is marked sampled, so that it silences nobody below it."""
        ids = self.runtime.ids
        if parent.is_valid:
            return SpanContext(parent.trace_id, ids.span_id(), False, parent.trace_flags, parent.trace_state)
        return SpanContext(ids.trace_id(), ids.span_id(), False, TraceFlags(TraceFlags.SAMPLED))

    def _encode_start(
        self, template: SpanTemplate, owner: Agent, extra: Mapping[str, AttributeValue] | None, parent: SpanContext
    ) -> str:
        """Return the record up to the end of its attributes, which both records begin with."""
        parent_json = f'"parentSpanId":"{parent.span_id:016x}",' if parent.is_valid else ""
        extra_json = f",{encode_attributes(extra)}" if extra else ""
        return (
            f'{self.runtime.record_start}{{"traceId":"{self.trace_id}","spanId":"{self.span_id}",{parent_json}'
            f'{template.head_json}"startTimeUnixNano":"{self.start_unix_ns}",'
            f'"attributes":[{template.attributes_json},{owner.attributes_json}{extra_json}'
        )

    def _finish(self, error: BaseException | None) -> None:
        end_unix_ns = max(self.runtime.clock.unix_ns(), self.start_unix_ns)
        outcome, error_type = _outcome_of(error)
        late = self.late_attributes
        if outcome is not None:
            late[names.OUTCOME] = outcome
        if error_type is not None:
            late[names.ERROR_TYPE] = error_type
        late_json = f",{encode_attributes(late)}" if late else ""
        status_json = f',"status":{{"code":{STATUS_ERROR}}}' if error_type is not None else ""
        self._file.append(f'{self._record}{late_json}],"endTimeUnixNano":"{end_unix_ns}"{status_json}}}{RECORD_END}')
        self._file.span_ended(self.span_id)
        self._finished(end_unix_ns, error_type)
        if self._otel_span is not None:
            _end_otel(self._otel_span, late, error_type, end_unix_ns)


def _outcome_of(error: BaseException | None) -> tuple[str | None, str | None]:
    """Return (kvtrace.outcome, error.type) for what a call raised."""
    if error is None:
        return None, None
    kind = type(error)
    if isinstance(error, GeneratorExit):
        return names.OUTCOME_CLOSED, None
    if kind.__name__ in _CANCELLED and not isinstance(error, Exception):
        return names.OUTCOME_CANCELLED, None
    return None, kind.__qualname__


def _end_otel(span: Span, late: Mapping[str, AttributeValue], error_type: str | None, end_unix_ns: int) -> None:
    try:
        if late:
            span.set_attributes(dict(late))
        if error_type is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_unix_ns)
    except Exception as error:
        internal_error("the end of an OpenTelemetry span", error)


def reset_context(token: Any) -> None:
    """Undo an attach, without the log line of ``context.detach`` where another Context is current.

    That happens when a generator or coroutine is closed from elsewhere; the span was never current there.
    """
    with contextlib.suppress(ValueError, RuntimeError):
        if isinstance(token, Token):
            token.var.reset(token)
        else:
            otel_context.detach(token)
