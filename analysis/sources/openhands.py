"""OpenHands: trajectories of version 0 (``action`` and ``observation`` events) and event lists of version 1 (``kind``).

Also an evaluation's ``output.jsonl``, whose lines hold a ``history`` each, and the folder of a stored conversation, whose
events are a file each: the first of them is read for all. An action is stamped when the answer that asks for it is
complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "OpenHands events"

_NO_TOOL: Final = frozenset({"message", "finish", "reject", "condensation", "condensation_request"})
_OF_PROGRAM: Final = frozenset({"system", "change_agent_state", "recall", "null", "start_task"})
_VERSION1: Final = (
    *(b'"ActionEvent"', b'"ObservationEvent"', b'"MessageEvent"', b'"SystemPromptEvent"', b'"AgentErrorEvent"'),
    *(b'"UserRejectObservation"', b'"PauseEvent"', b'"InterruptEvent"', b'"Condensation"', b'"CondensationRequest"'),
    *(b'"ConversationStateUpdateEvent"', b'"ConversationErrorEvent"'),
)
_STORED: Final = re.compile(r"event-\d+-[0-9a-fA-F-]+\.json")
_SINGLE: Final = "one event of many, which says nothing alone; give the whole list (jq -s . events/*.json)"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like events of either version."""
    if b'"timestamp"' not in head:
        return False
    if b'"kind"' in head and any(mark in head for mark in _VERSION1):
        return True
    if b'"source"' not in head:
        return False
    return (b'"action"' in head and b'"args"' in head) or (b'"observation"' in head and b'"extras"' in head)


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, DERIVED_MODEL)
    if _STORED.fullmatch(path.name):
        yield from _stored(path, notes)
        return
    loose: list[tuple[int, dict[str, Any]]] = []
    for line, value in json_values(path, notes):
        if isinstance(value, dict) and ("action" in value or "observation" in value or "kind" in value):
            loose.append((line, value))
            continue
        history = value.get("history", value.get("events")) if isinstance(value, dict) else value
        if not isinstance(history, list):
            notes.skip(line, "no list of events")
            continue
        name = text(value.get("instance_id")) if isinstance(value, dict) else None
        yield from _session([(line, event) for event in _flat(history)], name or path.stem, notes)
    if len(loose) == 1:
        notes.skip(0, _SINGLE)
    elif loose:
        yield from _session(loose, path.stem, notes)


def _stored(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """All events of a conversation with the first of its files, and nothing with the others."""
    files = sorted(each for each in path.parent.iterdir() if _STORED.fullmatch(each.name))
    if path.name != files[0].name:
        return
    notes.alone = False
    events = [(1, value) for file in files for _, value in json_values(file, notes) if isinstance(value, dict)]
    yield from _session(events, path.parent.parent.name or path.stem, notes)


def _flat(history: list[Any]) -> Iterator[dict[str, Any]]:
    """Events of a list, or of the pairs of an action and its observation that older evaluations wrote."""
    for item in history:
        for event in item if isinstance(item, list) else [item]:
            if isinstance(event, dict):
                yield event


def _session(events: list[tuple[int, dict[str, Any]]], name: str, notes: Notes) -> Iterator[SpanRecord]:
    """One agent's events. Ids count from 0 in every list, so the first instant joins the name in telling lists apart."""
    began = next((text(event.get("timestamp")) for _, event in events), None)
    book = Book(notes, f"openhands:{name}:{began}")
    reader = _Reader(notes, Lane(book, Owner(f"{name}@{began}", name)))
    for line, event in events:
        try:
            reader.event(event)
        except BadValueError as error:
            notes.skip(line, str(error))
    reader.lane.finish()
    yield from book.drain()


@dataclass(slots=True)
class _Reader:
    """The lane of one session. An answer's further actions are carried out one by one, but were asked for at once."""

    notes: Notes
    lane: Lane
    answers: set[str] = field(default_factory=set)
    asked: dict[str, str] = field(default_factory=dict)

    def event(self, event: dict[str, Any]) -> None:
        at_ns = stamp(event.get("timestamp"), "timestamp", self.notes)
        if at_ns is None:
            raise BadValueError("event without a timestamp")
        if "kind" in event:
            self._version1(event, str(event["kind"]), at_ns)
        elif "observation" in event:
            self._observation0(event, at_ns)
        else:
            self._action0(event, str(event.get("action")), at_ns)

    def _action0(self, event: dict[str, Any], action: str, at_ns: int) -> None:
        key = str(event.get("id"))
        if action in _OF_PROGRAM or event.get("source") == "environment":
            self.lane.seen(at_ns)
        elif event.get("source") == "user":
            self.lane.message(at_ns, key)
        else:
            about = event.get("tool_call_metadata")
            about = about if isinstance(about, dict) else {}
            response = about.get("model_response")
            self._said(at_ns, text(response.get("id")) if isinstance(response, dict) else None, key)
            if action not in _NO_TOOL:
                self.lane.call(at_ns, key, text(about.get("function_name")) or action)

    def _observation0(self, event: dict[str, Any], at_ns: int) -> None:
        cause = str(event.get("cause"))
        kind = event.get("observation")
        if cause in self.lane.pending:
            self.lane.result(at_ns, cause, None, "error" if kind == "error" else None, kind == "user_rejected")
        elif not self.lane.is_idle:
            self.lane.seen(at_ns)

    def _version1(self, event: dict[str, Any], kind: str, at_ns: int) -> None:
        key = str(event.get("id"))
        by_agent = event.get("source") == "agent"
        if kind == "ActionEvent":
            self._said(at_ns, text(event.get("llm_response_id")), key)
            self.lane.call(at_ns, key, text(event.get("tool_name")) or "tool")
            self.asked[text(event.get("tool_call_id")) or key] = key
        elif kind in ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent"):
            self._observation1(event, kind, at_ns)
        elif kind == "MessageEvent" and not by_agent:
            self.lane.message(at_ns, key)
        elif kind in ("MessageEvent", "Condensation"):
            self._said(at_ns, text(event.get("llm_response_id")), key)
        elif kind in ("PauseEvent", "InterruptEvent"):
            self.lane.stopped(at_ns)
        elif not self.lane.is_idle:
            self.lane.seen(at_ns)

    def _observation1(self, event: dict[str, Any], kind: str, at_ns: int) -> None:
        call = text(event.get("action_id")) or self.asked.get(text(event.get("tool_call_id")) or "", "")
        error = "error" if kind == "AgentErrorEvent" else None
        self.lane.result(at_ns, call, None, error, kind == "UserRejectObservation")

    def _said(self, at_ns: int, response: str | None, key: str) -> None:
        answer = response or key
        if answer not in self.answers:
            self.answers.add(answer)
            self.lane.output(at_ns, answer)
