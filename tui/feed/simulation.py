"""A simulated engine with agents on it, drawn from a seed, so that anybody sees ``kvtrace top`` without a card.

Nothing is computed and nothing is measured. The card is the article's: 16 GB, 147,456 B of KV a token, a tier of 48 GB on
the host; for every 14 agents there is one. Agents follow what public coding-agent sessions show: most calls are quick reads and searches, most seconds go
into a few slow commands. KV moves as under the engine's ``swap``: copied early, freed when somebody needs the space.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kvtrace.engine.records import (
    AgentRecord,
    AgentState,
    EngineEvent,
    EventKind,
    HostTier,
    Link,
    Snapshot,
    Tiers,
    Totals,
    VramTier,
)

from .rates import Moves

TOKEN_BYTES: Final = 147_456
_VRAM_BYTES: Final = 16_000_000_000
_WEIGHTS_BYTES: Final = 5_500_000_000
_POOL_BYTES: Final = 8_100_000_000
_OTHER_BYTES: Final = 1_000_000_000
_HOST_BYTES: Final = 48_000_000_000
_LINK_BYTES_PER_S: Final = 25e9
_PREFILL_PER_S: Final = 962.0
_SLOTS: Final = 8
_AGENTS_A_CARD: Final = 14
_TOKENS_PER_S: Final = 41.0
_MOST_TOKENS: Final = 16_000
_TAIL_TOKENS: Final = 64  # what is left to copy at a tool's start: the rest was copied when it was full
_EVENTS: Final = 256
_NS: Final = 1_000_000_000

# Tool, share of the calls, median seconds, spread (the logarithm's standard deviation).
_TOOLS: Final = (
    ("read_file", 0.28, 0.02, 1.3),
    ("grep", 0.20, 0.35, 0.6),
    ("edit", 0.16, 0.09, 1.4),
    ("bash", 0.22, 4.0, 1.3),
    ("pytest", 0.14, 24.0, 0.8),
)
_NAMES: Final = ("refactor", "tests", "docs", "api", "lint", "review", "search", "build")
_BUSY: Final = frozenset({AgentState.GENERATING, AgentState.RESTORING})
_BLOCKED: Final = frozenset({AgentState.BLOCKED_RESIDENT, AgentState.PARKING, AgentState.PARKED})


@dataclass(slots=True, eq=False)
class _Agent:
    """One agent; ``vram`` and ``host`` are tokens whose KV is there, room for those of a turn under way included.

    The next turn takes ``turn_s`` and adds ``growth`` tokens. ``changes`` outdates what was planned before.
    """

    number: int
    name: str
    random: Random
    tokens: int
    state: AgentState = AgentState.QUEUED
    born_s: float = 0.0
    since_s: float = 0.0
    state_s: float = 0.0
    until_s: float = 0.0
    tool: str | None = None
    vram: int = 0
    host: int = 0
    blocked_s: float = 0.0
    human_s: float = 0.0
    parks: int = 0
    restores: int = 0
    turns: int = 0
    changes: int = 0
    turn_s: float = 0.0
    growth: int = 0


@dataclass(slots=True)
class SimulatedEngine:
    """``agents`` agents from ``start_ns`` on; the same seed gives the same life, however often it is looked at."""

    agents: int
    seed: int
    start_ns: int
    _members: list[_Agent] = field(default_factory=list)
    _due: list[tuple[float, int, int]] = field(default_factory=list)
    _queue: deque[_Agent] = field(default_factory=deque)
    _events: deque[EngineEvent] = field(default_factory=lambda: deque(maxlen=_EVENTS))
    _out: Moves = field(default_factory=Moves)
    _in: Moves = field(default_factory=Moves)
    _now_s: float = 0.0
    _prefilled: int = 0
    _reprefilled: int = 0
    _generated: int = 0
    _dropped: int = 0
    _cards: int = 1
    _busy: int = 0
    _held: int = 0

    def __post_init__(self) -> None:
        self._cards = max(1, round(self.agents / _AGENTS_A_CARD))
        for number in range(self.agents):
            random = Random(f"{self.seed}/{number}")  # noqa: S311 - a simulation, not a secret
            name = f"{_NAMES[number % len(_NAMES)]}-{number + 1}"
            agent = _Agent(number, name, random, random.randint(2500, 7000))
            agent.born_s = agent.since_s = agent.state_s = random.uniform(0, min(20.0, 2.0 * self.agents))
            self._members.append(agent)
            self._plan(agent, agent.born_s)

    def advance(self, now_ns: int) -> None:
        """Let everything happen that happens until ``now_ns``."""
        until_s = (now_ns - self.start_ns) / _NS
        while self._due and self._due[0][0] <= until_s:
            at_s, number, change = heapq.heappop(self._due)
            agent = self._members[number]
            if change == agent.changes:
                self._now_s = at_s
                self._step(agent)
        self._now_s = max(self._now_s, until_s)

    def snapshot(self) -> Snapshot:
        """The engine now, in the words of a real one."""
        alive = [agent for agent in self._members if agent.born_s <= self._now_s]
        records = tuple(self._record(agent) for agent in alive)
        return Snapshot(
            time_unix_ns=self._unix_ns(self._now_s),
            model="Qwen3-8B Q4_K_M (simulated)",
            device="simulated 16 GB card" if self._cards == 1 else f"{self._cards} simulated 16 GB cards",
            policy="swap",
            tiers=self._tiers(alive),
            link=Link(
                self._out.rate(self._now_s),
                self._in.rate(self._now_s),
                self._out.peak,
                self._in.peak,
                self._out.total,
                self._in.total,
            ),
            agents=records,
            events=tuple(self._events),
            totals=Totals(
                prefilled_tokens=self._prefilled,
                reprefilled_tokens=self._reprefilled,
                generated_tokens=self._generated,
                cached_device_tokens=0,
                cached_host_tokens=0,
                dropped_blocks=self._dropped,
                unmatched_signals=0,
                steps=self._generated,
                prefill_s=self._prefilled / _PREFILL_PER_S,
            ),
        )

    def _step(self, agent: _Agent) -> None:
        """What follows on the state that ends now."""
        match agent.state:
            case AgentState.QUEUED:
                self._ask(agent)
            case AgentState.RESTORING:
                self._generate(agent)
            case AgentState.GENERATING:
                self._end_turn(agent)
            case AgentState.PARKING:
                self._enter(agent, AgentState.BLOCKED_RESIDENT, agent.until_s)
            case _:
                self._enter(agent, AgentState.QUEUED, self._now_s)
                self._ask(agent)
        self._admit()

    def _ask(self, agent: _Agent) -> None:
        """Queue for the next turn, of which is known by now how long it will be."""
        agent.turn_s = _length(agent.random, 3.2, 0.7)
        wanted = round(agent.turn_s * _TOKENS_PER_S) + agent.random.randint(20, 400)
        agent.growth = min(wanted, _MOST_TOKENS - agent.tokens)
        self._queue.append(agent)

    def _admit(self) -> None:
        """Give slots to whoever waits, as long as there are slots and room."""
        while self._queue and self._busy < _SLOTS * self._cards and self._make_room(self._queue[0]):
            agent = self._queue.popleft()
            missing = max(0, agent.tokens - agent.vram)
            back = min(missing, agent.host) if agent.turns else 0
            self._hold(agent, agent.tokens + agent.growth)
            if back:
                took_s = back * TOKEN_BYTES / _LINK_BYTES_PER_S
                self._in.add(self._now_s + took_s, back * TOKEN_BYTES)
                agent.restores += 1
                self._note(agent, EventKind.RESTORE, back, took_s * 1e3, "back from its tool")
                self._enter(agent, AgentState.RESTORING, self._now_s + took_s)
            else:
                if agent.turns and agent.tool:
                    self._note(agent, EventKind.REVIVE, agent.tokens, None, "nobody had needed the space")
                self._prefilled += missing if not agent.turns else 0
                self._generate(agent)

    def _make_room(self, agent: _Agent) -> bool:
        """Whether ``agent`` and its next turn fit; waiting agents hand their space over, the longest wait first."""
        wanted = agent.tokens + agent.growth - agent.vram
        room = self._cards * _POOL_BYTES // TOKEN_BYTES - self._held
        if room >= wanted:
            return True
        waiting = [each for each in self._members if each is not agent and each.vram and each.state not in _HOLDING]
        for each in sorted(waiting, key=lambda one: one.since_s):
            if room >= wanted:
                break
            given = min(each.vram, wanted - room)
            self._hold(each, each.vram - given)
            room += given
            self._note(each, EventKind.RECLAIM, given, None, f"{agent.name} needed the space")
            if each.state is AgentState.BLOCKED_RESIDENT:
                self._enter(each, AgentState.PARKED, each.until_s)
        return room >= wanted

    def _generate(self, agent: _Agent) -> None:
        agent.until_s = self._now_s + agent.turn_s
        self._enter(agent, AgentState.GENERATING, agent.until_s)

    def _end_turn(self, agent: _Agent) -> None:
        self._generated += agent.growth
        agent.turns += 1
        agent.tokens += agent.growth
        self._hold(agent, agent.tokens)
        copied, agent.host = agent.tokens - agent.host, agent.tokens
        self._out.add(self._now_s, copied * TOKEN_BYTES)
        if agent.tokens == _MOST_TOKENS or agent.random.random() < 0.05:
            self._answer(agent)
            return
        tool, _, median_s, spread = agent.random.choices(_TOOLS, weights=[each[1] for each in _TOOLS])[0]
        agent.tool = tool
        tail_s = _TAIL_TOKENS * TOKEN_BYTES / _LINK_BYTES_PER_S + 0.03
        agent.until_s = self._now_s + _length(agent.random, median_s, spread)
        agent.parks += 1
        self._note(agent, EventKind.PARK, copied, copied * TOKEN_BYTES / _LINK_BYTES_PER_S * 1e3, f"waits for {tool}")
        self._enter(agent, AgentState.PARKING, min(agent.until_s, self._now_s + tail_s))

    def _answer(self, agent: _Agent) -> None:
        """The turn ends with an answer; a person reads it, and begins anew where the context is full."""
        agent.tool = None
        if agent.tokens == _MOST_TOKENS:
            agent.tokens, agent.turns, agent.host = agent.random.randint(2500, 7000), 0, 0
            self._hold(agent, 0)
        agent.until_s = self._now_s + _length(agent.random, 14.0, 0.6)
        self._enter(agent, AgentState.HUMAN, agent.until_s)

    def _enter(self, agent: _Agent, state: AgentState, until_s: float) -> None:
        spent = self._now_s - agent.state_s
        if agent.state in _BLOCKED:
            agent.blocked_s += spent
        if agent.state is AgentState.HUMAN:
            agent.human_s += spent
        self._busy += (state in _BUSY) - (agent.state in _BUSY)
        if not (state in _BLOCKED and agent.state in _BLOCKED):
            agent.since_s = self._now_s
        agent.state, agent.state_s = state, self._now_s
        if state is not AgentState.QUEUED:
            self._plan(agent, until_s)

    def _hold(self, agent: _Agent, tokens: int) -> None:
        self._held += tokens - agent.vram
        agent.vram = tokens

    def _plan(self, agent: _Agent, at_s: float) -> None:
        agent.changes += 1
        heapq.heappush(self._due, (at_s, agent.number, agent.changes))

    def _note(self, agent: _Agent, kind: EventKind, tokens: int, duration_ms: float | None, why: str) -> None:
        moved = tokens * TOKEN_BYTES
        self._events.append(
            EngineEvent(self._unix_ns(self._now_s), agent.name, kind, agent.tool, moved, duration_ms, why)
        )

    def _record(self, agent: _Agent) -> AgentRecord:
        running = self._now_s - agent.state_s
        blocked_s = agent.blocked_s + (running if agent.state in _BLOCKED else 0)
        lived_s = self._now_s - agent.born_s - agent.human_s - (running if agent.state is AgentState.HUMAN else 0)
        generating = agent.state is AgentState.GENERATING
        grown = min(agent.growth, round(running * _TOKENS_PER_S)) if generating else 0
        vram = agent.tokens + grown if generating else agent.vram
        if agent.state is AgentState.RESTORING and agent.until_s > agent.state_s:
            vram = round(agent.tokens * running / (agent.until_s - agent.state_s))
        return AgentRecord(
            agent=agent.name,
            state=agent.state,
            tool=agent.tool if agent.state in _BLOCKED else None,
            since_s=self._now_s - agent.since_s,
            context_tokens=agent.tokens + grown,
            vram_bytes=vram * TOKEN_BYTES,
            host_bytes=agent.host * TOKEN_BYTES,
            tokens_per_s=_TOKENS_PER_S + 2 * math.sin(self._now_s + agent.born_s) if generating else None,
            b=blocked_s / lived_s if lived_s > 0 else None,
            parks=agent.parks,
            restores=agent.restores,
            kept_tokens=max(min(agent.vram, agent.tokens), agent.host) + grown,
        )

    def _tiers(self, alive: list[_Agent]) -> Tiers:
        active = sum(each.vram for each in alive if each.state in _HOLDING) * TOKEN_BYTES
        resting = sum(each.vram for each in alive if each.state not in _HOLDING) * TOKEN_BYTES
        held = sum(each.host for each in alive) * TOKEN_BYTES
        pool, host = self._cards * _POOL_BYTES, self._cards * _HOST_BYTES
        vram = VramTier(
            total_bytes=self._cards * _VRAM_BYTES,
            weights_bytes=self._cards * _WEIGHTS_BYTES,
            kv_pool_bytes=pool,
            kv_active_bytes=active,
            kv_reclaimable_bytes=resting,
            kv_free_bytes=max(0, pool - active - resting),
            other_bytes=self._cards * _OTHER_BYTES,
        )
        return Tiers(vram, HostTier(host, min(held, host), host, max(0, host - held)))

    def _unix_ns(self, at_s: float) -> int:
        return self.start_ns + round(at_s * _NS)


_HOLDING: Final = frozenset({AgentState.GENERATING, AgentState.RESTORING, AgentState.PARKING})


def _length(random: Random, median_s: float, spread: float) -> float:
    return median_s * math.exp(random.gauss(0, spread))
