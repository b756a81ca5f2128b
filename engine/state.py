"""Builds the snapshot of :mod:`.records` from the parts of a running engine. Torch-free; changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from .blocks import Owner
from .events import EventLog
from .geometry import KVGeometry
from .records import AgentRecord, AgentState, EventKind, HostTier, Tiers, VramTier
from .sequence import Sequence
from .sessions import Session, Sessions
from .tiers import TieredCache


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


def agents(
    sessions: Sessions,
    live: Mapping[str, list[Sequence]],
    cache: TieredCache,
    events: EventLog,
    geometry: KVGeometry,
    now_ns: int,
) -> tuple[AgentRecord, ...]:
    """One record an agent, in the order of their newest requests."""
    parking, restoring = events.under_way(EventKind.PARK), events.under_way(EventKind.RESTORE)
    block_bytes = geometry.block_bytes
    records = []
    for session in sessions.agents.values():
        owner = _holder(session.agent, live.get(session.agent, ()), cache)
        residency = cache.residency(owner)
        own = [sequence for sequence in live.get(session.agent, ()) if sequence.table]
        tables = sum(len(sequence.table) for sequence in own)
        context, kept = _context(own, cache.context_tokens(owner), residency.kept_tokens)
        generating = session.state is AgentState.GENERATING
        parked = residency.device_blocks < residency.blocks
        records.append(
            AgentRecord(
                agent=session.agent,
                state=_state(session, session.agent in parking, session.agent in restoring, parked),
                tool=session.tool if session.blocked else None,
                since_s=(now_ns - session.since_ns) / 1e9,
                context_tokens=context,
                vram_bytes=max(residency.device_blocks, tables) * block_bytes,
                host_bytes=residency.host_blocks * block_bytes,
                tokens_per_s=session.rate.rate(now_ns) if generating else None,
                b=session.b(now_ns),
                parks=session.parks,
                restores=session.restores,
                kept_tokens=kept,
                state_seconds=session.seconds(now_ns),
            )
        )
    return tuple(records)


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


def _state(session: Session, parking: bool, restoring: bool, parked: bool) -> AgentState:
    if session.activity is not None:
        return session.activity
    if session.blocked:
        if parking:
            return AgentState.PARKING
        return AgentState.PARKED if parked else AgentState.BLOCKED_RESIDENT
    return AgentState.RESTORING if restoring else session.state
