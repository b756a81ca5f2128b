"""What a picture of the timelines needs, small enough to be drawn: stretches of time, and marks within them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import duckdb

from .queries import rows, sql

State = Literal["generating", "blocked_tool", "blocked_human", "queued", "overhead"]

MAX_MARKS: Final = 5000
_FIRST_BINS: Final = 1500
_MOST_GAPS: Final = 24
_HELD_BINS: Final = 400


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time from the first to the last instant of which somebody was busy; gaps of idleness lie between stretches."""

    stretch: int
    start_ns: int
    stop_ns: int

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Mark:
    """One state of one agent within one stretch.

    ``changes`` is the number of states it stands for: more than 1 only where :attr:`Chart.bin_ns` says that time was
    binned. ``tools`` names up to three of the ``tool_count`` tools that the agent was blocked on, the longest first.
    """

    agent: str
    stretch: int
    state: State
    start_ns: int
    stop_ns: int
    changes: int
    tools: list[str]
    tool_count: int


@dataclass(frozen=True, slots=True)
class Held:
    """Mean tokens held in bin number ``bin`` of a stretch by agents that worked, and by agents blocked on tools."""

    stretch: int
    bin: int
    working_tokens: float
    idle_tokens: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Marks by agent and start. ``bin_ns`` is ``None`` where every one of the ``changes`` of state is a mark.

    ``held``, in bins of ``held_bin_ns``, is empty where no model call tells its tokens.
    """

    stretches: tuple[Stretch, ...]
    marks: tuple[Mark, ...]
    changes: int
    bin_ns: int | None
    held: tuple[Held, ...]
    held_bin_ns: int


def read_chart(connection: duckdb.DuckDBPyConnection, agents: Sequence[str], max_marks: int = MAX_MARKS) -> Chart:
    """Cut the timelines of ``agents`` into at most ``max_marks`` marks, or one a stretch and agent where that is more.

    Expects the tables ``spans`` and ``timeline``. Bins are doubled until the marks are few enough.
    """
    shown = {"agents": list(agents)}
    stretches = tuple(rows(connection, "chart/stretches", Stretch, {**shown, "most_gaps": _MOST_GAPS}))
    _keep(connection, "stretches", sql("chart/stretches"), {**shown, "most_gaps": _MOST_GAPS})
    changes = _keep(connection, "marks", sql("chart/marks"), shown)
    length_ns = sum(stretch.length_ns for stretch in stretches)
    bin_ns = None
    if changes > max_marks:
        bin_ns = _bin(connection, length_ns, max_marks)
    else:
        _keep(connection, "drawn_marks", "select * from marks")
    held_bin_ns = max(1, length_ns // _HELD_BINS)
    return Chart(
        stretches=stretches,
        marks=tuple(rows(connection, "chart/drawn_marks", Mark)),
        changes=changes,
        bin_ns=bin_ns,
        held=tuple(rows(connection, "chart/held", Held, {**shown, "bin_ns": held_bin_ns})),
        held_bin_ns=held_bin_ns,
    )


def _bin(connection: duckdb.DuckDBPyConnection, length_ns: int, max_marks: int) -> int:
    """Fill ``drawn_marks`` with few enough marks, and return the width of a bin."""
    bin_ns = max(1, length_ns // _FIRST_BINS)
    while _keep(connection, "drawn_marks", sql("chart/binned_marks"), {"bin_ns": bin_ns}) > max_marks:
        if bin_ns > length_ns:
            break
        bin_ns *= 2
    return bin_ns


def _keep(
    connection: duckdb.DuckDBPyConnection, table: str, query: str, parameters: Mapping[str, Any] | None = None
) -> int:
    """Keep an answer as a table, and return its number of rows."""
    connection.execute(f'create or replace temp table "{table}" as {query}', dict(parameters or {}))
    counted = connection.execute(f'select count(*) from "{table}"').fetchone()  # noqa: S608 - names of ours
    assert counted is not None
    return int(counted[0])
