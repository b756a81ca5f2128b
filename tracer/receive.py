"""OTLP requests to signals: what a server does with a POST to ``/v1/traces`` or ``/v1/logs``, without the server.

Understood are open spans (no end time, as kvtrace and others send them at the start), complete spans of any exporter,
Logfire's pending spans, and log events ``kvtrace.span.started``, ``.heartbeat`` and ``.ended``; of all these only tools.
A complete span gives an end alone: one that was never seen open is over, and a start that ends in the same instant would
only make an engine copy for nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from . import attributes as names
from .conventions import call_id, conversation, is_pending, kind_of, tool_name
from .receive_body import PATHS, BadRequest, Encoding, Limits, accepted, open_body
from .receive_json import BadDocument, read_json
from .receive_protobuf import read_protobuf
from .receive_record import SPAN_DIGITS, TRACE_DIGITS, BadRecord, Record, Rejected, is_id
from .signals import Signal, ToolEnded, ToolStarted
from .wire import Budget, BudgetSpentError, WireError

__all__ = ["BadRequest", "Limits", "Received", "Receiver"]

_MOST_TOOL_NAME: Final = 256  # characters
_OTHER_ERROR: Final = "_OTHER"  # the conventions' error.type of a failure without one
_STARTS: Final = frozenset({names.EVENT_SPAN_STARTED, names.EVENT_SPAN_HEARTBEAT})
_EVENTS: Final = _STARTS | {names.EVENT_SPAN_ENDED}

SpanKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Received:
    """What came of a request: new signals in the order they stood in it, and the answer to send (HTTP 200)."""

    signals: tuple[Signal, ...]
    rejected: int
    response_body: bytes
    response_content_type: str
    status: int = 200


class Receiver:
    """Turns requests into signals, each start and each end of a tool call once.

    It remembers the last ``limits.remembered`` spans, so that what was delivered twice, or by two exporters, signals
    once, and an event that says only that a span ended is completed from its start. Safe to call from several threads.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        # The start of a call that is open; None once it ended.
        self._seen: OrderedDict[SpanKey, ToolStarted | None] = OrderedDict()
        self._lock = threading.Lock()

    def receive(
        self, body: bytes, content_type: str, content_encoding: str | None = None, *, path: str = "/v1/traces"
    ) -> Received:
        """Read one request.

        ``content_type`` and ``content_encoding`` are the headers' values. Spans and records that cannot be used are
        counted in the answer and passed over. Raises :class:`BadRequest` where nothing can be used; nothing is
        remembered then.
        """
        if path not in PATHS:
            raise BadRequest(404, f"nothing is received at {path[:80]!r}: send to {' or '.join(PATHS)}")
        data, encoding = open_body(body, content_type, content_encoding, self.limits)
        found, rejected = _sort_out(self._read(data, encoding, logs=path == "/v1/logs"))
        with self._lock:
            signals = tuple(self._news(found))
        why = rejected[0] if rejected else ""
        return Received(signals, len(rejected), accepted(encoding, path, len(rejected), why), encoding.value)

    def _read(self, data: bytes, encoding: Encoding, *, logs: bool) -> list[Record | Rejected]:
        """Read all of a request before anything comes of it."""
        try:
            if encoding is Encoding.JSON:
                return list(read_json(data, logs=logs))
            return list(read_protobuf(data, logs=logs, budget=Budget(self.limits.fields)))
        except BudgetSpentError:
            raise BadRequest(413, f"more than {self.limits.fields} fields: send smaller batches") from None
        except (WireError, BadDocument) as error:
            raise BadRequest(400, f"the body is no OTLP request: {error}") from None

    def _news(self, found: Iterable[tuple[Record, Signal | None]]) -> Iterator[Signal]:
        for record, signal in found:
            key = (record.trace_id, record.span_id)
            known = self._seen.get(key)
            ended = known is None and key in self._seen
            if signal is None and known is not None:
                signal = replace(_end(record, known.time_unix_ns), tool=known.tool)
            if signal is None or ended:
                continue
            if isinstance(signal, ToolEnded):
                self._remember(key, None)
                yield _completed(signal, known)
            elif known is None:
                self._remember(key, signal)
                yield signal

    def _remember(self, key: SpanKey, start: ToolStarted | None) -> None:
        self._seen[key] = start
        self._seen.move_to_end(key)
        while len(self._seen) > self.limits.remembered:
            self._seen.popitem(last=False)


def _sort_out(records: Iterable[Record | Rejected]) -> tuple[list[tuple[Record, Signal | None]], list[str]]:
    """Return records that matter with their signals, and why others were rejected.

    An end without a word about what ended has no signal of its own: only who saw it start can tell.
    """
    found: list[tuple[Record, Signal | None]] = []
    rejected: list[str] = []
    for record in records:
        if isinstance(record, Rejected):
            rejected.append(record.why)
            continue
        try:
            if (meant := _meaning(record)) is not None:
                found.append(meant)
        except BadRecord as error:
            rejected.append(str(error))
    return found, rejected


def _meaning(record: Record) -> tuple[Record, Signal | None] | None:
    is_tool = kind_of(record.attributes) == "tool"
    event = record.event if record.event != "" else record.attributes.get("event.name", "")
    if event is not None:
        if event not in _EVENTS or not (is_tool or event == names.EVENT_SPAN_ENDED):
            return None
        started = event in _STARTS
    elif not is_tool:
        return None
    elif is_pending(record.attributes):
        # Logfire's placeholder has an id of its own; its parent is the span that it stands for.
        record, started = replace(record, span_id=record.parent_id), True
    else:
        started = record.end_ns is None
    _check(record)
    if started:
        return record, _start(record)
    return record, _end(record, record.end_ns or 0) if is_tool else None


def _check(record: Record) -> None:
    if not is_id(record.trace_id, TRACE_DIGITS) or not is_id(record.span_id, SPAN_DIGITS):
        raise BadRecord("a trace or span id that is none")
    if record.start_ns is None and record.end_ns is None:
        raise BadRecord("a missing time")


def _start(record: Record) -> ToolStarted:
    if record.start_ns is None:
        raise BadRecord("a missing start time")
    return ToolStarted(record.trace_id, record.span_id, record.start_ns, _tool(record), *_owner(record))


def _end(record: Record, fallback_ns: int) -> ToolEnded:
    # An event has one time, its own.
    time_ns = record.start_ns if record.event is not None else record.end_ns
    error = record.attributes.get(names.ERROR_TYPE) or (_OTHER_ERROR if record.failed else None)
    owner = _owner(record)
    return ToolEnded(record.trace_id, record.span_id, time_ns or fallback_ns, _tool(record), *owner, error)


def _tool(record: Record) -> str:
    return tool_name(record.name, record.attributes)[:_MOST_TOOL_NAME] or "(no name)"


def _owner(record: Record) -> tuple[str | None, str | None, str | None]:
    agent = record.attributes.get(names.AGENT_ID) or None
    if agent == names.UNKNOWN_AGENT:
        agent = None
    return agent, conversation(record.attributes), call_id(record.attributes)


def _completed(end: ToolEnded, start: ToolStarted | None) -> ToolEnded:
    """Return ``end`` with what only its start told."""
    if start is None:
        return end
    return replace(
        end,
        agent=end.agent or start.agent,
        conversation=end.conversation or start.conversation,
        call_id=end.call_id or start.call_id,
    )
