"""What a tool span tells the engine: torch-free records and the sinks that receive them.

A signal is made by the decorator itself, before the tool runs and after it ended, whatever the user's
sampler or exporter does. Delivery is synchronous and in the caller's thread, so a sink must only queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool call began: its agent is blocked until the matching :class:`ToolEnded`.

    ``trace_id`` and ``span_id`` are lower-case hex (32 and 16 digits) and identify the call together.
    ``time_unix_ns`` is the span's start. ``agent`` is ``None`` where nobody could be named.
    """

    trace_id: str
    span_id: str
    time_unix_ns: int
    tool: str
    agent: str | None = None
    conversation: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A tool call ended; ``time_unix_ns`` is the span's end and ``error`` the class name of what it raised."""

    trace_id: str
    span_id: str
    time_unix_ns: int
    tool: str
    agent: str | None = None
    conversation: str | None = None
    call_id: str | None = None
    error: str | None = None


Signal = ToolStarted | ToolEnded


class Sink(Protocol):
    """Receives signals. Called in the tool's own thread: it must not block and should not raise."""

    def __call__(self, signal: Signal, /) -> None:
        """Take one signal."""
        ...
