"""Two reports side by side: each figure of both, and how far the second is from the first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from .report import PooledReport, Report, ToolReport

COMPARISON_VERSION: Final = 1

Unit = Literal["share", "multiple", "s", "count", "GB·s"]

_FIGURES: Final[tuple[tuple[str, Unit, Callable[[PooledReport], float | None]], ...]] = (
    ("b", "share", lambda pooled: pooled.b),
    ("b_busy", "share", lambda pooled: pooled.b_busy),
    ("b_evictable", "share", lambda pooled: pooled.b_evictable),
    ("b_capped_60s", "share", lambda pooled: pooled.b_capped_60s),
    ("agents_a_card", "multiple", lambda pooled: pooled.decision.multiple),
    ("generation_per_step_s", "s", lambda pooled: pooled.generation_per_step_s),
    ("wait_p50_s", "s", lambda pooled: pooled.windows.p50_s),
    ("wait_p90_s", "s", lambda pooled: pooled.windows.p90_s),
    ("wait_p99_s", "s", lambda pooled: pooled.windows.p99_s),
    ("waits_shorter_than_round_trip", "share", lambda pooled: pooled.windows.shorter_than_round_trip),
    ("wall_s", "s", lambda pooled: pooled.wall_s),
    ("blocked_s", "s", lambda pooled: pooled.blocked_s),
    ("generating_s", "s", lambda pooled: pooled.generating_s),
    ("queued_s", "s", lambda pooled: pooled.queued_s),
    ("idle_gb_s", "GB·s", lambda pooled: pooled.idle_gb_s),
    ("agents", "count", lambda pooled: pooled.agents),
    ("tool_calls", "count", lambda pooled: pooled.tool_calls),
    ("model_calls", "count", lambda pooled: pooled.model_calls),
)


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """``difference`` is the second less the first; ``None`` where either is unknown."""

    figure: str
    unit: Unit
    first: float | None
    second: float | None
    difference: float | None


@dataclass(frozen=True, slots=True)
class ComparedTool:
    """One tool in both; a run that never called it has 0 calls and no quantile."""

    tool: str
    first_calls: int
    second_calls: int
    first_total_s: float
    second_total_s: float
    total_difference_s: float
    first_p50_s: float | None
    second_p50_s: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``intervals_overlap`` is about the 95 % intervals of b: true means that chance may explain the difference."""

    schema_version: int
    intervals_overlap: bool | None
    figures: tuple[ComparedFigure, ...]
    tools: tuple[ComparedTool, ...]
    first: Report
    second: Report

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; keys are only ever added within a schema version."""
        return asdict(self)


def compare(first: Report, second: Report) -> Comparison:
    """Set two reports side by side; tools in order of how much their total time differs."""
    return Comparison(
        schema_version=COMPARISON_VERSION,
        intervals_overlap=_overlap(first.pooled, second.pooled),
        figures=tuple(_figure(name, unit, read(first.pooled), read(second.pooled)) for name, unit, read in _FIGURES),
        tools=_tools(first, second),
        first=first,
        second=second,
    )


def _figure(name: str, unit: Unit, first: float | None, second: float | None) -> ComparedFigure:
    difference = None if first is None or second is None else second - first
    return ComparedFigure(name, unit, first, second, difference)


def _overlap(first: PooledReport, second: PooledReport) -> bool | None:
    """Whether the intervals of b meet; ``None`` where one of them has none (a single agent)."""
    if first.b_interval_low is None or first.b_interval_high is None:
        return None
    if second.b_interval_low is None or second.b_interval_high is None:
        return None
    return first.b_interval_low <= second.b_interval_high and second.b_interval_low <= first.b_interval_high


def _tools(first: Report, second: Report) -> tuple[ComparedTool, ...]:
    of_first, of_second = ({tool.tool: tool for tool in report.tools} for report in (first, second))
    names = dict.fromkeys((*of_first, *of_second))
    compared = [_tool(name, of_first.get(name), of_second.get(name)) for name in names]
    return tuple(sorted(compared, key=lambda tool: -abs(tool.total_difference_s)))


def _tool(name: str, first: ToolReport | None, second: ToolReport | None) -> ComparedTool:
    first_total_s, second_total_s = (tool.total_s if tool else 0.0 for tool in (first, second))
    return ComparedTool(
        tool=name,
        first_calls=first.calls if first else 0,
        second_calls=second.calls if second else 0,
        first_total_s=first_total_s,
        second_total_s=second_total_s,
        total_difference_s=second_total_s - first_total_s,
        first_p50_s=first.p50_s if first else None,
        second_p50_s=second.p50_s if second else None,
    )
