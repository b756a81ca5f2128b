"""Typed rows of the queries that leave the database. Instants and lengths are integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentTime:
    """What one agent's time went to (``agents.sql``).

    The five states add up to ``wall_ns``. ``generating_ns`` and ``tool_union_ns`` are unions before any cutting,
    ``low_*`` the same timeline with open tool calls ended at their start; ``*_active_ns`` is wall without human time.
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
class ToolTime:
    """How long the calls of one tool took (``tools.sql``); quantiles are of ended calls, 50, 90 and 99 %."""

    tool: str
    calls: int
    open_calls: int
    total_ns: int
    quantiles_ns: list[float] | None
    short_calls: int


@dataclass(frozen=True, slots=True)
class WindowTime:
    """How long agents were blocked at a time (``windows.sql``); quantiles 10, 25, 50, 75, 90 and 99 %."""

    windows: int
    quantiles_ns: list[float] | None
    short_windows: int
    short_ns: int


@dataclass(frozen=True, slots=True)
class SourceCount:
    """What one file held (``sources.sql``)."""

    source: int
    spans: int
    model_calls: int
    queue_reports: int
    human_waits: int


@dataclass(frozen=True, slots=True)
class Anomalies:
    """What in the data is odd, in spans (``anomalies.sql``)."""

    duplicates: int
    untimed: int
    backward: int
    zero_length: int
    unended: int
    parent_missing: int
    parent_circular: int
    idle_agents: int
