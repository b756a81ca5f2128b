"""Claude Code transcripts: the files below ``~/.claude/projects``, a row a line.

One session may be spread over files (sub-agents write their own, resumed and forked sessions repeat earlier rows) and
one file may hold several agents (older versions write a sub-agent's rows between those of its parent). Message ids and
tool call ids are unique in the world, so repeated rows become one span.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .json_values import json_values
from .stamps import DERIVED_MODEL, NO_APPROVALS, NO_FIRST_TOKEN, count, length_ns, say, stamp
from .transcript import Book, Lane, Owner
from .values import BadValueError, text

KIND: Final = "Claude Code transcript"

_TRACE: Final = "claude-code"
_SUB_AGENT_TOOLS: Final = frozenset({"Task", "Agent"})
_INTERRUPTED: Final = "[Request interrupted by user"
_REFUSED: Final = ("The user doesn't want to", "User rejected tool use", "Error: The user doesn't want to")
_MS: Final = 1000


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a transcript, or like one of nothing but summaries and snapshots."""
    if b'"parentUuid"' in head and b'"sessionId"' in head:
        return True
    return b'"leafUuid"' in head or b'"file-history-snapshot"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, NO_APPROVALS, NO_FIRST_TOKEN, DERIVED_MODEL)
    reader = _Reader(notes, Book(notes, _TRACE))
    for line, row in json_values(path, notes):
        if not isinstance(row, dict):
            notes.skip(line, f"{type(row).__name__} instead of a row")
            continue
        try:
            reader.row(row)
        except BadValueError as error:
            notes.skip(line, str(error))
        yield from reader.book.drain()
    for lane in reader.lanes.values():
        lane.finish()
    yield from reader.book.drain()


