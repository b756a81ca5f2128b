"""What past calls tell the engine's policy about the next: how long calls of each tool last.

The document is read by programs that measured nothing themselves; ``docs/forecast.schema.json`` describes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from .report import Report, ToolReport

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ToolForecast:
    """Lengths of the calls of one tool that ended, in seconds: quantiles, mean, and the share under the round trip."""

    tool: str
    calls: int
    mean_s: float
    p10_s: float
    p25_s: float
    p50_s: float
    p75_s: float
    p90_s: float
    p99_s: float
    shorter_than_round_trip: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """``any_tool`` is over the waits of agents, whatever they waited for: what to expect of a tool not seen yet."""

    schema_version: int
    round_trip_ms: float
    any_tool: ToolForecast | None
    tools: tuple[ToolForecast, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data for ``json.dumps``; keys are only ever added within a schema version."""
        return asdict(self)


def forecast(report: Report) -> Forecast:
    """The forecast that a report's calls amount to; tools of which no call ended are left out."""
    pooled = report.pooled
    return Forecast(
        schema_version=SCHEMA_VERSION,
        round_trip_ms=pooled.assumptions.round_trip_ms,
        any_tool=_of_waits(report),
        tools=tuple(found for tool in report.tools if (found := _of_tool(tool)) is not None),
    )


def render_forecast(report: Report) -> str:
    """The forecast as indented JSON, without a trailing newline."""
    return json.dumps(forecast(report).as_json(), indent=2, ensure_ascii=False, allow_nan=False)


def _of_tool(tool: ToolReport) -> ToolForecast | None:
    lengths = (tool.mean_s, tool.p10_s, tool.p25_s, tool.p50_s, tool.p75_s, tool.p90_s, tool.p99_s)
    return _forecast(tool.tool, tool.calls - tool.open_calls, lengths, tool.shorter_than_round_trip)


def _of_waits(report: Report) -> ToolForecast | None:
    waits = report.pooled.windows
    mean_s = report.pooled.blocked_s / waits.count if waits.count else None
    lengths = (mean_s, waits.p10_s, waits.p25_s, waits.p50_s, waits.p75_s, waits.p90_s, waits.p99_s)
    return _forecast("", waits.count, lengths, waits.shorter_than_round_trip)


def _forecast(tool: str, calls: int, lengths_s: Sequence[float | None], shorter: float | None) -> ToolForecast | None:
    """``lengths_s``: mean, then the quantiles."""
    known = [length for length in lengths_s if length is not None]
    if len(known) < len(lengths_s) or shorter is None:
        return None
    mean_s, p10_s, p25_s, p50_s, p75_s, p90_s, p99_s = known
    return ToolForecast(tool, calls, mean_s, p10_s, p25_s, p50_s, p75_s, p90_s, p99_s, shorter)
