"""The report in a terminal: b and the decision first, then where the time went, tools, agents, caveats."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from ..report import AgentReport, PooledReport, Report
from .bar import Part, legend, stacked_bar
from .caveats import caveats, short_waits
from .histogram import histogram_lines
from .published import published_lines
from .table import name_table
from .words import DASH, agent_labels, counted, multiple, percent, plain, ratio, seconds

_MAX_WIDTH: Final = 100
_MAX_ROWS: Final = 12
_MAX_CAVEATS: Final = 12
_PARENT_WIDTH: Final = 10
_LABEL_WIDTH: Final = 12
_VERDICT_STYLE: Final = {"pays": "bold green", "marginal": "bold yellow", "no": "bold red", "unknown": "bold yellow"}


def render_terminal(report: Report, console: Console) -> None:
    """Print a report; fits 80 columns, and colour carries nothing that the text does not."""
    width = min(console.width, _MAX_WIDTH)
    for block in (
        _title(report.pooled),
        _headline(report.pooled),
        _decision(report.pooled),
        Text(),
        *_state_bar(report.pooled, width),
        Text(),
        *_waits(report, width),
        Text(),
        *_tool_table(report, width),
        Text(),
        *_agent_table(report.agents, width),
        Text(),
        *published_lines(report.published, report.pooled.b, width),
        Text(),
        *_caveat_lines(report, width),
        _assumed(report.pooled),
    ):
        console.print(block, width=width, highlight=False, markup=False)


def _title(pooled: PooledReport) -> Text:
    facts = (
        f"{seconds(pooled.wall_s)} of agent time",
        counted(pooled.agents, "agent"),
        counted(pooled.tool_calls, "tool call"),
        counted(pooled.model_calls, "model call"),
    )
    return Text(" · ".join(facts), style="dim")


def _headline(pooled: PooledReport) -> Text:
    text = Text.assemble(
        "blocked fraction b  ",
        (ratio(pooled.b), "bold"),
        "   ",
        (f"{multiple(pooled.decision.multiple)} agents a card", "bold"),
    )
    spread = []
    if pooled.open_calls:
        spread.append(f"{ratio(pooled.b_low)} .. {ratio(pooled.b_high)} with open calls")
    if pooled.b_interval_low is not None:
        spread.append(f"{ratio(pooled.b_interval_low)} .. {ratio(pooled.b_interval_high)} at 95 % over agents")
    if spread:
        text.append(f"\n{', '.join(spread)}", style="dim")
    return text


def _decision(pooled: PooledReport) -> Text:
    return Text(pooled.decision.sentence, style=_VERDICT_STYLE[pooled.decision.verdict])


def _state_bar(pooled: PooledReport, width: int) -> list[RenderableType]:
    if not pooled.wall_s:
        return [Text("nothing in these spans took any time")]
    wall_s = pooled.wall_s
    parts = (
        Part("blocked", pooled.blocked_s / wall_s, "█", "red"),
        Part("generating", pooled.generating_state_s / wall_s, "▓", "green"),
        Part("human", pooled.human_s / wall_s, "▒", "blue"),
        Part("queued", pooled.queued_s / wall_s, "░", "yellow"),
        Part("overhead", pooled.overhead_s / wall_s, "·", "dim"),
    )
    return [stacked_bar(parts, width), legend(parts)]


def _waits(report: Report, width: int) -> list[RenderableType]:
    pooled, windows, many = report.pooled, report.pooled.windows, report.pooled.capacity
    rows = [
        ("waits", f"p50 {seconds(windows.p50_s)}   p90 {seconds(windows.p90_s)}   p99 {seconds(windows.p99_s)}"),
        ("", short_waits(report)),
        ("generation", f"{seconds(pooled.generation_per_step_s)} a step"),
        (
            "agents",
            (
                f"{multiple(many.ideal)} ideal   {multiple(many.queue_corrected)} with queueing   "
                f"{multiple(many.swap_corrected)} swapping at each wait"
            ),
        ),
        ("idle cache", _idle_cache(pooled)),
        (
            "b",
            (
                f"wall {ratio(pooled.b_wall)}   busy {ratio(pooled.b_busy)}   idle {ratio(pooled.b_idle)}   "
                f"evictable {ratio(pooled.b_evictable)}"
            ),
        ),
        ("", f"{ratio(pooled.b_capped_60s)} with waits capped at 60 s, as approvals may hide in long ones"),
    ]
    if not windows.count:
        rows = rows[2:]
    lines = [Text(f"{label:<{_LABEL_WIDTH}}{words}") for label, words in rows]
    round_trip_s = pooled.assumptions.round_trip_ms / 1e3
    lines[2:2] = histogram_lines(windows.histogram, round_trip_s, width, _LABEL_WIDTH)
    return [*lines]


def _idle_cache(pooled: PooledReport) -> str:
    if pooled.idle_gb_s is None or pooled.context_tokens is None:
        return "unknown: no model call tells its tokens"
    known = "" if pooled.idle_known == 1 else f" in the {percent(pooled.idle_known)} of the waiting where it is known"
    return f"{pooled.idle_gb_s:,.1f} GB·s at {pooled.context_tokens:,.0f} tokens a wait{known}"


def _tool_table(report: Report, width: int) -> list[RenderableType]:
    if not report.tools:
        return [Text("no tool was called")]
    short = f"<{report.pooled.assumptions.round_trip_ms:g} ms"
    header = ("tool", "calls", "total", "share", "p50", "p90", "p99", short)
    rows = [
        (
            tool.tool,
            _calls(tool.calls, tool.open_calls),
            seconds(tool.total_s),
            percent(tool.share),
            seconds(tool.p50_s),
            seconds(tool.p90_s),
            seconds(tool.p99_s),
            percent(tool.shorter_than_round_trip),
        )
        for tool in report.tools[:_MAX_ROWS]
    ]
    return [name_table(header, rows, width), *_rest(len(report.tools), "tools")]


def _agent_table(agents: Sequence[AgentReport], width: int) -> list[RenderableType]:
    labels = agent_labels(agents)
    nested = any(agent.parent for agent in agents)
    header = ("agent", "b", "wall", "blocked", "generating", "calls", "parent")
    rows = [
        (
            labels[agent.agent],
            _b_of(agent),
            seconds(agent.wall_s),
            seconds(agent.blocked_s),
            seconds(agent.generating_s),
            _calls(agent.tool_calls, agent.open_calls),
            plain(labels.get(agent.parent, agent.parent), _PARENT_WIDTH) if agent.parent else DASH,
        )
        for agent in sorted(agents, key=lambda agent: -agent.wall_s)[:_MAX_ROWS]
    ]
    columns = len(header) if nested else len(header) - 1
    return [
        name_table(header[:columns], [row[:columns] for row in rows], width),
        *_rest(len(agents), "agents"),
    ]


def _calls(calls: int, open_calls: int) -> str:
    return f"{calls:,} ({open_calls:,} open)" if open_calls else f"{calls:,}"


def _b_of(agent: AgentReport) -> str:
    return f"{ratio(agent.b_low)}..{ratio(agent.b_high)}" if agent.open_calls else ratio(agent.b)


def _rest(rows: int, noun: str) -> list[RenderableType]:
    return [Text(f"and {rows - _MAX_ROWS:,} more {noun}", style="dim")] if rows > _MAX_ROWS else []


def _caveat_lines(report: Report, width: int) -> list[RenderableType]:
    sentences = caveats(report)
    shown = sentences[:_MAX_CAVEATS]
    if len(sentences) > len(shown):
        shown.append(f"{len(sentences) - len(shown)} more (all of it with --json)")
    return [Text(fill(sentence, width, initial_indent="- ", subsequent_indent="  ")) for sentence in shown]


def _assumed(pooled: PooledReport) -> Text:
    assumed = pooled.assumptions
    slots = counted(assumed.slots, "slot")
    return Text(
        f"assumed, not measured: round trip {assumed.round_trip_ms:g} ms, {assumed.bytes_per_token:,} B a token, {slots}",
        style="dim",
    )
