"""Traces of the OpenAI Agents SDK as its processors export them: objects ``trace`` and ``trace.span``.

Spans of type ``agent`` are runs, ``function`` tool calls, ``generation`` and ``response`` model calls; the others
(handoffs, guardrails, speech, custom) only hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from kvtrace.tracer import attributes as names

from ..normal import Notes, Process, SpanRecord
from .build import build_record
from .json_values import json_values
from .stamps import NO_FIRST_TOKEN, say, stamp
from .values import BadValueError, text

KIND: Final = "OpenAI Agents SDK trace"

_SPAN: Final = "trace.span"
_TRACE: Final = "trace"
_OPERATIONS: Final = {
    "agent": names.OPERATION_INVOKE_AGENT,
    "function": names.OPERATION_EXECUTE_TOOL,
    "generation": names.OPERATION_CHAT,
    "response": names.OPERATION_CHAT,
}
_NO_CALL_IDS: Final = "tool call ids not visible"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like an exported trace of the SDK."""
    return b'"object"' in head and (
        (b'"trace.span"' in head and b'"span_data"' in head) or (b'"workflow_name"' in head and b'"group_id"' in head)
    )


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield every readable span of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    say(notes, NO_FIRST_TOKEN, _NO_CALL_IDS)
    process = notes.process(Process())
    for line, value in json_values(path, notes):
        for item in _items(value):
            try:
                record = _record(item, process, line, notes)
            except BadValueError as error:
                notes.skip(line, str(error))
                continue
            if record is not None:
                yield record


def _items(value: Any) -> list[Any]:
    """Objects of a list, of an upload (``{"data": [...]}``), or of a trace with its spans."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("data", "spans") if isinstance(value.get(key), list)), [value])
    return [each for item in value for each in (item if isinstance(item, list) else [item])]


def _record(item: Any, process: int, line: int, notes: Notes) -> SpanRecord | None:
    """Record of a span, ``None`` for a trace, which has no instants of its own."""
    if not isinstance(item, dict) or item.get("object") not in (_SPAN, _TRACE):
        raise BadValueError(f"no trace and no span: {str(item)[:40]}")
    if item["object"] == _TRACE:
        return None
    data = item.get("span_data")
    data = data if isinstance(data, dict) else {}
    kind, name = text(data.get("type")) or "", text(data.get("name"))
    return build_record(
        notes,
        line,
        process,
        ids=(
            text(item.get("trace_id")) or "",
            text(item.get("id")) or text(item.get("span_id")) or "",
            text(item.get("parent_id")) or "",
        ),
        name=name or kind,
        instants=(
            stamp(item.get("started_at"), "started_at", notes),
            stamp(item.get("ended_at"), "ended_at", notes),
        ),
        attributes=_attributes(kind, name, data),
        failed=item.get("error") is not None,
    )


def _attributes(kind: str, name: str | None, data: Mapping[str, Any]) -> dict[str, Any]:
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return {
        names.GEN_AI_OPERATION_NAME: _OPERATIONS.get(kind, kind),
        names.GEN_AI_TOOL_NAME: name,
        names.GEN_AI_AGENT_NAME: name if kind == "agent" else None,
        names.GEN_AI_USAGE_INPUT_TOKENS: usage.get("input_tokens", usage.get("prompt_tokens")),
        names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.get("output_tokens", usage.get("completion_tokens")),
    }
