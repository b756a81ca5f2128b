"""Gemini CLI's telemetry written to its ``outfile``: log records one after the other, pretty-printed, not a line each.

An event is stamped when what it tells of is over, so that its start is the instant less ``duration_ms``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from ..options import NS_PER_S
from .any_value import attributes
from .stamps import NO_APPROVALS, NO_FIRST_TOKEN, count, length_ns, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "Gemini CLI telemetry"

_API: Final = ("gemini_cli.api_response", "gemini_cli.api_error")
_TOOL: Final = "gemini_cli.tool_call"
_PROMPT: Final = "gemini_cli.user_prompt"
_WANTED: Final = frozenset(
    {
        "event.name",
        "event.timestamp",
        "session.id",
        "prompt_id",
        "duration_ms",
        "function_name",
        "success",
        "decision",
        "input_token_count",
        "output_token_count",
    }
)
_MS: Final = 1000


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like the log records."""
    return b'"gemini_cli.' in head and b'"event.name"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN)
    events: list[_Event] = []
    for line, document in _documents(path, notes):
        try:
            event = _event(document, notes) if isinstance(document, dict) else None
        except BadValueError as error:
            notes.skip(line, str(error))
            continue
        if event is not None:
            events.append(event)
    book = Book(notes, "gemini-telemetry")
    lanes: dict[str, Lane] = {}
    for number, event in enumerate(sorted(events, key=lambda event: event.at_ns)):
        session = text(event.said.get("session.id")) or path.stem
        if session not in lanes:
            lanes[session] = Lane(book, Owner(session, "gemini-cli"))
        _take(event, f"{session}@{event.at_ns}:{number}", lanes[session])
    for lane in lanes.values():
        lane.finish()
    yield from book.drain()


@dataclass(frozen=True, slots=True)
class _Event:
    at_ns: int
    name: str
    said: dict[str, Any] = field(hash=False)


def _documents(path: Path, notes: Notes) -> Iterator[tuple[int, Any]]:
    """JSON values of a file that follow one another with or without line breaks inside, and their first lines."""
    content = path.read_text(encoding="utf-8", errors="replace")
    decoder, at, line = json.JSONDecoder(), 0, 1
    while at < len(content):
        if content[at].isspace():
            line += content[at] == "\n"
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(content, at)
        except (ValueError, RecursionError) as error:
            notes.skip(line, f"not JSON: {str(error)[:60]}")
            end = content.find("\n{", at + 1) + 1 or len(content)
        else:
            yield line, value
        line += content.count("\n", at, end)
        at = end


def _event(record: dict[str, Any], notes: Notes) -> _Event | None:
    said = attributes(record.get("attributes"), _WANTED)
    name = text(said.get("event.name"))
    if name is None:
        return None
    at_ns = stamp(said.get("event.timestamp"), "event.timestamp", notes)
    moment = record.get("hrTime")
    if at_ns is None and isinstance(moment, list) and len(moment) == 2:
        at_ns = int(moment[0]) * NS_PER_S + int(moment[1])
    if at_ns is None:
        raise BadValueError(f"{name} without an instant")
    return _Event(at_ns, name, said)


def _take(event: _Event, key: str, lane: Lane) -> None:
    lasted_ns = length_ns(event.said.get("duration_ms"), _MS)
    if event.name == _PROMPT:
        lane.message(event.at_ns, key)
    elif event.name in _API and lasted_ns is not None:
        tokens = (count(event.said.get("input_token_count")), count(event.said.get("output_token_count")))
        lane.answered(event.at_ns - lasted_ns, event.at_ns, key, tokens)
    elif event.name == _TOOL and lasted_ns is not None:
        lane.call(event.at_ns - lasted_ns, key, text(event.said.get("function_name")) or "tool")
        failed = event.said.get("success") is False
        refused = event.said.get("decision") == "reject"
        lane.result(event.at_ns, key, None, "error" if failed and not refused else None, refused)
    else:
        lane.seen(event.at_ns)
