"""Inspect AI logs: one JSON document with ``samples``, or the ``.eval`` archive with a JSON document a sample.

Every sample is an agent; what its scorers do is left out. A span of type ``agent`` inside another one, or inside a tool
call (which newer logs name by the agent's span), is a sub-agent. A model event's ``working_time`` leaves out its waits for a free slot and for retries, so the rest of it counts as queued.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ..normal import Notes, SpanRecord
from .stamps import NO_FIRST_TOKEN, count, length_ns, say, stamp
from .transcript import Book, Owner
from .values import BadValueError, text

KIND: Final = "Inspect AI log"

_NO_APPROVALS: Final = "approvals and questions to a person have no length (they count as tool time)"
_QUEUE: Final = "when a model call waited (its waits, retries included, are put at its start)"
_ZIP: Final = b"PK\x03\x04"
_MEMBERS: Final = (b"samples/", b"_journal/", b"header.json")
_CALLS: Final = frozenset({"tool", "model"})
_SCORING: Final = frozenset({"scorers", "scorer"})


def recognises(head: bytes) -> bool:
    """Whether the beginning of a file looks like a log of either kind."""
    if head.startswith(_ZIP):
        return any(member in head for member in _MEMBERS)
    return b'"eval"' in head and (b'"eval_id"' in head or b'"run_id"' in head) and b'"task"' in head


def read(path: Path, notes: Notes) -> Iterator[SpanRecord]:
    """Yield the spans of a file; what is not readable is counted in ``notes``. Raises ``OSError``."""
    notes.shows_turns = True
    say(notes, _NO_APPROVALS, NO_FIRST_TOKEN)
    book = Book(notes, "inspect")
    for sample, name in _samples(path, notes):
        _Sample(book, name, sample).read()
        yield from book.drain()


def _zipfile() -> ModuleType:
    """Reads archives: Inspect compresses with Zstandard, which the standard library knows from 3.14 on."""
    return import_module("zipfile" if sys.version_info >= (3, 14) else "backports.zstd.zipfile")


def _samples(path: Path, notes: Notes) -> Iterator[tuple[dict[str, Any], str]]:
    if _zipfile().is_zipfile(path):
        yield from _archived(path, notes)
        return
    document = _parse(path.read_bytes(), path.name, notes)
    about = document.get("eval")
    run = text(about.get("eval_id") or about.get("run_id")) if isinstance(about, dict) else None
    for sample in _objects(document.get("samples")):
        yield sample, run or path.stem


def _archived(path: Path, notes: Notes) -> Iterator[tuple[dict[str, Any], str]]:
    archives = _zipfile()
    with archives.ZipFile(path) as archive:
        for member in archive.namelist():
            if not member.startswith("samples/") or not member.endswith(".json"):
                continue
            try:
                content = archive.read(member)
            # zipfile has NotImplementedError for a compression that it does not know.
            except (archives.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
                notes.skip(0, f"{member} cannot be unpacked ({error}); convert it: inspect log convert --to json")
                continue
            sample = _parse(content, member, notes)
            if sample:
                yield sample, path.stem


def _parse(content: bytes, name: str, notes: Notes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        notes.skip(0, f"{name} is not JSON: {str(error)[:80]}")
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class _Sample:
    """One sample's events; spans are looked up by id to find whose an event is."""

    book: Book
    run: str
    sample: dict[str, Any]
    name: str = ""
    spans: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    tools: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)

    def read(self) -> None:
        """Make the records of the sample's own time, its sub-agents and its calls."""
        numbered = f"{self.run}/{self.sample.get('id')}/{self.sample.get('epoch', 1)}"
        self.name = text(self.sample.get("uuid")) or numbered
        events = list(_nested(self.sample.get("events")))
        self._index(events)
        instants: list[int] = []
        for number, event in enumerate(events):
            try:
                instants += self._event(event, number)
            except BadValueError as error:
                self.book.notes.skip(0, f"sample {self.sample.get('id')}: {error}")
        if instants:
            owner = Owner(self.name, text(self.sample.get("id")) or "sample")
            self.book.add("agent", f"{self.name}:sample", owner.name or "", owner, min(instants), max(instants))
        for span in self.spans:
            self._run(span)

    def _index(self, events: list[dict[str, Any]]) -> None:
        for number, event in enumerate(events):
            span, kind = text(event.get("id") if event.get("event") == "span_begin" else None), event.get("event")
            if span is not None:
                self.spans[span] = event
            elif kind == "span_end" and text(event.get("id")):
                at_ns = stamp(event.get("timestamp"), "timestamp", self.book.notes)
                if at_ns is not None:
                    self.ends[str(event["id"])] = at_ns
            elif kind == "tool" and text(event.get("agent_span_id")):
                self.started[str(event["agent_span_id"])] = self._call(event, number)
            elif kind == "tool" and self.spans.get(str(event.get("span_id")), {}).get("type") == "tool":
                self.tools[str(event["span_id"])] = self._call(event, number)

    def _event(self, event: dict[str, Any], number: int) -> list[int]:
        """Make the record of a call; returns the instants of the event. Scoring is not the agent's work."""
        start_ns = stamp(event.get("timestamp"), "timestamp", self.book.notes)
        if start_ns is None or self._is_scoring(event):
            return []
        if event.get("event") not in _CALLS:
            return [start_ns]
        end_ns = self._end(event, start_ns)
        owner = Owner(self._owner(text(event.get("span_id"))))
        error = "error" if event.get("error") else None
        if event["event"] == "tool":
            call, name = self._call(event, number), text(event.get("function")) or "tool"
            call_id = text(event.get("id"))
            self.book.add("tool", call, name, owner, start_ns, end_ns, call_id=call_id, error=error, confidence="exact")
        else:
            queued = self._queued(event, start_ns, end_ns)
            self.book.add(
                "model",
                f"{self.name}:model:{text(event.get('uuid')) or number}",
                text(event.get("model")) or "model",
                owner,
                start_ns,
                end_ns,
                error=error,
                queued=queued,
                confidence="exact",
                tokens=_usage(event),
            )
        return [start_ns] if end_ns is None else [start_ns, end_ns]

    def _call(self, event: dict[str, Any], number: int) -> str:
        return f"{self.name}:tool:{text(event.get('id')) or number}"

    def _end(self, event: dict[str, Any], start_ns: int) -> int | None:
        if event.get("pending"):
            return None
        end_ns = stamp(event.get("completed"), "completed", self.book.notes)
        if end_ns is None:
            lasted_ns = length_ns(event.get("working_time"))
            end_ns = start_ns if lasted_ns is None else start_ns + lasted_ns
        return end_ns

    def _queued(self, event: dict[str, Any], start_ns: int, end_ns: int | None) -> str | None:
        worked_ns = length_ns(event.get("working_time"))
        if worked_ns is None or end_ns is None or event.get("completed") is None:
            return None
        say(self.book.notes, _QUEUE)
        waited_ns = end_ns - start_ns - worked_ns
        return f"[{start_ns},{start_ns + waited_ns}]" if waited_ns > 0 else "[]"

    def _owner(self, span: str | None) -> str:
        """Agent of a span: the nearest sub-agent around it, or the sample."""
        seen: set[str] = set()
        while span is not None and span in self.spans and span not in seen:
            if self._is_sub_agent(span):
                return f"{self.name}/{span}"
            seen.add(span)
            span = text(self.spans[span].get("parent_id"))
        return self.name

    def _is_scoring(self, event: dict[str, Any]) -> bool:
        span = text(event.get("span_id"))
        if span is None or span not in self.spans:
            return event.get("event") == "score"
        return any(self.spans[near].get("type") in _SCORING for near in (span, *self._around(span)))

    def _is_sub_agent(self, span: str) -> bool:
        """Whether a span is an agent with another agent, or a tool call, around it."""
        if self.spans[span].get("type") != "agent":
            return False
        return span in self.started or any(
            self.spans[outer].get("type") == "agent" or outer in self.tools for outer in self._around(span)
        )

    def _around(self, span: str) -> Iterator[str]:
        seen = {span}
        outer = text(self.spans[span].get("parent_id"))
        while outer is not None and outer in self.spans and outer not in seen:
            yield outer
            seen.add(outer)
            outer = text(self.spans[outer].get("parent_id"))

    def _run(self, span: str) -> None:
        """A sub-agent's run, below the tool call that holds it where there is one."""
        if not self._is_sub_agent(span):
            return
        holding = (self.tools[outer] for outer in self._around(span) if outer in self.tools)
        call = self.started.get(span) or next(holding, None)
        begin = self.spans[span]
        name = text(begin.get("name")) or "sub-agent"
        owner = Owner(f"{self.name}/{span}", name, self._owner(text(begin.get("parent_id"))))
        start_ns = stamp(begin.get("timestamp"), "timestamp", self.book.notes)
        self.book.add("agent", f"{self.name}:{span}", name, owner, start_ns, self.ends.get(span), parent_span=call)


def _nested(events: Any) -> Iterator[dict[str, Any]]:
    """Events in order; older logs keep a tool's and a subtask's events inside them."""
    for event in _objects(events):
        yield event
        yield from _nested(event.get("events"))


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _usage(event: dict[str, Any]) -> tuple[int | None, int | None]:
    output = event.get("output")
    usage = output.get("usage") if isinstance(output, dict) else None
    if not isinstance(usage, dict):
        return None, None
    context = (usage.get("input_tokens"), usage.get("input_tokens_cache_read"), usage.get("input_tokens_cache_write"))
    return count(*context), count(usage.get("output_tokens"))
