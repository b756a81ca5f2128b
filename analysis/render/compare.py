"""Two runs side by side in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Final

from rich.console import Console
from rich.text import Text

from ..comparison import ComparedFigure, ComparedTool, Comparison
from ..report import PooledReport, Report
from .table import name_table
from .words import DASH, counted, multiple, plain, ratio, seconds

_MAX_WIDTH: Final = 100
_MAX_TOOLS: Final = 12
_MAX_SOURCES: Final = 3
_WORDS: Final = {
    "b": "blocked fraction b",
    "b_busy": "b while busy",
    "b_evictable": "b evictable",
    "b_capped_60s": "b, waits capped 60 s",
    "agents_a_card": "agents a card",
    "generation_per_step_s": "generation a step",
    "wait_p50_s": "wait p50",
    "wait_p90_s": "wait p90",
    "wait_p99_s": "wait p99",
    "waits_shorter_than_round_trip": "waits under round trip",
    "wall_s": "agent time",
    "blocked_s": "blocked",
    "generating_s": "generating",
    "queued_s": "queued",
    "idle_gb_s": "idle cache",
    "agents": "agents",
    "tool_calls": "tool calls",
    "model_calls": "model calls",
}


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print two runs, A and B, and B less A; fits 80 columns."""
    width = min(console.width, _MAX_WIDTH)
    figures = [
        (_WORDS[each.figure], _value(each.unit, each.first), _value(each.unit, each.second), _difference(each))
        for each in comparison.figures
        if each.first is not None or each.second is not None
    ]
    tools = [_tool_row(tool) for tool in comparison.tools[:_MAX_TOOLS]]
    blocks = [
        _run("A", comparison.first, width),
        _run("B", comparison.second, width),
        Text(),
        Text(fill(_sentence(comparison), width), style="bold"),
        Text(),
        name_table(("", "A", "B", "B - A"), figures, width),
    ]
    if tools:
        head = ("tool", "calls A", "calls B", "p50 A", "p50 B", "total A", "total B", "B - A")
        blocks += [Text(), name_table(head, tools, width)]
    if len(comparison.tools) > _MAX_TOOLS:
        blocks.append(Text(f"and {len(comparison.tools) - _MAX_TOOLS:,} more tools", style="dim"))
    for block in blocks:
        console.print(block, width=width, highlight=False, markup=False)


def _run(letter: str, report: Report, width: int) -> Text:
    paths = [source.path for source in report.sources if source.spans]
    named = ", ".join(paths[:_MAX_SOURCES]) + (
        f" and {len(paths) - _MAX_SOURCES:,} more" if paths[_MAX_SOURCES:] else ""
    )
    facts = f"{seconds(report.pooled.wall_s)}, {counted(report.pooled.agents, 'agent')}"
    return Text(f"{letter}  {plain(named, width - len(facts) - 5)}  {facts}")


def _sentence(comparison: Comparison) -> str:
    first, second = comparison.first.pooled, comparison.second.pooled
    if first.b is None or second.b is None:
        return "Cannot compare b: it is unknown in one of the two."
    verb = "rises" if second.b > first.b else "falls" if second.b < first.b else "stays"
    sentence = f"b {verb} from {_b(first)} in A to {_b(second)} in B"
    if comparison.intervals_overlap is None:
        return f"{sentence}; with a single agent nobody can say how sure that is."
    if comparison.intervals_overlap:
        return f"{sentence}; the 95 % intervals overlap, so chance may explain it."
    return f"{sentence}; the 95 % intervals do not meet, so chance hardly explains it."


def _b(pooled: PooledReport) -> str:
    if pooled.b_interval_low is None:
        return ratio(pooled.b)
    return f"{ratio(pooled.b)} ({ratio(pooled.b_interval_low)} .. {ratio(pooled.b_interval_high)})"


def _value(unit: str, value: float | None) -> str:
    if value is None:
        return DASH
    match unit:
        case "share":
            return ratio(value)
        case "multiple":
            return multiple(value)
        case "s":
            return seconds(value)
        case "count":
            return f"{value:,.0f}"
        case _:
            return f"{value:,.1f} {unit}"


def _difference(figure: ComparedFigure) -> str:
    value = figure.difference
    if value is None:
        return DASH
    if figure.unit == "multiple":
        return f"{value:+.2f}"
    if figure.unit == "share":
        return f"{value:+.2f}"
    sign = "+" if value > 0 else "-" if value < 0 else ""
    change = f" ({value / figure.first:+.0%})" if figure.first and abs(value / figure.first) < 10 else ""
    return f"{sign}{_value(figure.unit, abs(value))}{change}"


def _tool_row(tool: ComparedTool) -> Sequence[str]:
    sign = "+" if tool.total_difference_s > 0 else "-" if tool.total_difference_s < 0 else ""
    return (
        tool.tool,
        f"{tool.first_calls:,}",
        f"{tool.second_calls:,}",
        seconds(tool.first_p50_s),
        seconds(tool.second_p50_s),
        seconds(tool.first_total_s),
        seconds(tool.second_total_s),
        f"{sign}{seconds(abs(tool.total_difference_s))}",
    )
