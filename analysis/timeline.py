"""From loaded records to measured times: the questions of ``sql/`` in the order in which they build on each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import duckdb

from .options import WINDOW_CAP_NS
from .queries import Row, derive, number_terms, rows
from .records import AgentIdleness, AgentTime, Anomalies, SourceCount, ToolTime, WindowBin, WindowTime

_TABLE, _VIEW = "table", "view"
STEPS: Final = {
    "superseded": _TABLE,
    "alive": _TABLE,
    "kept": _VIEW,
    "terms": _TABLE,
    "parents": _TABLE,
    "lineage": _TABLE,
    "owned": _TABLE,
    "repeated": _TABLE,
    "delegated": _TABLE,
    "calls": _VIEW,
    "spans": _VIEW,
    "queued": _TABLE,
    "intervals": _VIEW,
    "within_call": _TABLE,
    "suspended": _TABLE,
    "tool_calls": _VIEW,
    "pieces": _TABLE,
    "cuts": _TABLE,
    "human_gaps": _TABLE,
    "slices": _TABLE,
    "timeline": _TABLE,
    "elsewhere": _TABLE,
    "contexts": _TABLE,
    "facts": _TABLE,
    "idleness": _TABLE,
    "untimed": _VIEW,
    "oddities": _VIEW,
}
"""What is asked again and again is a table, unless it would hold a second time what already is in one."""

_TERMS: Final = {
    **dict.fromkeys(("owned", "delegated"), ("agent", "parent_agent", "kind", "name", "agent_name")),
    "intervals": ("variant",),
    "slices": ("state",),
}
"""Columns whose texts are among ``terms``: as numbers they sort several times faster and take a quarter of the room."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything the database says; what follows is arithmetic."""

    agents: tuple[AgentTime, ...]
    idleness: tuple[AgentIdleness, ...]
    tools: tuple[ToolTime, ...]
    windows: WindowTime
    histogram: tuple[WindowBin, ...]
    sources: tuple[SourceCount, ...]
    anomalies: Anomalies


class Ask(Protocol):
    """Answers a question of ``sql/`` as records, in whatever database holds the answers it builds on."""

    def __call__(self, name: str, row_type: type[Row], parameters: Mapping[str, int], /) -> list[Row]:
        """Answer the question called ``name``."""
        ...


def measure(connection: duckdb.DuckDBPyConnection, round_trip_ns: int, window_cap_ns: int = WINDOW_CAP_NS) -> Measured:
    """Derive every agent's state timeline from the tables ``records`` and ``processes``, and measure it.

    Leaves ``spans`` (the normal form), ``queued`` and ``timeline`` behind for whoever draws them.
    """
    take_steps(connection, list(STEPS))

    def ask(name: str, row_type: type[Row], parameters: Mapping[str, int]) -> list[Row]:
        return rows(connection, name, row_type, parameters)

    return answers(ask, round_trip_ns, window_cap_ns)


def take_steps(connection: duckdb.DuckDBPyConnection, steps: Sequence[str]) -> None:
    """Derive some of :data:`STEPS` from those before them."""
    for step in steps:
        derive(connection, step, STEPS[step], _TERMS.get(step, ()))
        if step == "terms":
            number_terms(connection)


def answers(ask: Ask, round_trip_ns: int, window_cap_ns: int) -> Measured:
    """Ask everything that a report wants to know, once all of :data:`STEPS` are there."""
    assumed = {"round_trip_ns": round_trip_ns}
    return Measured(
        agents=tuple(ask("agents", AgentTime, {**assumed, "window_cap_ns": window_cap_ns})),
        idleness=tuple(ask("waits", AgentIdleness, {})),
        tools=tuple(ask("tools", ToolTime, assumed)),
        windows=ask("windows", WindowTime, assumed)[0],
        histogram=tuple(ask("histogram", WindowBin, {})),
        sources=tuple(ask("sources", SourceCount, {})),
        anomalies=ask("anomalies", Anomalies, {})[0],
    )
