"""OTLP log records that stand for spans: kvtrace's own start and end events, and the events coding agents write.

kvtrace's carry the ids of their span: ``kvtrace.span.started``, ``.heartbeat`` and ``.ended``. Claude Code, Codex and
Gemini CLI log a call when it is over, with its duration, so its start is the difference of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kvtrace.tracer import attributes as names

from ..normal import Notes, SpanRecord
from .any_value import attributes
from .build import build_record
from .genai import WANTED
from .moments import moment
from .values import BadValueError, identifier, instant, text

_EVENT_NAME: Final = "event.name"
_EVENT_TIME: Final = "event.timestamp"
_EVENT_ORDER: Final = "event.sequence"
_DURATION_MS: Final = "duration_ms"
_SESSIONS: Final = ("session.id", "conversation.id")
_EVENT_CALL_IDS: Final = ("tool_use_id", "call_id")
_EVENT_TOOLS: Final = ("tool_name", "function_name")
_CALLS: Final = {
    "claude_code.tool_result": names.OPERATION_EXECUTE_TOOL,
    "claude_code.api_request": names.OPERATION_CHAT,
    "codex.tool_result": names.OPERATION_EXECUTE_TOOL,
    "codex.api_request": names.OPERATION_CHAT,
    "gemini_cli.tool_call": names.OPERATION_EXECUTE_TOOL,
    "gemini_cli.api_response": names.OPERATION_CHAT,
}
_LOG_WANTED: Final = WANTED | {
    *(names.EVENT_SPAN_NAME, names.EVENT_SPAN_PARENT, _EVENT_NAME, _EVENT_TIME, _EVENT_ORDER, _DURATION_MS),
    *_SESSIONS,
    *_EVENT_CALL_IDS,
    *_EVENT_TOOLS,
}
_NO_STREAM: Final = "end of a streamed answer not visible (the duration the log tells is taken)"


class _Event(NamedTuple):
    name: str
    at_ns: int | None
    ids: tuple[str, str]
    values: Mapping[str, Any]


@dataclass(slots=True)
class LogReader:
    """Turns log records into spans; remembers what started, since an end tells only the end."""

    notes: Notes
    started: dict[tuple[str, str], SpanRecord] = field(default_factory=dict)

    def records(self, log: Mapping[str, Any], process: int, line: int) -> Iterator[SpanRecord]:
        """Yield the span a log record tells of; other log records are passed over in silence.

        Raises :class:`BadValueError` where it tells nothing usable.
        """
        event = _event(log)
        if event.name in (names.EVENT_SPAN_STARTED, names.EVENT_SPAN_HEARTBEAT, names.EVENT_SPAN_ENDED):
            yield self._own(event, process, line)
        elif event.name in _CALLS:
            if _NO_STREAM not in self.notes.cannot_show:
                self.notes.cannot_show.append(_NO_STREAM)
            yield self._call(event, process, line)

    def _own(self, event: _Event, process: int, line: int) -> SpanRecord:
        trace_id, span_id = event.ids
        began = self.started.get(event.ids)
        name, parent = (
            text(event.values.get(names.EVENT_SPAN_NAME)) or "",
            text(event.values.get(names.EVENT_SPAN_PARENT)) or "",
        )
        if event.name == names.EVENT_SPAN_HEARTBEAT:
            # Says no more than that the process lived: a span of no kind, apart from the one it speaks for.
            ids, instants = (trace_id, f"{span_id}/{event.at_ns}", span_id), (event.at_ns, event.at_ns)
            return build_record(self.notes, line, process, ids, names.EVENT_SPAN_HEARTBEAT, instants, {}, False)
        if event.name == names.EVENT_SPAN_ENDED and began is not None:
            return began._replace(end_ns=event.at_ns, error=text(event.values.get(names.ERROR_TYPE)))
        instants = (event.at_ns, None) if event.name == names.EVENT_SPAN_STARTED else (None, event.at_ns)
        ids = (trace_id, span_id, identifier(parent, 16, names.EVENT_SPAN_PARENT))
        record = build_record(self.notes, line, process, ids, name, instants, event.values, False)
        if event.name == names.EVENT_SPAN_STARTED:
            self.started[event.ids] = record
        return record

    def _call(self, event: _Event, process: int, line: int) -> SpanRecord:
        session = _first(event.values, _SESSIONS) or event.ids[0] or "session"
        call_id = _first(event.values, _EVENT_CALL_IDS)
        order = text(event.values.get(_EVENT_ORDER)) or ""
        said = {
            **event.values,
            names.GEN_AI_OPERATION_NAME: _CALLS[event.name],
            names.GEN_AI_TOOL_NAME: _first(event.values, _EVENT_TOOLS),
            names.GEN_AI_TOOL_CALL_ID: call_id,
            names.AGENT_ID: session,
        }
        ids = (session, call_id or f"{event.name}@{event.at_ns}{order and f'#{order}'}", "")
        instants = (_start(event), event.at_ns)
        # Less its prefix, by which the dialects tell spans.
        name = event.name.rpartition(".")[2]
        return build_record(self.notes, line, process, ids, name, instants, said, failed=False, confidence="derived")


def _event(log: Mapping[str, Any]) -> _Event:
    values = attributes(log.get("attributes"), _LOG_WANTED)
    body = log.get("body")
    said = body.get("stringValue") if isinstance(body, dict) else body
    # Claude Code's attribute leaves out the prefix that its body has.
    named = (log.get("eventName"), log.get("event_name"), said, values.get(_EVENT_NAME))
    known = (*_CALLS, names.EVENT_SPAN_STARTED, names.EVENT_SPAN_HEARTBEAT, names.EVENT_SPAN_ENDED)
    name = next((name for name in named if name in known), "")
    # Codex leaves timeUnixNano at 0.
    times = (log.get("timeUnixNano"), log.get("observedTimeUnixNano"), values.get(_EVENT_TIME))
    at_ns = next((at for at in (moment(value, "timeUnixNano") for value in times) if at is not None), None)
    ids = identifier(log.get("traceId"), 32, "traceId"), identifier(log.get("spanId"), 16, "spanId")
    return _Event(name, at_ns, ids, values)


def _start(event: _Event) -> int | None:
    try:
        duration_ms = float(event.values.get(_DURATION_MS, ""))
    except (TypeError, ValueError):
        raise BadValueError(f"{event.name} without {_DURATION_MS}") from None
    if not 0 <= duration_ms < 1e12:
        raise BadValueError(f"{_DURATION_MS} of {event.name} is no duration: {duration_ms:g}")
    return None if event.at_ns is None else instant(event.at_ns - round(duration_ms * 1e6), f"start of {event.name}")


def _first(values: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((said for said in (text(values.get(key)) for key in keys) if said is not None), None)
