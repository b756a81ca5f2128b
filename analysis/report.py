"""The report as data: what was measured and what follows from it, ready for any renderer.

Lengths are seconds unless the key says otherwise; shares lie in 0..1; ``None`` stands for unknown, 0/0 included.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from .capacity import Capacity
from .decision import Decision
from .normal import Skip
from .published import PUBLISHED, PublishedRow
from .records import Anomalies

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AgentReport:
    """One owner of a KV cache. The five states (blocked, human, queued, overhead, and the rest) fill ``wall_s``.

    ``generating_s`` and ``tool_union_s`` are unions before any cutting. ``b`` is blocked time over wall clock without
    the person; ``b_low`` ends open tool calls at their start, ``b_high`` at the last sign of life, as ``b`` does.
    ``b_capped_60s`` takes what a window has beyond 60 s for a person's time, as it may be where a source shows no
    approvals. ``idleness_*`` is the share blocked of the last five cycles, at the end of the last wait and as median
    over all waits. ``context_tokens`` is the mean context of a wait, ``idle_gb_s`` its cache times the wait, summed over
    the share ``idle_known`` of the blocked time in which the context is known.
    """

    agent: str
    name: str | None
    parent: str | None
    running: bool
    wall_s: float
    generating_s: float
    tool_union_s: float
    blocked_s: float
    human_s: float
    queued_s: float
    overhead_s: float
    model_elsewhere_s: float
    tool_calls: int
    open_calls: int
    model_calls: int
    windows: int
    generation_per_step_s: float | None
    b: float | None
    b_low: float | None
    b_high: float | None
    b_wall: float | None
    b_busy: float | None
    b_idle: float | None
    b_evictable: float | None
    b_capped_60s: float | None
    idleness_last: float | None
    idleness_median: float | None
    context_tokens: float | None
    idle_gb_s: float | None
    idle_known: float | None


@dataclass(frozen=True, slots=True)
class WindowBinReport:
    """Windows of at least ``from_s`` and less than ``to_s``; a quarter of a decade wide."""

    from_s: float
    to_s: float
    windows: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class WindowReport:
    """Windows are maximal runs of being blocked on tools; the two shares are of windows and of blocked seconds.

    ``histogram`` leaves out bins without a window.
    """

    count: int
    p10_s: float | None
    p25_s: float | None
    p50_s: float | None
    p75_s: float | None
    p90_s: float | None
    p99_s: float | None
    shorter_than_round_trip: float | None
    blocked_shorter_than_round_trip: float | None
    histogram: tuple[WindowBinReport, ...]


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What was not measured but assumed."""

    round_trip_ms: float
    recompute_s: float
    bytes_per_token: int
    slots: int


@dataclass(frozen=True, slots=True)
class PooledReport:
    """All agents together: seconds are summed, so that shares are weighted by time.

    ``b_interval_low`` and ``b_interval_high`` are a 95 % bootstrap interval of ``b`` over agents.
    ``generating_state_s`` is what is left of ``generating_s`` on the timeline.
    """

    agents: int
    running_agents: int
    wall_s: float
    generating_s: float
    tool_union_s: float
    generating_state_s: float
    blocked_s: float
    human_s: float
    queued_s: float
    overhead_s: float
    model_elsewhere_s: float
    tool_calls: int
    open_calls: int
    model_calls: int
    generation_per_step_s: float | None
    b: float | None
    b_low: float | None
    b_high: float | None
    b_interval_low: float | None
    b_interval_high: float | None
    b_wall: float | None
    b_busy: float | None
    b_idle: float | None
    b_evictable: float | None
    b_capped_60s: float | None
    context_tokens: float | None
    idle_gb_s: float | None
    idle_known: float | None
    windows: WindowReport
    capacity: Capacity
    decision: Decision
    assumptions: Assumptions
    anomalies: Anomalies


@dataclass(frozen=True, slots=True)
class ToolReport:
    """Calls of one tool.

    Quantiles, mean and ``shorter_than_round_trip`` are over calls that ended; ``share`` is of the time summed over all
    tools. Break-even: the ``longer_calls`` outlast the round trip, by ``freed_s`` together; moving the cache at each of
    them takes ``swap_s`` of copying, dropping it instead ``recompute_s`` of prefill.
    """

    tool: str
    calls: int
    open_calls: int
    total_s: float
    mean_s: float | None
    p10_s: float | None
    p25_s: float | None
    p50_s: float | None
    p75_s: float | None
    p90_s: float | None
    p99_s: float | None
    share: float | None
    shorter_than_round_trip: float | None
    longer_calls: int
    freed_s: float
    swap_s: float
    recompute_s: float


@dataclass(frozen=True, slots=True)
class SourceReport:
    """One file. ``skipped`` counts what could not be read, ``skipped_lines`` names the first of it (line 0: the file)."""

    path: str
    kind: str | None
    spans: int
    skipped: int
    skipped_lines: tuple[Skip, ...]
    cannot_show: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything ``kvtrace report`` says. ``published`` is what others found, to compare with."""

    schema_version: int
    pooled: PooledReport
    agents: tuple[AgentReport, ...]
    tools: tuple[ToolReport, ...]
    sources: tuple[SourceReport, ...]
    published: tuple[PublishedRow, ...] = PUBLISHED

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; keys are only ever added within a schema version."""
        return asdict(self)
