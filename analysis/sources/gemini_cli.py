"""Gemini CLI sessions: one document with ``messages``, or a message a line, as below ``~/.gemini/tmp``.

A message is stamped when the answer is complete, a tool call when the tool has finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, count, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "Gemini CLI session"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a session."""
    return b'"sessionId"' in head and b'"projectHash"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, DERIVED_MODEL)
    session, sub, messages = path.stem, False, dict[str, tuple[int, dict[str, Any]]]()
    for line, value in json_values(path, notes):
        if not isinstance(value, dict):
            notes.skip(line, f"{type(value).__name__} instead of an object")
            continue
        session = text(value.get("sessionId")) or session
        sub = sub or value.get("kind") == "subagent"
        listed = value.get("messages")
        for message in listed if isinstance(listed, list) else [value] if "type" in value else []:
            if isinstance(message, dict):
                # A message that is written again, with its tools' results, replaces itself.
                messages[text(message.get("id")) or f"{session}:{len(messages)}"] = (line, message)
    lane = Lane(Book(notes, "gemini-cli"), Owner(session, "sub-agent" if sub else "gemini-cli"))
    for key, (line, message) in messages.items():
        try:
            _message(message, key, lane, notes)
        except BadValueError as error:
            notes.skip(line, str(error))
    lane.finish()
    yield from lane.book.drain()


def _message(message: dict[str, Any], key: str, lane: Lane, notes: Notes) -> None:
    at_ns = stamp(message.get("timestamp"), "timestamp", notes)
    if at_ns is None:
        raise BadValueError("message without a timestamp")
    kind = message.get("type")
    if kind == "user":
        lane.message(at_ns, key)
    elif kind == "gemini":
        tokens = message.get("tokens")
        usage = (count(tokens.get("input")), count(tokens.get("output"))) if isinstance(tokens, dict) else (None, None)
        lane.output(at_ns, key, usage)
        _tools(message.get("toolCalls"), key, at_ns, lane, notes)
    elif kind == "error":
        lane.stopped(at_ns)
    else:
        lane.seen(at_ns)


def _tools(calls: Any, key: str, at_ns: int, lane: Lane, notes: Notes) -> None:
    ended: list[tuple[int, str, str]] = []
    for number, call in enumerate(calls if isinstance(calls, list) else ()):
        if not isinstance(call, dict):
            continue
        call_id = text(call.get("id")) or f"{key}:{number}"
        lane.call(at_ns, call_id, text(call.get("name")) or "tool")
        end_ns = stamp(call.get("timestamp"), "toolCalls timestamp", notes)
        if end_ns is not None:
            ended.append((end_ns, call_id, str(call.get("status"))))
    for end_ns, call_id, status in sorted(ended):
        lane.result(end_ns, call_id, None, "error" if status == "error" else None, status == "cancelled")
