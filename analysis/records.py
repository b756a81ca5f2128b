"""Typed rows of the queries that leave the database. Instants and lengths are integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentTime:
    """What one agent's time went to (``agents.sql``).

    The five states add up to ``wall_ns``. ``generating_ns`` and ``tool_union_ns`` are unions before any cutting,
    ``low_*`` the same timeline with open tool calls ended at their start; ``*_active_ns`` is wall without human time.
    ``capped_ns`` is ``blocked_ns`` with no window longer than a cap. Of the ``sized_windows`` the context's length is
    known: ``context_tokens`` sums it, ``sized_ns`` their lengths, ``idle_token_us`` tokens times microseconds.
    """

    agent: str
    name: str | None
    parent: str | None
    running: bool
    tool_calls: int
    open_calls: int
    model_calls: int
    wall_ns: int
    generating_ns: int
    tool_union_ns: int
    generating_state_ns: int
    blocked_ns: int
    human_ns: int
    queued_ns: int
    overhead_ns: int
    evictable_ns: int
    capped_ns: int
    sized_windows: int
    context_tokens: int
    sized_ns: int
    idle_token_us: int
    model_elsewhere_ns: int
    steps: int
    windows: int
    low_blocked_ns: int
    low_active_ns: int

    @property
    def active_ns(self) -> int:
        """Wall clock with the person taken out."""
        return self.wall_ns - self.human_ns


@dataclass(frozen=True, slots=True)
class AgentIdleness:
    """Share of the last five cycles spent blocked, at the end of an agent's last wait and as median over its waits."""

    agent: str
    last: float
    median: float


@dataclass(frozen=True, slots=True)
class ToolTime:
    """How long the calls of one tool took (``tools.sql``); quantiles are of ended calls, 10, 25, 50, 75, 90 and 99 %.

    ``ended_ns`` is their sum. ``long_calls`` outlast the round trip, by ``freed_ns`` together.
    """

    tool: str
    calls: int
    open_calls: int
    total_ns: int
    quantiles_ns: list[float] | None
    short_calls: int
    ended_ns: int
    long_calls: int
    freed_ns: int


@dataclass(frozen=True, slots=True)
class WindowTime:
    """How long agents were blocked at a time (``windows.sql``); quantiles 10, 25, 50, 75, 90 and 99 %."""

    windows: int
    quantiles_ns: list[float] | None
    short_windows: int
    short_ns: int


@dataclass(frozen=True, slots=True)
class WindowBin:
    """Windows of 10^(bin/4) to 10^((bin+1)/4) nanoseconds (``histogram.sql``)."""

    bin: int
    windows: int
    blocked_ns: int


@dataclass(frozen=True, slots=True)
class SourceCount:
    """What one file held (``sources.sql``)."""

    source: int
    spans: int
    model_calls: int
    queue_reports: int
    human_waits: int
    turns: int


@dataclass(frozen=True, slots=True)
class Anomalies:
    """What in the data is odd, in spans or agents (``anomalies.sql``).

    ``containers`` are agents that only held others together, ``idle_agents`` those that did nothing at all.
    """

    duplicates: int
    untimed: int
    backward: int
    zero_length: int
    unended: int
    agent_unknown: int
    repeated_calls: int
    parent_missing: int
    parent_circular: int
    idle_agents: int
    containers: int
