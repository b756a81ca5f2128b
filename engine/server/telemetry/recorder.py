"""Makes spans of requests and of KV, each under the span that caused it. Off the engine's and the server's threads."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvtrace.tracer.clock import SYSTEM_CLOCK, Clock

from ...records import EngineEvent, EventKind
from ..records import RequestRecord
from .spans import SpanContent, kv_span, request_span

QUEUED: Final = 4096  # records and events that wait; one more is dropped and counted
PATIENCE_S: Final = 1.0
"""How long a park without a tool's span waits for the turn that caused it: that request's record may come after it."""

REQUEST_S: Final = 600.0
"""How long a restore without one waits for the request that caused it, which is recorded when it is over."""

_KEPT_TURNS: Final = 4
_AGENTS: Final = 4096
_TICK_S: Final = 0.25
_log = logging.getLogger(__name__)


class SpanRecorder:
    """Writes spans with a tracer. :meth:`request` and :meth:`event` only queue and may be called from any thread.

    A request's span is a child of the request's ``traceparent``. A ``kv.park`` or ``kv.restore`` is a child of the tool
    span that caused it, in the agent's own trace, and is linked to it. Where there is none, the cause is a request: the
    turn that ended before a park, the one that waited for a restore.

    Args:
        tracer: starts the spans.
        model: id of the model that is served, once it is.
        clock: tells when it has waited long enough.
    """

    def __init__(self, tracer: trace.Tracer, model: Callable[[], str], clock: Clock = SYSTEM_CLOCK) -> None:
        self.dropped = 0
        self._clock = clock
        self._tracer = tracer
        self._model = model
        self._inbox: queue.Queue[RequestRecord | EngineEvent | None] = queue.Queue(QUEUED)
        self._turns: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._waiting: list[tuple[EngineEvent, SpanContent]] = []
        self._thread = threading.Thread(target=self._run, name="kvtrace-spans", daemon=True)
        self._thread.start()

    def request(self, record: RequestRecord) -> None:
        """A request is over."""
        self._put(record)

    def event(self, event: EngineEvent) -> None:
        """Something happened to an agent's KV."""
        if kv_span(event) is not None:
            self._put(event)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and end the thread."""
        self._inbox.put(None)
        self._thread.join(timeout_s)

    def _put(self, item: RequestRecord | EngineEvent) -> None:
        try:
            self._inbox.put_nowait(item)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                _log.warning("more than %d spans wait to be written; further ones are dropped", QUEUED)

    def _run(self) -> None:
        while True:
            try:
                item = self._inbox.get(timeout=_TICK_S)
            except queue.Empty:
                self._settle(self._clock.unix_ns())
                continue
            try:
                if isinstance(item, RequestRecord):
                    self._request(item)
                elif item is not None:
                    self._event(item)
                self._settle(self._clock.unix_ns(), last=item is None)
            except Exception:  # spans never break what they tell about
                _log.exception("a span could not be written")
            if item is None:
                return

    def _request(self, record: RequestRecord) -> None:
        carrier = {"traceparent": record.traceparent} if record.traceparent else {}
        parent = TraceContextTextMapPropagator().extract(carrier, Context())
        context = self._write(request_span(record, self._model()), parent)
        turns = self._turns.setdefault(record.agent, deque(maxlen=_KEPT_TURNS))
        turns.append(_Turn(record.arrived_unix_ns, record.ended_unix_ns, context))
        self._turns.move_to_end(record.agent)
        while len(self._turns) > _AGENTS:
            self._turns.popitem(last=False)

    def _event(self, event: EngineEvent) -> None:
        content = kv_span(event)
        assert content is not None
        if event.trace_id is not None and event.span_id is not None:
            self._write_under(content, _remote(event.trace_id, event.span_id))
        else:
            self._waiting.append((event, content))

    def _settle(self, now_ns: int, *, last: bool = False) -> None:
        """Write the spans whose cause is known by now, and those that have waited for it long enough."""
        still = []
        for event, content in self._waiting:
            age_s = (now_ns - event.time_unix_ns) / 1e9
            park = event.kind is EventKind.PARK
            overdue = last or age_s > (PATIENCE_S if park else REQUEST_S)
            cause = self._cause(event.agent, content.start_ns, within=not park)
            if cause is not None and (overdue or not park):
                self._write_under(content, cause)
            elif overdue:
                self._write(content, Context())
            else:
                still.append((event, content))
        self._waiting = still[-QUEUED:]

    def _cause(self, agent: str, start_ns: int, *, within: bool) -> SpanContext | None:
        """The newest request that had come by ``start_ns``; ``within`` asks that it was not over yet."""
        for turn in reversed(self._turns.get(agent, ())):
            if turn.arrived_ns <= start_ns and (not within or start_ns <= turn.ended_ns):
                return turn.context
        return None

    def _write_under(self, content: SpanContent, cause: SpanContext) -> None:
        parent = trace.set_span_in_context(NonRecordingSpan(cause), Context())
        self._write(content, parent, [Link(cause)])

    def _write(self, content: SpanContent, parent: Context, links: list[Link] | None = None) -> SpanContext:
        span = self._tracer.start_span(
            content.name,
            parent,
            content.kind,
            attributes=content.attributes,
            links=links,
            start_time=content.start_ns,
        )
        if content.error is not None:
            span.set_status(Status(StatusCode.ERROR, content.error))
        span.end(content.end_ns)
        return span.get_span_context()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request that is over, and its span."""

    arrived_ns: int
    ended_ns: int
    context: SpanContext


def _remote(trace_id: str, span_id: str) -> SpanContext:
    # A signal does not say whether its trace is sampled; one that asks for an engine's attention is taken for it.
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
