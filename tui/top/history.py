"""What was seen so far, from one sample to the next: states over time, waits by tool, rates, events, b.

Samples may be seconds apart, but each tells since when an agent is in its state, so that states are dated exactly
unless one began and ended between two samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kvtrace.engine.records import AgentRecord, EngineEvent, EventKind

from ..feed.contract import Sample
from .looks import WAITS, Shown, shown

_NS: Final = 1_000_000_000
_SPELLS: Final = 512  # of one agent
_EVENTS: Final = 4096  # of all agents together
_POINTS: Final = 600  # of one series
_LONGEST_GAP_NS: Final = 15 * _NS  # what lies in a longer gap between samples was not seen, unless samples are rare
_GONE_NS: Final = 900 * _NS  # after which an agent that is not there any more is forgotten
_RESTING_S: Final = 30.0  # idle for longer, an agent's run is taken to be over
_B_NS: Final = 300 * _NS


class Spell(NamedTuple):
    """An agent in one state from ``start_ns`` on, until its next spell; ``None``: nobody looked."""

    start_ns: int
    state: Shown | None
    tool: str | None


class EndedWait(NamedTuple):
    """A wait for a tool that ended at ``at_ns``."""

    at_ns: int
    agent: str
    tool: str | None
    lasted_s: float


@dataclass(slots=True)
class ToolWait:
    """Waits for one tool: how many, how long together and at most. Those under way count up to now."""

    calls: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0


@dataclass(slots=True)
class Track:
    """One agent's past. ``record`` is what was last told of it, at ``seen_ns``; ``waits`` are those that are over."""

    record: AgentRecord
    state: Shown
    seen_ns: int
    spells: deque[Spell] = field(default_factory=lambda: deque(maxlen=_SPELLS))
    waits: dict[str, ToolWait] = field(default_factory=dict)

    def tools(self) -> dict[str, ToolWait]:
        """Waits by tool, with the one that is under way."""
        found = {tool: replace(wait) for tool, wait in self.waits.items()}
        if self.state in WAITS:
            _count(found, self.record.tool, self.record.since_s)
        return found

    def between(self, start_ns: int, stop_ns: int) -> Iterator[tuple[int, int, Spell]]:
        """Spells within an interval, cut to it: start, stop, spell; the oldest first."""
        until_ns = min(stop_ns, self.seen_ns)
        found = []
        for spell in reversed(self.spells):
            begin_ns = max(spell.start_ns, start_ns)
            if begin_ns < until_ns:
                found.append((begin_ns, until_ns, spell))
            until_ns = min(until_ns, spell.start_ns)
            if until_ns <= start_ns:
                break
        return reversed(found)


class Shares(NamedTuple):
    """Agent-seconds of one interval: waiting for tools, and all that b counts."""

    at_ns: int
    blocked: float
    counted: float


