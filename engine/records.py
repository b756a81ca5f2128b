"""What the engine tells about itself: the snapshot behind ``engine.state()``, ``/v1/kv/state`` and ``kvtrace top``.

Torch-free. Key names carry their unit and stand here once; later versions only add. ``None`` means unknown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from .geometry import BLOCK_TOKENS

SCHEMA_VERSION: Final = 1


class AgentState(StrEnum):
    """What an agent's KV is doing."""

    GENERATING = "generating"
    BLOCKED_RESIDENT = "blocked_resident"  # waits for a tool, all of its KV still only or also in VRAM
    PARKING = "parking"  # waits for a tool, its copies out are under way
    PARKED = "parked"  # waits for a tool, some of its KV has left VRAM
    RESTORING = "restoring"  # its KV is on the way back
    QUEUED = "queued"  # has a request that holds no slot yet
    HUMAN = "human"  # its turn ended with an answer
    IDLE = "idle"  # known, nothing open


class EventKind(StrEnum):
    """What happened to an agent's KV."""

    PARK = "park"  # copied to the host, device blocks freed or reclaimable
    RECLAIM = "reclaim"  # device blocks of a waiting agent handed to another; the host has them
    DROP = "drop"  # blocks lost: no host slot, they must be computed again
    RESTORE = "restore"  # copied back
    REVIVE = "revive"  # came back without a copy: nobody had needed the space
    PREEMPT = "preempt"  # a running sequence made room
    REFUSE = "refuse"  # a request that can never run here


@dataclass(frozen=True, slots=True)
class VramTier:
    """Device memory, bytes. ``other_bytes`` belongs to other processes."""

    total_bytes: int | None
    weights_bytes: int
    kv_pool_bytes: int
    kv_active_bytes: int
    kv_reclaimable_bytes: int
    kv_free_bytes: int
    other_bytes: int | None


@dataclass(frozen=True, slots=True)
class HostTier:
    """Host memory for parked KV, bytes."""

    total_bytes: int
    used_bytes: int
    pinned_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Tiers:
    """Both tiers."""

    vram: VramTier
    host: HostTier


@dataclass(frozen=True, slots=True)
class Link:
    """Copies between the tiers: rate over the last second, peak and total, each way."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    out_peak_bytes_per_s: float
    in_peak_bytes_per_s: float
    out_total_bytes: int
    in_total_bytes: int


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """One agent.

    ``since_s``: seconds in this state; one wait for a tool counts as one, whatever becomes of the KV meanwhile.
    ``context_tokens``: length of the context it runs on or, between requests, last ran on. ``kept_tokens``: how many
    of them have KV in either tier. ``vram_bytes`` and ``host_bytes`` count a shared block for each agent that holds
    it. ``b``: share of its life so far spent waiting for tools. ``state_seconds``: its life so far by state; waiting for
    a tool is one of them, ``blocked_resident``, wherever the KV was meanwhile.
    """

    agent: str
    state: AgentState
    tool: str | None
    since_s: float
    context_tokens: int
    vram_bytes: int
    host_bytes: int
    tokens_per_s: float | None
    b: float | None
    parks: int
    restores: int
    kept_tokens: int
    state_seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that happened to an agent's KV, and ``why``. ``duration_ms``: first copy's start to last copy's end.

    ``trace_id`` and ``span_id`` are those of the tool span that caused it, in lower-case hex; ``None`` where there is none.
    """

    time_unix_ns: int
    agent: str
    kind: EventKind
    tool: str | None
    bytes: int
    duration_ms: float | None
    why: str
    trace_id: str | None = None
    span_id: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts since the engine started; tokens unless the name says otherwise.

    ``prefill_s``: time of all steps, each by the share of its positions that belonged to prompts.
    """

    prefilled_tokens: int
    reprefilled_tokens: int
    generated_tokens: int
    cached_device_tokens: int
    cached_host_tokens: int
    dropped_blocks: int
    unmatched_signals: int
    steps: int
    prefill_s: float
    matched_signals: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine at one instant. device_name: what its maker calls the card; ``None`` for a CPU and where nobody knows.

    block_tokens: positions of a block of KV, of which a context has full ones and at most one other.
    """

    time_unix_ns: int
    model: str
    device: str
    policy: str
    tiers: Tiers
    link: Link
    agents: tuple[AgentRecord, ...]
    events: tuple[EngineEvent, ...]
    totals: Totals
    schema_version: int = SCHEMA_VERSION
    device_name: str | None = None
    block_tokens: int = BLOCK_TOKENS

    def as_json(self) -> dict[str, Any]:
        """The snapshot as plain JSON values (``docs/state.schema.json``)."""
        return asdict(self)
