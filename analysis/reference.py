"""The definition of the state timeline, written as plainly as possible and slowly.

The SQL files are the fast form; tests hold them to this one. Here every elementary interval of an agent is asked one
question after the other ("does a model call generate now?"), with no event counting and no cutting of intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter

from kvtrace.tracer.attributes import UNKNOWN_AGENT

from .normal import SpanRecord
from .options import WINDOW_CAP_NS
from .records import AgentTime
from .reference_spans import Family, Span, is_within


def measure_slowly(
    records: Iterable[SpanRecord],
    signs: Mapping[int, tuple[int | None, bool]],
    round_trip_ns: int,
    window_cap_ns: int = WINDOW_CAP_NS,
) -> dict[str, AgentTime]:
    """What ``agents.sql`` says, by agent."""
    spans = Family(records, signs).spans
    by_agent: dict[str, list[Span]] = {}
    for span in spans:
        by_agent.setdefault(span.agent, []).append(span)
    parents = {(span.agent, span.parent_agent) for span in spans if span.parent_agent is not None}
    return {
        agent: _agent_time(agent, by_agent, _descendants(agent, parents), (round_trip_ns, window_cap_ns))
        for agent, own in by_agent.items()
        if any(span.kind in ("tool", "model") for span in own)
    }


def idleness_slowly(
    records: Iterable[SpanRecord], signs: Mapping[int, tuple[int | None, bool]]
) -> dict[str, list[float]]:
    """By agent, the share blocked of its last five cycles at the end of each of its waits (``idleness.sql``)."""
    by_agent: dict[str, list[Span]] = {}
    for span in Family(records, signs).spans:
        by_agent.setdefault(span.agent, []).append(span)
    return {agent: found for agent, spans in by_agent.items() if (found := _idleness(_Slices(spans)))}


def _idleness(seen: _Slices) -> list[float]:
    waits = seen.stretches("blocked_tool")
    found = []
    for last, (_, until_ns) in enumerate(waits):
        since_ns = waits[last - 5][1] if last >= 5 else 0
        recent = [(stop_ns - start_ns, state) for start_ns, stop_ns, state in seen if since_ns <= start_ns < until_ns]
        blocked_ns = sum(length_ns for length_ns, state in recent if state == "blocked_tool")
        generating_ns = sum(length_ns for length_ns, state in recent if state == "generating")
        found.append(blocked_ns / (blocked_ns + generating_ns))
    return found


def _tokens_held(at_ns: int, spans: Sequence[Span]) -> int | None:
    """Tokens of the model call that began last; the larger of two that began together."""
    told = [
        (span.start_ns, span.record.input_tokens + (span.record.output_tokens or 0))
        for span in spans
        if span.kind == "model" and span.record.input_tokens is not None and span.start_ns <= at_ns
    ]
    return max(told)[1] if told else None


def state_at(at_ns: int, spans: Sequence[Span], low: bool = False) -> str:
    """State of the agent that owns ``spans``; ``low`` takes open tool calls for ended at their start."""
    if any(span.kind == "model" and span.covers(at_ns) and not _cut(span, at_ns, spans, low) for span in spans):
        return "generating"
    if any(_is_tool_at(span, at_ns, low) and not _pauses(span, at_ns, spans) for span in spans):
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


def _pauses(tool: Span, at_ns: int, spans: Sequence[Span]) -> bool:
    """Whether it waits for a person or for whoever takes its items."""
    if tool.kind == "tool" and is_within(tool.suspensions, at_ns):
        return True
    return any(span.kind == "human" and tool in span.around and span.covers(at_ns) for span in spans)


def _between_runs(at_ns: int, spans: Sequence[Span]) -> bool:
    turns = _turns([span for span in spans if span.kind == "agent"])
    return (
        any(stop <= at_ns for _, stop in turns)
        and any(start > at_ns for start, _ in turns)
        and not any(start <= at_ns < stop for start, stop in turns)
    )


def _turns(runs: Sequence[Span]) -> list[tuple[int, int]]:
    """Every run that names its agent; for the others, all of a trace together."""
    named = [run for run in runs if run.record.agent_id not in (None, UNKNOWN_AGENT)]
    turns = [(run.start_ns, run.stop_ns) for run in named]
    others = [run for run in runs if run not in named]
    for trace_id in {run.record.trace_id for run in others}:
        within = [run for run in others if run.record.trace_id == trace_id]
        turns.append((min(run.start_ns for run in within), max(run.stop_ns for run in within)))
    return turns


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
            instants.update((span.start_ns, self._stop(span), *span.queue, *span.suspensions))
        for start_ns, stop_ns in pairwise(sorted(at for at in instants if first <= at <= last)):
            yield start_ns, stop_ns, state_at(start_ns, self.spans, self.low)

    def _stop(self, span: Span) -> int:
        return span.start_ns if self.low and span.kind == "tool" and span.is_open else span.stop_ns

    def length(self, *states: str) -> int:
        return sum(stop - start for start, stop, state in self if not states or state in states)

    def stretches(self, wanted: str) -> list[tuple[int, int]]:
        """The maximal runs of a state."""
        runs = [list(run) for state, run in groupby(self, key=itemgetter(2)) if state == wanted]
        return [(run[0][0], run[-1][1]) for run in runs]

    def runs(self, wanted: str) -> list[int]:
        """Lengths of the maximal runs of a state."""
        return [stop_ns - start_ns for start_ns, stop_ns in self.stretches(wanted)]

    def union(self, kind: str) -> int:
        of_kind = [span for span in self.spans if span.kind == kind]
        return sum(stop - start for start, stop, _ in self if any(span.covers(start) for span in of_kind))


def _agent_time(
    agent: str, by_agent: Mapping[str, Sequence[Span]], descendants: Collection[str], assumed_ns: tuple[int, int]
) -> AgentTime:
    round_trip_ns, window_cap_ns = assumed_ns
    spans = by_agent[agent]
    seen = _Slices(spans)
    tools = [span for span in spans if span.kind == "tool"]
    low = _Slices(spans, low=any(span.is_open for span in tools))
    windows = seen.runs("blocked_tool")
    held = [(_tokens_held(start_ns, spans), stop_ns - start_ns) for start_ns, stop_ns in seen.stretches("blocked_tool")]
    sized = [(tokens, length_ns) for tokens, length_ns in held if tokens is not None]
    return AgentTime(
        agent=agent,
        name=_first(spans, lambda span: span.record.agent_name if span.kind == "agent" else None)
        or _first(spans, lambda span: span.record.agent_name if not span.delegated else None),
        parent=_first(spans, lambda span: span.parent_agent),
        running=any(span.running for span in spans),
        tool_calls=sum(not span.repeats for span in tools),
        open_calls=sum(span.is_open and not span.repeats for span in tools),
        model_calls=sum(span.kind == "model" and not span.repeats for span in spans),
        wall_ns=seen.length(),
        generating_ns=seen.union("model"),
        tool_union_ns=seen.union("tool"),
        generating_state_ns=seen.length("generating"),
        blocked_ns=seen.length("blocked_tool"),
        human_ns=seen.length("blocked_human"),
        queued_ns=seen.length("queued"),
        overhead_ns=seen.length("overhead"),
        evictable_ns=sum(max(0, window - round_trip_ns) for window in windows),
        capped_ns=sum(min(window, window_cap_ns) for window in windows),
        sized_windows=len(sized),
        context_tokens=sum(tokens for tokens, _ in sized),
        sized_ns=sum(length_ns for _, length_ns in sized),
        idle_token_us=sum(tokens * (length_ns // 1000) for tokens, length_ns in sized),
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
