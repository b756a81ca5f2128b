"""Codex rollouts: the files below ``~/.codex/sessions``, ``{"timestamp", "type", "payload"}`` a line.

Older versions write a call and its output together once both are known, so that only the length in the output says how
long the tool ran. A file of a forked session or a sub-agent begins with a copy of its parent's history, stamped anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from ..options import NS_PER_S
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, count, length_ns, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "Codex rollout"

_TRACE: Final = "codex"
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "local_shell_call", "tool_search_call"})
_OUTPUTS: Final = frozenset({f"{call}_output" for call in _CALLS} | {"tool_search_output"})
_SAID: Final = frozenset({"message", "reasoning", "web_search_call", "image_generation_call"})
_WALL_TIME: Final = re.compile(r"Wall time: (\d+(?:\.\d+)?) seconds")
_HEADER_CHARS: Final = 400
# Copied history is stamped within milliseconds of the fork; the first answer takes longer than this.
_COPYING_NS: Final = NS_PER_S
_UNTIMED: Final = "an old rollout whose rows carry no instants, so nothing can be measured"


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a rollout of any version."""
    if b'"payload"' in head and (b'"session_meta"' in head or b'"response_item"' in head):
        return True
    return b'"record_type"' in head and b'"state"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, DERIVED_MODEL)
    book = Book(notes, _TRACE)
    reader = _Reader(notes, book, Lane(book, Owner(path.stem, "codex")), path.stem)
    for line, row in json_values(path, notes):
        if not isinstance(row, dict):
            notes.skip(line, f"{type(row).__name__} instead of a row")
            continue
        if "payload" not in row and not reader.began:
            notes.skip(0, _UNTIMED)
            return
        try:
            reader.row(row)
        except BadValueError as error:
            notes.skip(line, str(error))
        yield from book.drain()
    reader.lane.finish()
    yield from book.drain()


@dataclass(slots=True)
class _Reader:
    """One session's lane, and which of its answers is being written."""

    notes: Notes
    book: Book
    lane: Lane
    session: str
    began: bool = False
    forked_ns: int | None = None
    round: int = 0
    texted: bool = False
    spawning: dict[str, int] = field(default_factory=dict)

    def row(self, row: dict[str, Any]) -> None:
        at_ns = stamp(row.get("timestamp"), "timestamp", self.notes)
        payload = row.get("payload")
        if at_ns is None or not isinstance(payload, dict):
            raise BadValueError("row without a timestamp" if at_ns is None else "row without a payload")
        kind = row.get("type")
        if kind == "session_meta":
            self._session(payload, at_ns)
        elif self.forked_ns is not None and at_ns < self.forked_ns + _COPYING_NS:
            self.lane.told(max(at_ns, self.forked_ns))
        elif kind == "response_item":
            self._item(payload, at_ns)
        elif kind == "event_msg":
            self._event(payload, at_ns)
        elif kind == "compacted":
            self._output(at_ns, f"{self.session}:{self.round}:compaction")
            self.round += 1
        elif kind == "turn_context":
            self.lane.told(at_ns)

    def _session(self, payload: dict[str, Any], at_ns: int) -> None:
        """Whose file this is; later ones are copies of the parent's."""
        if self.began:
            return
        self.began = True
        self.session = text(payload.get("id")) or self.session
        source = payload.get("source")
        sub = source.get("subagent") if isinstance(source, dict) else None
        spawn = sub.get("thread_spawn") if isinstance(sub, dict) else None
        about = spawn if isinstance(spawn, dict) else {}
        parent = text(about.get("parent_thread_id")) or text(payload.get("parent_thread_id"))
        if parent is not None or payload.get("forked_from_id"):
            self.forked_ns = at_ns
        named = text(about.get("agent_nickname")) or text(about.get("agent_role"))
        owner = Owner(
            f"{parent}/{self.session}" if parent else self.session, named or ("sub-agent" if sub else "codex")
        )
        self.lane = Lane(self.book, owner)
        self.lane.seen(at_ns)

    def _item(self, item: dict[str, Any], at_ns: int) -> None:
        kind = item.get("type")
        if kind in _CALLS:
            call_id = text(item.get("call_id")) or text(item.get("id"))
            if call_id is not None:
                self._output(at_ns)
                name = text(item.get("name")) or str(kind).removesuffix("_call")
                self.lane.call(at_ns, call_id, name)
                if name == "spawn_agent":
                    self.spawning[call_id] = at_ns
        elif kind in _OUTPUTS:
            self._result(item, at_ns)
        elif kind == "message" and item.get("role") != "assistant":
            # What the program adds by itself looks the same; the event that follows tells a person's message.
            self.lane.told(at_ns)
        elif kind in _SAID and self.texted:
            self.lane.seen(at_ns)
        elif kind in _SAID:
            self._output(at_ns)

    def _event(self, event: dict[str, Any], at_ns: int) -> None:
        kind = event.get("type")
        if kind == "user_message":
            self._next_round()
            self.lane.message(at_ns, f"{self.session}@{at_ns}")
        elif kind in ("agent_message", "agent_reasoning"):
            self._output(at_ns)
            self.texted = kind == "agent_message"
        elif kind == "turn_aborted":
            self.lane.stopped(at_ns)
        elif kind == "token_count":
            self._tokens(event.get("info"))
        elif kind in ("task_complete", "turn_complete"):
            self.lane.seen(at_ns)

    def _output(self, at_ns: int, key: str | None = None) -> None:
        self.lane.output(at_ns, key or f"{self.session}:{self.round}")

    def _next_round(self) -> None:
        self.round += 1
        self.texted = False

    def _result(self, item: dict[str, Any], at_ns: int) -> None:
        call_id = text(item.get("call_id"))
        if call_id is None:
            return
        lasted_ns, failed, said = _output_of(item.get("output"))
        sub = text(said.get("agent_id"))
        if sub is not None and call_id in self.spawning:
            self.book.link(self.lane.owner, self.session, sub, call_id, self.spawning.pop(call_id), at_ns)
        self.lane.result(at_ns, call_id, lasted_ns, "error" if failed else None)
        if not self.lane.pending:
            self._next_round()

    def _tokens(self, info: Any) -> None:
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if isinstance(last, dict):
            self.lane.used((count(last.get("input_tokens")), count(last.get("output_tokens"))))


def _output_of(output: Any) -> tuple[int | None, bool, dict[str, Any]]:
    """How long a tool says it ran, whether it failed, and what it said where that is an object."""
    if isinstance(output, dict) and isinstance(output.get("content"), str):
        output = output["content"]
    if not isinstance(output, str):
        return None, False, {}
    wall = _WALL_TIME.search(output, 0, _HEADER_CHARS)
    if wall is not None:
        return length_ns(float(wall[1])), False, {}
    try:
        said = json.loads(output) if output.startswith("{") else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return None, False, {}
    about = said.get("metadata")
    about = about if isinstance(about, dict) else {}
    return length_ns(about.get("duration_seconds")), about.get("exit_code") not in (None, 0), said
