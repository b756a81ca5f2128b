"""OpenCode: ``opencode run --format json``, ``opencode export``, and the files of its storage folder, one object each.

A message of the assistant, or a step of a run, is a model call that holds its tools; ids are unique in the world, so
that a message and its parts find each other though they are in different files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .json_values import json_values
from .stamps import NO_APPROVALS, NO_FIRST_TOKEN, count, say, stamp
from .transcript import QUESTIONS, Book, Owner, tool_span
from .values import BadValueError, text

KIND: Final = "OpenCode"

_TRACE: Final = "opencode"
_ENDED: Final = frozenset({"completed", "error"})
_STORAGE_LIMIT: Final = "pauses inside a turn not visible (they count as a person's time)"
_RUN_LIMIT: Final = "time before a step's first output not visible (it counts as overhead)"
_EVENTS: Final = (b'"step_start"', b'"tool_use"', b'"step_finish"')


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like OpenCode's events, export, or one of its stored objects."""
    if b'"sessionID"' in head:
        return b'"messageID"' in head or b'"role"' in head or any(mark in head for mark in _EVENTS)
    return b'"projectID"' in head and b'"directory"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN)
    reader = _Reader(notes, Book(notes, _TRACE))
    for line, value in json_values(path, notes):
        if not isinstance(value, dict):
            notes.skip(line, f"{type(value).__name__} instead of an object")
            continue
        try:
            reader.value(value)
        except BadValueError as error:
            notes.skip(line, str(error))
        yield from reader.book.drain()
    reader.finish()
    yield from reader.book.drain()


@dataclass(slots=True)
class _Reader:
    """What is open in the file: a run's step by session, and from when to when each session ran."""

    notes: Notes
    book: Book
    steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    runs: dict[str, tuple[int, int]] = field(default_factory=dict)

    def value(self, value: dict[str, Any]) -> None:
        """Take an event, an export, a message or a part."""
        if isinstance(value.get("messages"), list):
            for message in value["messages"]:
                if isinstance(message, dict):
                    self._exported(message)
        elif isinstance(value.get("part"), dict):
            self._event(value, value["part"])
        elif value.get("type") == "tool":
            self._tool(value)
        elif "role" in value:
            self._message(value)

    def finish(self) -> None:
        """A run's session ends with the file, and so does a step that was cut off."""
        for session, (key, start_ns) in self.steps.items():
            self._model(key, session, start_ns, None, None)
        for session, (start_ns, end_ns) in self.runs.items():
            if end_ns > start_ns:
                self.book.add("agent", f"run:{session}", "opencode", Owner(session, "opencode"), start_ns, end_ns)

    def _exported(self, message: dict[str, Any]) -> None:
        info, parts = message.get("info"), message.get("parts")
        if isinstance(info, dict):
            self._message(info)
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and part.get("type") == "tool":
                self._tool(part)

    def _event(self, event: dict[str, Any], part: dict[str, Any]) -> None:
        at_ns = stamp(event.get("timestamp"), "timestamp", self.notes)
        if at_ns is None:
            raise BadValueError("event without a timestamp")
        say(self.notes, _RUN_LIMIT)
        session = text(event.get("sessionID")) or self.notes.path.stem
        first, last = self.runs.get(session, (at_ns, at_ns))
        self.runs[session] = (min(first, at_ns), max(last, at_ns))
        key = text(part.get("messageID")) or text(part.get("id")) or session
        kind = event.get("type")
        if kind == "step_start":
            self.steps[session] = (key, at_ns)
        elif kind == "tool_use":
            self._tool(part)
        elif kind == "step_finish" and session in self.steps:
            key, start_ns = self.steps.pop(session)
            self._model(key, session, start_ns, at_ns, part.get("tokens"))

    def _message(self, message: dict[str, Any]) -> None:
        if message.get("role") != "assistant":
            return
        session, key = text(message.get("sessionID")), text(message.get("id"))
        time = message.get("time")
        if session is None or key is None or not isinstance(time, dict):
            raise BadValueError("message without id, sessionID or time")
        start_ns = stamp(time.get("created"), "created", self.notes)
        end_ns = stamp(time.get("completed"), "completed", self.notes)
        say(self.notes, _STORAGE_LIMIT)
        self._model(key, session, start_ns, end_ns, message.get("tokens"))
        self.book.add("agent", f"turn:{key}", "opencode", Owner(session, "opencode"), start_ns, end_ns)

    def _model(self, key: str, session: str, start_ns: int | None, end_ns: int | None, tokens: Any) -> None:
        usage: tuple[int | None, int | None] = (None, None)
        if isinstance(tokens, dict):
            cache = tokens.get("cache")
            cached = cache if isinstance(cache, dict) else {}
            context = (tokens.get("input"), cached.get("read"), cached.get("write"))
            usage = (count(*context), count(tokens.get("output"), tokens.get("reasoning")))
        owner = Owner(session, "opencode")
        self.book.add("model", f"answer:{key}", "answer", owner, start_ns, end_ns, confidence="exact", tokens=usage)

    def _tool(self, part: dict[str, Any]) -> None:
        state = part.get("state")
        state = state if isinstance(state, dict) else {}
        time = state.get("time")
        time = time if isinstance(time, dict) else {}
        session, call_id = text(part.get("sessionID")), text(part.get("callID")) or text(part.get("id"))
        if session is None or call_id is None:
            raise BadValueError("tool part without callID or sessionID")
        start_ns = stamp(time.get("start"), "start", self.notes)
        end_ns = stamp(time.get("end"), "end", self.notes) if state.get("status") in _ENDED else None
        if start_ns is None and state.get("status") == "pending":
            return
        name, owner = text(part.get("tool")) or "tool", Owner(session, "opencode")
        self.book.add(
            "tool",
            tool_span(call_id),
            name,
            owner,
            start_ns,
            end_ns,
            call_id=call_id,
            error="error" if state.get("status") == "error" else None,
            parent_span=f"answer:{text(part.get('messageID'))}",
            confidence="exact",
        )
        if name in QUESTIONS:
            # Inside the call, for the call itself lies inside the answer that asks for it.
            self.book.add(
                "human",
                f"asked:{call_id}",
                name,
                owner,
                start_ns,
                end_ns,
                parent_span=tool_span(call_id),
                confidence="exact",
            )
        about = state.get("metadata")
        sub = text(about.get("sessionId")) if isinstance(about, dict) else None
        if sub is not None:
            child = Owner(sub, "sub-agent", session, call_id)
            self.book.add("agent", f"agent:{sub}", "sub-agent", child, start_ns, end_ns)
