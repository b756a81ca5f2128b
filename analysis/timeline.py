"""From loaded records to measured times: the questions of ``sql/`` in the order in which they build on each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb

from .queries import derive, rows
from .records import AgentTime, Anomalies, SourceCount, ToolTime, WindowTime

_STEPS: Final = (
    "kept",
    "links",
    "lineage",
    "spans",
    "queued",
    "intervals",
    "cuts",
    "human_gaps",
    "slices",
    "timeline",
    "elsewhere",
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the database says; what follows is arithmetic."""

    agents: tuple[AgentTime, ...]
    tools: tuple[ToolTime, ...]
    windows: WindowTime
    sources: tuple[SourceCount, ...]
    anomalies: Anomalies


def measure(connection: duckdb.DuckDBPyConnection, round_trip_ns: int) -> Measured:
    """Derive every agent's state timeline from the tables ``records`` and ``processes``, and measure it.

    Leaves the tables ``spans`` (the normal form), ``queued`` and ``timeline`` behind for whoever draws them.
    """
    for step in _STEPS:
        derive(connection, step)
    assumed = {"round_trip_ns": round_trip_ns}
    return Measured(
        agents=tuple(rows(connection, "agents", AgentTime, assumed)),
        tools=tuple(rows(connection, "tools", ToolTime, assumed)),
        windows=rows(connection, "windows", WindowTime, assumed)[0],
        sources=tuple(rows(connection, "sources", SourceCount)),
        anomalies=rows(connection, "anomalies", Anomalies)[0],
    )