class History:
    """Everything that a screen shows and one sample does not tell. Nothing here is ever an error."""

    def __init__(self) -> None:
        self.tracks: dict[str, Track] = {}
        self.latest: Sample | None = None
        self._longest_gap_ns = _LONGEST_GAP_NS
        self.reset()

    def reset(self) -> None:
        """Begin all statistics anew; what agents are doing now stays known."""
        self.out_rates: deque[float] = deque(maxlen=_POINTS)
        self.in_rates: deque[float] = deque(maxlen=_POINTS)
        self.vram_used: deque[float] = deque(maxlen=_POINTS)
        self.host_used: deque[float] = deque(maxlen=_POINTS)
        self.events: deque[EngineEvent] = deque(maxlen=_EVENTS)
        self.ended: deque[EndedWait] = deque(maxlen=_EVENTS)
        self.token_bytes: float | None = None
        self.began_ns: int | None = None
        self._shares: deque[Shares] = deque()
        self._newest_event_ns = 0
        self._seen_events: set[EngineEvent] = set()
        for track in self.tracks.values():
            track.spells.clear()
            track.waits.clear()

    def add(self, sample: Sample) -> None:
        """Take note of a sample; one that is older than the last begins a new history, one of the same instant adds none."""
        before = self.latest
        now_ns = sample.snapshot.time_unix_ns
        if before is not None and (now_ns < before.snapshot.time_unix_ns or before.kind is not sample.kind):
            self.tracks.clear()
            self.reset()
            before = None
        if before is not None and now_ns == before.snapshot.time_unix_ns:
            self.latest = sample
            return
        self.began_ns = self.began_ns or now_ns
        self._note_shares(sample, before)
        if sample.knows_memory:
            self._note_memory(sample, before)
        self._note_events(sample)
        for agent in sample.snapshot.agents:
            self._follow(agent, shown(agent.state, sample.knows_memory), now_ns)
        self._forget(now_ns)
        if before is not None:
            self._longest_gap_ns = max(_LONGEST_GAP_NS, (now_ns - before.snapshot.time_unix_ns) * 5 // 2)
        self.latest = sample

    def has_past(self) -> bool:
        """Whether there was more than one sample."""
        return bool(self._shares)

    def b(self, seconds: float, at_ns: int) -> float | None:
        """Share of all agents' time spent waiting for tools in the ``seconds`` before ``at_ns``; ``None``: unknown.

        A person's time is left out, and that of agents which have been idle for so long that their run is over.
        """
        since_ns = at_ns - round(seconds * _NS)
        blocked = counted = 0.0
        for shares in reversed(self._shares):
            if shares.at_ns <= since_ns:
                break
            if shares.at_ns <= at_ns:
                blocked += shares.blocked
                counted += shares.counted
        return blocked / counted if counted > 0 else None

    def prefill_rate(self) -> float | None:
        """Tokens a second that the engine computes of prompts, where it told."""
        totals = self.latest.snapshot.totals if self.latest is not None else None
        if totals is None or totals.prefill_s <= 0 or totals.prefilled_tokens <= 0:
            return None
        return totals.prefilled_tokens / totals.prefill_s

    def recompute_s(self, moved_bytes: int) -> float | None:
        """Seconds that computing so many bytes of KV again would have taken, at the engine's own rate."""
        rate = self.prefill_rate()
        return moved_bytes / self.token_bytes / rate if rate and self.token_bytes else None

    def _follow(self, agent: AgentRecord, state: Shown, now_ns: int) -> None:
        track = self.tracks.get(agent.agent)
        since_ns = now_ns - round(agent.since_s * _NS)
        if track is None:
            track = self.tracks[agent.agent] = Track(agent, state, now_ns)
            track.spells.append(Spell(since_ns, state, agent.tool))
            return
        before, was = track.record, track.state
        seen_ns = track.seen_ns
        if not track.spells:
            track.spells.append(Spell(seen_ns, was, before.tool))
        unseen = now_ns - seen_ns > self._longest_gap_ns and since_ns > seen_ns
        if unseen:
            track.spells.append(Spell(seen_ns, None, None))
        same_wait = was in WAITS and state in WAITS and since_ns <= seen_ns
        if was in WAITS and not same_wait:
            # How long it lasted is known to within the time between two samples.
            ended_ns = seen_ns if unseen else max(seen_ns, min(since_ns, now_ns))
            lasted_s = before.since_s + (ended_ns - seen_ns) / _NS
            _count(track.waits, before.tool, lasted_s)
            self.ended.append(EndedWait(ended_ns, agent.agent, before.tool, lasted_s))
        if (state, agent.tool) != (was, before.tool) or (not same_wait and since_ns > seen_ns):
            # A wait's forms share one beginning: the change itself lies somewhere after the last sample.
            track.spells.append(Spell(now_ns if same_wait else max(since_ns, seen_ns), state, agent.tool))
        track.record, track.state, track.seen_ns = agent, state, now_ns

    def _forget(self, now_ns: int) -> None:
        gone = [name for name, track in self.tracks.items() if now_ns - track.seen_ns > _GONE_NS]
        for name in gone:
            del self.tracks[name]

    def _note_shares(self, sample: Sample, before: Sample | None) -> None:
        now_ns = sample.snapshot.time_unix_ns
        passed_ns = now_ns - before.snapshot.time_unix_ns if before is not None else 0
        if not 0 < passed_ns <= self._longest_gap_ns:
            return
        blocked = counted = 0
        for agent in sample.snapshot.agents:
            state = shown(agent.state, sample.knows_memory)
            if state is Shown.HUMAN or (state is Shown.IDLE and agent.since_s > _RESTING_S):
                continue
            counted += 1
            blocked += state in WAITS
        self._shares.append(Shares(now_ns, blocked * passed_ns / _NS, counted * passed_ns / _NS))
        while self._shares and self._shares[0].at_ns < now_ns - _B_NS:
            self._shares.popleft()

    def _note_memory(self, sample: Sample, before: Sample | None) -> None:
        link, tiers = sample.snapshot.link, sample.snapshot.tiers
        passed_s = (sample.snapshot.time_unix_ns - before.snapshot.time_unix_ns) / _NS if before is not None else 0.0
        for rates, rate, moved in (
            (self.out_rates, link.out_bytes_per_s, self._moved(before, link.out_total_bytes, "out_total_bytes")),
            (self.in_rates, link.in_bytes_per_s, self._moved(before, link.in_total_bytes, "in_total_bytes")),
        ):
            # Over more than a second the totals tell more than the last second's rate.
            rates.append(moved / passed_s if moved is not None and passed_s > 1.5 else rate)
        self.vram_used.append(float(tiers.vram.kv_active_bytes))
        self.host_used.append(float(tiers.host.used_bytes))
        size = sample.snapshot.block_tokens or 1
        whole = [
            agent.vram_bytes / (-(-agent.context_tokens // size) * size)
            for agent in sample.snapshot.agents
            if shown(agent.state, True) in _WHOLE and agent.context_tokens > 256 and agent.vram_bytes
        ]
        if whole:
            # The median: a block is shared by a whole prefix of agents, and whose request began has no KV for all of it yet.
            self.token_bytes = sorted(whole)[len(whole) // 2]

    @staticmethod
    def _moved(before: Sample | None, total: int, name: str) -> int | None:
        if before is None:
            return None
        moved = total - int(getattr(before.snapshot.link, name))
        return moved if moved >= 0 else None  # the engine was started anew

    def _note_events(self, sample: Sample) -> None:
        fresh = [event for event in sample.snapshot.events if event.time_unix_ns >= self._newest_event_ns]
        for event in fresh:
            if event in self._seen_events:
                continue
            if event.time_unix_ns > self._newest_event_ns:
                self._newest_event_ns = event.time_unix_ns
                self._seen_events.clear()
            self._seen_events.add(event)
            self._log(event)

    def _log(self, event: EngineEvent) -> None:
        """Losses come block by block: what an agent loses in one go is one event."""
        last = self.events[-1] if self.events else None
        if (
            last is not None
            and event.kind in (EventKind.RECLAIM, EventKind.DROP)
            and (last.agent, last.kind) == (event.agent, event.kind)
            and event.time_unix_ns - last.time_unix_ns < _NS
        ):
            self.events[-1] = replace(last, bytes=last.bytes + event.bytes)
        else:
            self.events.append(event)


_WHOLE: Final = frozenset({Shown.GENERATING, Shown.RESIDENT})


def _count(waits: dict[str, ToolWait], tool: str | None, lasted_s: float) -> None:
    wait = waits.setdefault(tool or "?", ToolWait())
    wait.calls += 1
    wait.total_s += lasted_s
    wait.longest_s = max(wait.longest_s, lasted_s)
