"""The plain definition's spans: duplicates merged, owners found, and what counts as a call of whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvtrace.tracer.attributes import UNKNOWN_AGENT

from .normal import SpanRecord


@dataclass(slots=True, eq=False)
class Span:
    """A span with its owner, its ancestors from the nearest outwards, and the interval it counts over."""

    record: SpanRecord
    agent: str
    parent_agent: str | None
    around: tuple[Span, ...]
    start_ns: int
    stop_ns: int
    kind: str
    running: bool = False
    delegated: bool = False
    repeats: bool = False

    @property
    def queue(self) -> list[int]:
        """Instants of the waits it reports: start, end, start, end, ..."""
        return _instants(self.record.queued_unix_ns)

    def covers(self, at_ns: int) -> bool:
        """Whether the span is going on at an instant."""
        return self.start_ns <= at_ns < self.stop_ns

    def waits(self, at_ns: int) -> bool:
        """Whether it reports itself queued at an instant."""
        return self.covers(at_ns) and is_within(self.queue, at_ns)

    @property
    def suspensions(self) -> list[int]:
        """Instants of its waits for whoever takes what it yields, known at its end; a sub-agent's run has none."""
        return [] if self.delegated or self.is_open else _instants(self.record.suspended_unix_ns)

    @property
    def is_open(self) -> bool:
        """Whether it never ended."""
        return self.record.end_ns is None


class Family:
    """Spans after merging duplicates, with owners found. ``signs`` maps processes to ``(last_sign_ns, running)``."""

    def __init__(self, records: Iterable[SpanRecord], signs: Mapping[int, tuple[int | None, bool]]) -> None:
        everything = list(records)
        self._latest: dict[int, int] = {}
        for record in everything:
            latest = max(record.start_ns or 0, record.end_ns or 0)
            self._latest[record.process] = max(latest, self._latest.get(record.process, 0))
        self._signs = signs
        self._kept: dict[tuple[str, str], SpanRecord] = {}
        for record in everything:
            known = self._kept.get((record.trace_id, record.span_id))
            if known is None or (known.end_ns is None and record.end_ns is not None):
                self._kept[record.trace_id, record.span_id] = record

    @cached_property
    def spans(self) -> list[Span]:
        """Calls, runs and waits with a start, and sub-agents' runs once more as calls of their parents."""
        made: dict[tuple[str, str], Span] = {}
        own = [self._span(record, made) for record in self._kept.values()]
        own = [span for span in own if span.kind != "other" and span.record.start_ns is not None]
        callers = {span.agent for span in own if span.kind in ("tool", "model")}
        _mark_repeats(own)
        own = [span for span in own if not _only_wraps(span)]
        return own + [self._delegated(span) for span in own if _delegates(span, callers)]

    def _ancestors(self, record: SpanRecord) -> list[SpanRecord]:
        """From the nearest outwards; nobody for a span in or below a circle of parents."""
        found: list[SpanRecord] = []
        while record.parent_span_id is not None:
            parent = self._kept.get((record.trace_id, record.parent_span_id))
            if parent is None:
                break
            if parent in found:
                return []
            found.append(parent)
            record = parent
        return found

    def _span(self, record: SpanRecord, made: dict[tuple[str, str], Span]) -> Span:
        key = (record.trace_id, record.span_id)
        if key not in made:
            around = tuple(self._span(outer, made) for outer in self._ancestors(record))
            agent = self._owner(record, around)
            sign_ns, running = self._signs.get(record.process, (None, False))
            alive_ns = max(self._latest[record.process], sign_ns or 0)
            start_ns = record.start_ns or 0
            stop_ns = alive_ns if record.end_ns is None else record.end_ns
            made[key] = Span(
                record,
                agent,
                None,
                around,
                start_ns,
                max(start_ns, stop_ns),
                record.kind,
                running and record.end_ns is None,
            )
            if record.kind == "agent":
                nearest = next((outer.agent for outer in around if outer.kind != "other"), None)
                parent = record.parent_agent_id or nearest
                made[key].parent_agent = None if parent == agent else parent
        return made[key]

    @staticmethod
    def _owner(record: SpanRecord, around: Sequence[Span]) -> str:
        own = _own_agent(record)
        if own is not None:
            return own
        return next((outer.agent for outer in around if outer.kind == "agent"), record.trace_id)

    @staticmethod
    def _delegated(run: Span) -> Span:
        assert run.parent_agent is not None
        return Span(
            run.record, run.parent_agent, None, run.around, run.start_ns, run.stop_ns, "tool", run.running, True
        )


def _own_agent(record: SpanRecord) -> str | None:
    if record.agent_id is not None and record.agent_id != UNKNOWN_AGENT:
        return record.agent_id
    if record.conversation_id is not None and record.agent_label is not None:
        return f"{record.conversation_id}/{record.agent_label}"
    return f"{record.trace_id}/{record.span_id}" if record.kind == "agent" else None


def _delegates(run: Span, callers: set[str]) -> bool:
    """Whether a run is a call of its parent: one that calls nothing itself only holds others together."""
    if run.kind != "agent" or run.parent_agent not in callers:
        return False
    return not any(
        outer.kind == "tool" and outer.agent == run.parent_agent and outer.record.start_ns is not None
        for outer in run.around
    )


def _instants(pairs: str | None) -> list[int]:
    return [int(item) for item in (pairs or "[]").strip("[]").split(",") if item]


def _only_wraps(span: Span) -> bool:
    return span.repeats and span.kind == "model" and span.record.confidence == "derived"


def _mark_repeats(spans: Sequence[Span]) -> None:
    """Mark what another span already counts: wrappers of model calls, nested and overlapping copies of tool calls."""
    for span in spans:
        outer = next((outer for outer in span.around if outer.kind in ("tool", "model")), None)
        if outer is None or outer.record.start_ns is None or (outer.kind, outer.agent) != (span.kind, span.agent):
            continue
        if span.kind == "model":
            outer.repeats = True
        elif span.record.name == outer.record.name:
            span.repeats = True
    calls = [span for span in spans if span.kind == "tool" and span.record.call_id is not None and not span.repeats]
    calls.sort(key=lambda span: (span.start_ns, -span.stop_ns, span.record.trace_id, span.record.span_id))
    for number, span in enumerate(calls):
        twins = (
            each for each in calls[:number] if (each.agent, each.record.call_id) == (span.agent, span.record.call_id)
        )
        span.repeats = any(span.start_ns < twin.stop_ns for twin in twins)


def is_within(instants: Sequence[int], at_ns: int) -> bool:
    """Whether an instant lies in one of the intervals ``start, end, start, end, ...``."""
    return any(start <= at_ns < stop for start, stop in zip(instants[::2], instants[1::2], strict=True))
