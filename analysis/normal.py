"""The normal form every importer produces: one record a span, and notes about the file it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple

Kind = Literal["tool", "model", "agent", "human", "other"]
Confidence = Literal["exact", "derived", "duration_only"]

MAX_NAMED_SKIPS: Final = 20


class SpanRecord(NamedTuple):
    """One span as a source tells it, before duplicates are merged and owners are found.

    Instants are nanoseconds since the Unix epoch, ``None`` where unknown; an ``end_ns`` of ``None`` with a start is
    a span that never ended. ``kind`` ``other`` is kept only because ancestry runs through such spans.
    ``agent_id`` names the owner outright; ``agent_label`` does so together with ``conversation_id``.
    ``queued_unix_ns`` and ``suspended_unix_ns`` are ``[start,end,start,end,...]`` as text: when a model call waited to be
    served, and when a tool that yields was waiting for whoever takes its items. ``input_tokens`` (cached ones
    included) and ``output_tokens`` are a model call's usage. ``lasted_ns`` is the length of a call whose instants are
    unknown (confidence ``duration_only``).
    """

    source: int
    process: int
    trace_id: str
    span_id: str
    parent_span_id: str | None
    kind: Kind
    name: str
    call_id: str | None
    agent_id: str | None
    agent_label: str | None
    agent_name: str | None
    parent_agent_id: str | None
    conversation_id: str | None
    start_ns: int | None
    end_ns: int | None
    first_token_ns: int | None
    queued_unix_ns: str | None
    error: str | None
    confidence: Confidence
    input_tokens: int | None = None
    output_tokens: int | None = None
    suspended_unix_ns: str | None = None
    lasted_ns: int | None = None


RECORD_TYPES: Final[dict[str, str]] = {
    name: {
        "source": "INTEGER",
        "process": "INTEGER",
        "queued_unix_ns": "BIGINT[]",
        "suspended_unix_ns": "BIGINT[]",
    }.get(name, "BIGINT" if name.endswith(("_ns", "_tokens")) else "VARCHAR")
    for name in SpanRecord._fields
}


@dataclass(frozen=True, slots=True)
class Process:
    """The process a span was recorded by, as far as its resource tells. All fields are optional.

    ``touched`` is true where the writer touches its file while it lives, so that the file's mtime is evidence.
    """

    host: str | None = None
    pid: int | None = None
    start_ns: int | None = None
    touched: bool = False


@dataclass(frozen=True, slots=True)
class Skip:
    """Something that was not read: the line it stood in (1-based) and why."""

    line: int
    why: str


@dataclass(slots=True)
class Notes:
    """What an importer writes down while it reads one file.

    ``cannot_show`` are sentences for what the source leaves out; ``shows_turns`` is true where it tells a person's
    time from the agent's, so that no waits for a person means that there were none. ``alone`` is false where other files
    were read with it, so that the file's own state does not tell whether it has to be read again.
    """

    path: Path
    source: int
    process_ids: Iterator[int] = field(default_factory=count)
    processes: dict[Process, int] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    skipped: int = 0
    cannot_show: list[str] = field(default_factory=list)
    shows_turns: bool = False
    alone: bool = True

    def skip(self, line: int, why: str) -> None:
        """Count something unreadable; the first few are kept by name, so that a broken 2 GB file stays cheap."""
        self.skipped += 1
        if len(self.skips) < MAX_NAMED_SKIPS:
            self.skips.append(Skip(line, why))

    def process(self, process: Process) -> int:
        """Number of a process, unique over all files of one load."""
        known = self.processes.get(process)
        if known is None:
            known = self.processes[process] = next(self.process_ids)
        return known
