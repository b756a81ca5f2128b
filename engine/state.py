"""Builds the snapshot of :mod:`.records` from the parts of a running engine. Torch-free; changes nothing of what they do."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from .blocks import Owner
from .events import EventLog
from .geometry import KVGeometry
from .records import AgentRecord, AgentState, EventKind, HostTier, Tiers, VramTier
from .sequence import Sequence
from .sessions import Session, Sessions
from .tiers import TieredCache

_FRESH_NS: Final = 200_000_000
"""For so long a record stands where nothing but the time has changed."""

_LOOKED_AT: Final = 64
"""So many agents that are not at work are looked at each time, or an eighth of all where that is more."""

_TURN: Final = 16
"""So many records of agents that rest are made again at once because they are old, and of those that wait, or an eighth of these."""

Moving = tuple[Container[str], Container[str]]
"""The agents whose KV is being parked, and those whose KV is being restored."""


class _Known(NamedTuple):
    """A record, when it was made and what it shows besides the time."""

    stamp: tuple[object, ...]
    made_ns: int
    record: AgentRecord


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device and host report of themselves, bytes; ``None`` means unknown."""

    vram_total_bytes: int | None = None
    other_bytes: int | None = None
    pinned_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about the model and device that only their owner knows. ``memory`` is asked for each snapshot.

    ``ready_host_blocks`` tells how many host slots can be used by now, where they become usable one after the other.
    """

    model: str
    device: str
    weights_bytes: int
    memory: Callable[[], Memory] = Memory
    ready_host_blocks: Callable[[], int] | None = None
    device_name: str | None = None


def tiers(cache: TieredCache, info: EngineInfo, block_bytes: int) -> Tiers:
    """Both tiers in bytes. A block that a copy is using counts as active."""
    memory = info.memory()
    device, host = cache.placement.device, cache.placement.host
    used = len(host.slots) - len(host.free)
    return Tiers(
        vram=VramTier(
            total_bytes=memory.vram_total_bytes,
            weights_bytes=info.weights_bytes,
            kv_pool_bytes=len(device.blocks) * block_bytes,
            kv_active_bytes=(device.referenced + len(device.busy)) * block_bytes,
            kv_reclaimable_bytes=len(device.queue) * block_bytes,
            kv_free_bytes=len(device.free) * block_bytes,
            other_bytes=memory.other_bytes,
        ),
        host=HostTier(
            total_bytes=len(host.slots) * block_bytes,
            used_bytes=used * block_bytes,
            pinned_bytes=memory.pinned_bytes,
            free_bytes=len(host.free) * block_bytes,
        ),
    )


class AgentRecords:
    """The agents' records, in the order of their newest requests.

    Most of a snapshot's time goes into them, and most agents do nothing: a server that runs for long knows thousands that are
    done. Where a moment's delay does not matter, agents at work are looked at each time and the others in turn, and a record
    is made anew where anything but the time has changed, or where it is among the oldest of those that were looked at.
    """

    def __init__(
        self,
        sessions: Sessions,
        live: Mapping[str, list[Sequence]],
        cache: TieredCache,
        events: EventLog,
        geometry: KVGeometry,
    ) -> None:
        self._sessions = sessions
        self._live = live
        self._cache = cache
        self._events = events
        self._block_bytes = geometry.block_bytes
        self._known: dict[str, _Known] = {}
        self._at_work: set[str] = set()
        self._in_turn: list[str] = []

    def at(self, now_ns: int, *, whole: bool) -> tuple[AgentRecord, ...]:
        """All records; with ``whole`` each as of this instant, else some tenths of a second may have passed for the idle."""
        agents = self._sessions.agents
        moving = self._events.under_way(EventKind.PARK), self._events.under_way(EventKind.RESTORE)
        at_work = {*self._live, *self._sessions.waiting_agents(), *moving[0], *moving[1]}
        # Who was at work last time, or has been heard of since then, may be through with it by now.
        heard_of = self._sessions.take_heard_of()
        looked_at = agents if whole else at_work.union(self._at_work, heard_of, self._next_in_turn())
        old: dict[bool, list[tuple[int, str]]] = {True: [], False: []}
        for agent in looked_at:
            if (session := agents.get(agent)) is None:
                continue
            stamp, one = self._stamp(session, moving), self._known.get(agent)
            if whole or one is None or agent in self._live or one.stamp != stamp:
                self._known[agent] = _Known(stamp, now_ns, self._record(session, moving, now_ns))
            elif now_ns - one.made_ns > _FRESH_NS:
                old[session.blocked].append((one.made_ns, agent))
        for waiting, some in old.items():
            for _, agent in heapq.nsmallest(max(_TURN, len(some) // 8 if waiting else 0), some):
                record = self._record(agents[agent], moving, now_ns)
                self._known[agent] = _Known(self._known[agent].stamp, now_ns, record)
        self._at_work = at_work
        if len(self._known) > len(agents):  # some were forgotten
            self._known = {agent: self._known[agent] for agent in agents}
        return tuple([self._known[agent].record for agent in agents])

    def _next_in_turn(self) -> list[str]:
        """Some of all agents, at the next call others."""
        if not self._in_turn:
            self._in_turn = list(self._sessions.agents)
        some = max(_LOOKED_AT, len(self._sessions.agents) // 8)
        taken, self._in_turn = self._in_turn[-some:], self._in_turn[:-some]
        return taken

    def _stamp(self, session: Session, moving: Moving) -> tuple[object, ...]:
        """What changes whenever anything in the agent's record does but the time."""
        agent, holding = session.agent, self._cache.claims.of(session.agent)
        own = session.state, session.since_ns, session.parks, session.restores, agent in moving[0], agent in moving[1]
        if holding is None:
            return own
        tail = holding.tail
        return own, holding.device, holding.host, holding.alive, tail and tail.device, tail and tail.host

    def _record(self, session: Session, moving: Moving, now_ns: int) -> AgentRecord:
        cache, live = self._cache, self._live.get(session.agent, ())
        owner = _holder(session.agent, live, cache)
        residency = cache.residency(owner)
        own = [sequence for sequence in live if sequence.table]
        tables = sum(len(sequence.table) for sequence in own)
        context, kept = _context(own, cache.context_tokens(owner), residency.kept_tokens)
        return AgentRecord(
            agent=session.agent,
            state=_state(session, moving, residency.device_blocks < residency.blocks),
            tool=session.tool if session.blocked else None,
            since_s=(now_ns - session.since_ns) / 1e9,
            context_tokens=context,
            vram_bytes=max(residency.device_blocks, tables) * self._block_bytes,
            host_bytes=residency.host_blocks * self._block_bytes,
            tokens_per_s=session.rate.rate(now_ns) if session.state is AgentState.GENERATING else None,
            b=session.b(now_ns),
            parks=session.parks,
            restores=session.restores,
            kept_tokens=kept,
            state_seconds=session.seconds(now_ns),
        )


def _holder(agent: str, live: Iterable[Sequence], cache: TieredCache) -> Owner:
    """Who holds the longest of the agent's contexts: itself, or one of its requests that was preempted."""
    preempted: list[Owner] = [(agent, sequence.id) for sequence in live if not sequence.table]
    return max([agent, *preempted], key=cache.context_tokens) if preempted else agent


def _context(running: list[Sequence], last: int, last_kept: int) -> tuple[int, int]:
    """Length of an agent's context and how much of it is kept: of its longest running request, else of its last."""
    if not running:
        return last, last_kept
    longest = max(running, key=lambda sequence: len(sequence.tokens))
    # The newest output token gets its KV in the next step: it is not missing.
    newest = len(longest.tokens) > longest.prompt_tokens
    return len(longest.tokens) - newest, longest.kv_tokens


def _state(session: Session, moving: Moving, parked: bool) -> AgentState:
    parking, restoring = (session.agent in agents for agents in moving)
    if session.activity is not None:
        return session.activity
    if session.blocked:
        if parking:
            return AgentState.PARKING
        return AgentState.PARKED if parked else AgentState.BLOCKED_RESIDENT
    return AgentState.RESTORING if restoring else session.state
