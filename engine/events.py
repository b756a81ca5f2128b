"""What happened to agents' KV: single events, and operations that are events once their last copy has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from .records import EngineEvent, EventKind
from .swap.contract import CopyDone

_KEPT: Final = 256


@dataclass(slots=True)
class Operation:
    """A park or restore under way, caused by the tool ``span``; ``pending`` are its copies in flight, times monotonic ns."""

    kind: EventKind
    agent: str
    tool: str | None
    bytes: int
    why: str
    pending: set[int]
    span: tuple[str, str] | None = None
    started_ns: int | None = None
    ended_ns: int | None = None

    @property
    def duration_ms(self) -> float | None:
        """From the first copy's start to the last copy's end; ``None`` where nothing was copied."""
        if self.started_ns is None or self.ended_ns is None:
            return None
        return (self.ended_ns - self.started_ns) / 1e6

    def event(self, now_ns: int) -> EngineEvent:
        """The event it is, once it is over."""
        trace_id, span_id = self.span or (None, None)
        return EngineEvent(
            now_ns, self.agent, self.kind, self.tool, self.bytes, self.duration_ms, self.why, trace_id, span_id
        )


class EventLog:
    """The newest events, and the operations that will become events. ``listener`` hears each event once."""

    def __init__(self, listener: Callable[[EngineEvent], None] | None = None) -> None:
        self.recent: deque[EngineEvent] = deque(maxlen=_KEPT)
        self._listener = listener
        self._operations: list[Operation] = []

    def note(self, event: EngineEvent) -> None:
        """Record an event."""
        self.recent.append(event)
        if self._listener is not None:
            self._listener(event)

    def begin(self, operation: Operation, now_ns: int) -> list[EngineEvent]:
        """Follow an operation; one without copies is an event at once."""
        self._operations.append(operation)
        return self._settle(now_ns)

    def copied(self, ended: Mapping[int, CopyDone], now_ns: int) -> list[EngineEvent]:
        """Take note of ended copies, by their ids; the events of the operations that are complete with them."""
        for operation in self._operations:
            numbers = operation.pending & ended.keys()
            if numbers:
                operation.pending -= numbers
                mine = [ended[number] for number in numbers]
                first, last = min([one.started_ns for one in mine]), max([one.ended_ns for one in mine])
                operation.started_ns = min(first, operation.started_ns or first)
                operation.ended_ns = max(last, operation.ended_ns or last)
        return self._settle(now_ns)

    def under_way(self, kind: EventKind) -> set[str]:
        """Agents with an operation of this kind in flight."""
        return {operation.agent for operation in self._operations if operation.kind is kind}

    def _settle(self, now_ns: int) -> list[EngineEvent]:
        over = [operation for operation in self._operations if not operation.pending]
        self._operations = [operation for operation in self._operations if operation.pending]
        events = [one.event(now_ns) for one in over]
        for event in events:
            self.note(event)
        return events
