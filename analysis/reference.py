"""The definition of the state timeline, written as plainly as possible and slowly.

The SQL files are the fast form; tests hold them to this one. Here every elementary interval of an agent is asked one
question after the other ("does a model call generate now?"), with no event counting and no cutting of intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from operator import itemgetter

from .normal import SpanRecord
from .records import AgentTime


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

    @property
    def queue(self) -> list[int]:
        """Instants of the waits it reports: start, end, start, end, ..."""
        return [int(item) for item in (self.record.queued_unix_ns or "[]").strip("[]").split(",") if item]

    def covers(self, at_ns: int) -> bool:
        """Whether the span is going on at an instant."""
        return self.start_ns <= at_ns < self.stop_ns

    def waits(self, at_ns: int) -> bool:
        """Whether it reports itself queued at an instant."""
        pairs = zip(self.queue[::2], self.queue[1::2], strict=True)
        return self.covers(at_ns) and any(start <= at_ns < stop for start, stop in pairs)

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
        agents = {span.agent for span in own}
        return own + [self._delegated(span) for span in own if _delegates(span, agents)]

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


def measure_slowly(
    records: Iterable[SpanRecord], signs: Mapping[int, tuple[int | None, bool]], round_trip_ns: int
) -> dict[str, AgentTime]:
    """What ``agents.sql`` says, by agent."""
    spans = Family(records, signs).spans
    by_agent: dict[str, list[Span]] = {}
    for span in spans:
        by_agent.setdefault(span.agent, []).append(span)
    parents = {(span.agent, span.parent_agent) for span in spans if span.parent_agent is not None}
    return {
        agent: _agent_time(agent, by_agent, _descendants(agent, parents), round_trip_ns)
        for agent, own in by_agent.items()
        if any(span.kind in ("tool", "model") for span in own)
    }


def state_at(at_ns: int, spans: Sequence[Span], low: bool = False) -> str:
    """State of the agent that owns ``spans``; ``low`` takes open tool calls for ended at their start."""
    if any(span.kind == "model" and span.covers(at_ns) and not _cut(span, at_ns, spans, low) for span in spans):
        return "generating"
    if any(_is_tool_at(span, at_ns, low) and not _asks_person(span, at_ns, spans) for span in spans):
        return "blocked_tool"
    if any(span.kind == "human" and span.covers(at_ns) for span in spans) or _between_runs(at_ns, spans):
        return "blocked_human"
    return "queued" if any(span.kind == "model" and span.waits(at_ns) for span in spans) else "overhead"


def _cut(model: Span, at_ns: int, spans: Sequence[Span], low: bool) -> bool:
    return any(
        (span is model or model in span.around)
        and ((span.kind == "model" and span.waits(at_ns)) or _is_tool_at(span, at_ns, low))
        for span in spans
    )


def _is_tool_at(span: Span, at_ns: int, low: bool) -> bool:
    return span.kind == "tool" and span.covers(at_ns) and not (low and span.is_open)


def _asks_person(tool: Span, at_ns: int, spans: Sequence[Span]) -> bool:
    return any(span.kind == "human" and tool in span.around and span.covers(at_ns) for span in spans)


def _between_runs(at_ns: int, spans: Sequence[Span]) -> bool:
    runs = [span for span in spans if span.kind == "agent" and span.record.agent_id is not None]
    return (
        any(run.stop_ns <= at_ns for run in runs)
        and any(run.start_ns > at_ns for run in runs)
        and not any(run.covers(at_ns) for run in runs)
    )


def _own_agent(record: SpanRecord) -> str | None:
    if record.agent_id is not None:
        return record.agent_id
    if record.conversation_id is not None and record.agent_label is not None:
        return f"{record.conversation_id}/{record.agent_label}"
    return f"{record.trace_id}/{record.span_id}" if record.kind == "agent" else None


def _delegates(run: Span, agents: set[str]) -> bool:
    if run.kind != "agent" or run.parent_agent not in agents:
        return False
    return not any(
        outer.kind == "tool" and outer.agent == run.parent_agent and outer.record.start_ns is not None
        for outer in run.around
    )


def _descendants(agent: str, parents: set[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    todo = [agent]
    while todo:
        above = todo.pop()
        new = {child for child, parent in parents if parent == above} - found
        found |= new
        todo += new
    return found - {agent}


@dataclass(slots=True)
class _Slices:
    """Elementary intervals of one agent with their states."""

    spans: Sequence[Span]
    low: bool = False

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        first = min(span.start_ns for span in self.spans)
        last = max(self._stop(span) for span in self.spans)
        instants = {first, last}
        for span in self.spans:
            instants.update((span.start_ns, self._stop(span), *span.queue))
        for start_ns, stop_ns in pairwise(sorted(at for at in instants if first <= at <= last)):
            yield start_ns, stop_ns, state_at(start_ns, self.spans, self.low)

    def _stop(self, span: Span) -> int:
        return span.start_ns if self.low and span.kind == "tool" and span.is_open else span.stop_ns

    def length(self, *states: str) -> int:
        return sum(stop - start for start, stop, state in self if not states or state in states)

    def runs(self, wanted: str) -> list[int]:
        """Lengths of the maximal runs of a state."""
        return [
            sum(stop - start for start, stop, _ in run)
            for state, run in groupby(self, key=itemgetter(2))
            if state == wanted
        ]

    def union(self, kind: str) -> int:
        of_kind = [span for span in self.spans if span.kind == kind]
        return sum(stop - start for start, stop, _ in self if any(span.covers(start) for span in of_kind))


def _agent_time(
    agent: str, by_agent: Mapping[str, Sequence[Span]], descendants: Collection[str], round_trip_ns: int
) -> AgentTime:
    spans = by_agent[agent]
    seen = _Slices(spans)
    tools = [span for span in spans if span.kind == "tool"]
    open_calls = sum(span.is_open for span in tools)
    low = _Slices(spans, low=bool(open_calls))
    windows = seen.runs("blocked_tool")
    return AgentTime(
        agent=agent,
        name=_first(spans, lambda span: span.record.agent_name if span.kind == "agent" else None)
        or _first(spans, lambda span: span.record.agent_name if not span.delegated else None),
        parent=_first(spans, lambda span: span.parent_agent),
        running=any(span.running for span in spans),
        tool_calls=len(tools),
        open_calls=open_calls,
        model_calls=sum(span.kind == "model" for span in spans),
        wall_ns=seen.length(),
        generating_ns=seen.union("model"),
        tool_union_ns=seen.union("tool"),
        generating_state_ns=seen.length("generating"),
        blocked_ns=seen.length("blocked_tool"),
        human_ns=seen.length("blocked_human"),
        queued_ns=seen.length("queued"),
        overhead_ns=seen.length("overhead"),
        evictable_ns=sum(max(0, window - round_trip_ns) for window in windows),
        model_elsewhere_ns=_elsewhere(seen, [by_agent[sub] for sub in descendants if sub in by_agent]),
        steps=len(seen.runs("generating")),
        windows=len(windows),
        low_blocked_ns=low.length("blocked_tool"),
        low_active_ns=low.length() - low.length("blocked_human"),
    )


def _elsewhere(blocked: _Slices, subs: Sequence[Sequence[Span]]) -> int:
    generating = [part[:2] for spans in subs for part in _Slices(spans) if part[2] == "generating"]
    total = 0
    for start_ns, stop_ns, state in blocked:
        if state == "blocked_tool":
            inside = {at for part in generating for at in part if start_ns < at < stop_ns}
            for low, high in pairwise(sorted({start_ns, stop_ns, *inside})):
                total += (high - low) * any(start <= low < stop for start, stop in generating)
    return total


def _first(spans: Sequence[Span], value: Callable[[Span], str | None]) -> str | None:
    """Value of the earliest span that has one."""
    known = [span for span in spans if value(span) is not None]
    earliest = min(known, key=lambda span: (span.start_ns, span.record.trace_id, span.record.span_id), default=None)
    return None if earliest is None else value(earliest)
