"""TraceLab's ``round_trace.jsonl``: one model call a line, with the events around it and the tools it asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, count, length_ns, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "TraceLab rounds"

_ANSWERS: Final = frozenset({"reasoning", "text", "tool_call", "message"})
_MS: Final = 1000


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like rounds."""
    return b'"round_index"' in head and b'"timing_events"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, DERIVED_MODEL)
    book = Book(notes, "tracelab")
    lanes: dict[str, Lane] = {}
    for line, row in json_values(path, notes):
        session = text(row.get("session_id")) if isinstance(row, dict) else None
        if session is None:
            notes.skip(line, "no round of a session")
            continue
        if session not in lanes:
            lanes[session] = Lane(book, Owner(session, text(row.get("provider")) or "agent"))
        try:
            _round(row, session, lanes[session], notes)
        except BadValueError as error:
            notes.skip(line, str(error))
        yield from book.drain()
    for lane in lanes.values():
        lane.finish()
    yield from book.drain()


def _round(row: dict[str, Any], session: str, lane: Lane, notes: Notes) -> None:
    # Round ids are not unique in a session, their numbers are not either: a session may be recorded twice.
    key = f"{session}:{row.get('round_index')}:{row.get('round_id')}"
    tokens = (count(row.get("input_tokens_total")), count(row.get("output_tokens")))
    tools = _objects(row.get("tools"))
    calls = {
        tool.get("tool_index"): text(tool.get("tool_call_id")) or f"{key}:{tool.get('tool_index')}" for tool in tools
    }
    for event in _objects(row.get("timing_events")):
        at_ns = stamp(event.get("timestamp"), "timestamp", notes)
        kind = event.get("event_type")
        if at_ns is None:
            continue
        if kind == "user_message":
            lane.message(at_ns, f"{session}@{at_ns}")
        elif kind in _ANSWERS:
            lane.output(at_ns, key, tokens)
    results: list[tuple[int, str, dict[str, Any]]] = []
    for tool in tools:
        call_id = calls[tool.get("tool_index")]
        start_ns = stamp(tool.get("emitted_at"), "emitted_at", notes)
        end_ns = stamp(tool.get("result_at"), "result_at", notes)
        if start_ns is not None:
            lane.call(start_ns, call_id, text(tool.get("tool_name")) or "tool")
        if end_ns is not None:
            results.append((end_ns, call_id, tool))
    for end_ns, call_id, tool in sorted(results, key=lambda result: result[:2]):
        error = "error" if tool.get("is_error") is True else None
        lane.result(end_ns, call_id, length_ns(tool.get("tool_internal_latency_ms"), _MS), error)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