@dataclass(slots=True)
class _Reader:
    """The lanes of one file, by agent, and what is needed to tell whose a row is."""

    notes: Notes
    book: Book
    lanes: dict[str, Lane] = field(default_factory=dict)
    known: set[tuple[str, str]] = field(default_factory=set)
    roots: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, tuple[Lane, dict[str, Any]]] = field(default_factory=dict)

    def row(self, row: dict[str, Any]) -> None:
        """Take one row. Rows without an instant (summaries, snapshots, titles) say nothing about time."""
        at_ns = stamp(row.get("timestamp"), "timestamp", self.notes)
        kind = row.get("type")
        if at_ns is None:
            if kind in ("user", "assistant"):
                raise BadValueError(f"{kind} row without a timestamp")
            return
        uuid = text(row.get("uuid"))
        if uuid is not None and self._repeated(uuid, str(row["timestamp"])):
            return
        lane = self._lane(row, uuid, at_ns)
        key = uuid or f"{lane.owner.agent}@{at_ns}"
        if kind == "assistant":
            self._assistant(lane, row, at_ns, key)
        elif kind == "user":
            self._user(lane, row, at_ns, key)
        else:
            self._event(lane, row, at_ns, key)

    def _repeated(self, uuid: str, timestamp: str) -> bool:
        size = len(self.known)
        self.known.add((uuid, timestamp))
        return len(self.known) == size

    def _lane(self, row: dict[str, Any], uuid: str | None, at_ns: int) -> Lane:
        """Lane of a row: the session's own, or that of the sub-agent which the row names or descends from."""
        session = text(row.get("sessionId")) or self.notes.path.stem
        agent = session
        if row.get("isSidechain") is True:
            agent = f"{session}/{text(row.get('agentId')) or self._root(row, uuid)}"
        lane = self.lanes.get(agent)
        if lane is None:
            owner = Owner(agent, "claude-code") if agent == session else self._sub_agent(row, agent, session)
            lane = self.lanes[agent] = Lane(self.book, owner)
        return lane

    def _root(self, row: dict[str, Any], uuid: str | None) -> str:
        """First row of the sub-agent's chain, for files that do not name the sub-agent."""
        parent = text(row.get("parentUuid"))
        root = self.roots.get(parent or "", parent or uuid or "sidechain")
        if uuid is not None:
            self.roots[uuid] = root
        return root

    def _sub_agent(self, row: dict[str, Any], agent: str, session: str) -> Owner:
        """Who a new sub-agent is: started by the open call with its prompt, else by the oldest without a sub-agent."""
        if session not in self.lanes:
            return Owner(agent)
        message = row.get("message")
        prompt = message.get("content") if isinstance(message, dict) else None
        waiting = [call for call, (lane, _) in self.tasks.items() if call in lane.pending]
        same = [call for call in waiting if prompt and self.tasks[call][1].get("prompt") == prompt]
        call = next(iter(same or waiting), None)
        if call is None:
            return Owner(agent, "sub-agent", session)
        lane, asked = self.tasks.pop(call)
        return Owner(agent, text(asked.get("subagent_type")) or "sub-agent", lane.owner.agent, call)

    def _assistant(self, lane: Lane, row: dict[str, Any], at_ns: int, key: str) -> None:
        message = row.get("message")
        if not isinstance(message, dict):
            raise BadValueError("assistant row without a message")
        if row.get("isApiErrorMessage") or message.get("model") == "<synthetic>":
            lane.stopped(at_ns)
            return
        lane.output(at_ns, text(message.get("id")) or text(row.get("requestId")) or key, _usage(message.get("usage")))
        for block in _blocks(message):
            call_id = text(block.get("id"))
            if block.get("type") != "tool_use" or call_id is None:
                continue
            name = text(block.get("name")) or "tool"
            lane.call(at_ns, call_id, name)
            if name in _SUB_AGENT_TOOLS:
                asked = block.get("input")
                self.tasks[call_id] = (lane, asked if isinstance(asked, dict) else {})

    def _user(self, lane: Lane, row: dict[str, Any], at_ns: int, key: str) -> None:
        message = row.get("message")
        if not isinstance(message, dict):
            raise BadValueError("user row without a message")
        results = [block for block in _blocks(message) if block.get("type") == "tool_result"]
        for block in results:
            self._result(lane, row, block, at_ns)
        if results:
            return
        if row.get("isMeta") or row.get("isCompactSummary"):
            lane.told(at_ns)
        elif _starts(message.get("content"), (_INTERRUPTED,)):
            lane.stopped(at_ns)
        else:
            lane.message(at_ns, key)

    def _result(self, lane: Lane, row: dict[str, Any], block: dict[str, Any], at_ns: int) -> None:
        call_id = text(block.get("tool_use_id"))
        if call_id is None:
            return
        told = row.get("toolUseResult")
        details = told if isinstance(told, dict) else {}
        failed = block.get("is_error") is True
        refused = failed and (_starts(block.get("content"), _REFUSED) or _starts(told, _REFUSED))
        call = lane.pending.get(call_id)
        sub = text(details.get("agentId"))
        if sub is not None and call is not None:
            lasted = length_ns(details.get("totalDurationMs"), _MS)
            self._link(lane, call_id, sub, call.start_ns if lasted is None else at_ns - lasted, at_ns)
        lasted = length_ns(details.get("durationMs"), _MS)
        lane.result(at_ns, call_id, lasted, "error" if failed and not refused else None, refused)

    def _link(self, lane: Lane, call_id: str, sub: str, start_ns: int, end_ns: int) -> None:
        """Say that a tool call of this lane is a sub-agent whose rows are in another file."""
        session = lane.owner.agent.split("/")[0]
        agent = f"{session}/{sub}"
        if agent in self.lanes and self.lanes[agent].owner.parent_call:
            return
        _, asked = self.tasks.pop(call_id, (lane, {}))
        name = text(asked.get("subagent_type")) or ""
        self.book.link(lane.owner, session, sub, call_id, start_ns, end_ns, name)

    def _event(self, lane: Lane, row: dict[str, Any], at_ns: int, key: str) -> None:
        """Rows that are no message: some show that work went on, some what it was."""
        data = row.get("data")
        data = data if isinstance(data, dict) else {}
        subtype = row.get("subtype")
        if data.get("type") == "agent_progress":
            self._progress(lane, row, data, at_ns)
        if subtype == "api_error":
            # What was tried in vain, and the pause before the next try, are no generation.
            lane.seen(at_ns)
            lane.told(at_ns + (length_ns(row.get("retryInMs"), _MS) or 0))
        elif subtype == "compact_boundary":
            self._compacted(lane, row, at_ns, key)
        elif not lane.is_idle or subtype in ("turn_duration", "stop_hook_summary") or _is_stop_hook(data):
            lane.seen(at_ns)

    def _progress(self, lane: Lane, row: dict[str, Any], data: dict[str, Any], at_ns: int) -> None:
        call_id, sub = text(row.get("parentToolUseID")), text(data.get("agentId"))
        call = lane.pending.get(call_id or "")
        if call is not None and call_id is not None and sub is not None and call_id in self.tasks:
            self._link(lane, call_id, sub, call.start_ns, at_ns)

    def _compacted(self, lane: Lane, row: dict[str, Any], at_ns: int, key: str) -> None:
        """The model wrote a summary of the context; when a person asked for it, only a told length says how long."""
        about = row.get("compactMetadata")
        about = about if isinstance(about, dict) else {}
        lasted = length_ns(about.get("durationMs"), _MS)
        start_ns = at_ns - lasted if lasted is not None else lane.last_ns
        if start_ns is not None and (lasted is not None or about.get("trigger") == "auto"):
            lane.answered(start_ns, at_ns, f"compaction:{key}", (count(about.get("preTokens")), None))
        else:
            lane.seen(at_ns)


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def _starts(content: Any, prefixes: tuple[str, ...]) -> bool:
    """Whether a content, a text or a list of text blocks, begins in one of the ways."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    return isinstance(content, str) and content.startswith(prefixes)


def _is_stop_hook(data: dict[str, Any]) -> bool:
    event = data.get("hookEvent")
    return isinstance(event, str) and event.endswith("Stop")


def _usage(usage: Any) -> tuple[int | None, int | None]:
    """Tokens of the whole context, cached ones included, and of the answer."""
    if not isinstance(usage, dict):
        return None, None
    context = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return count(*(usage.get(key) for key in context)), count(usage.get("output_tokens"))
