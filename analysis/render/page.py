"""The parts of the HTML page that are words and numbers: cards, shares of the states, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..chart import State
from ..report import PooledReport, Report
from .gantt import SHAPES
from .words import DASH, agent_labels, multiple, percent, ratio, seconds

_MAX_ROWS: Final = 200
_TELLING: Final = 0.005


@dataclass(frozen=True, slots=True)
class Card:
    """One headline figure."""

    label: str
    figure: str
    detail: str


@dataclass(frozen=True, slots=True)
class StateShare:
    """One state's part of all wall clock; ``percent`` is its width."""

    word: str
    css: str
    percent: float
    share: str
    length: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text, the first cell a name; ``rest`` says what was left out."""

    id: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    rest: str


def cards(pooled: PooledReport) -> list[Card]:
    """The figures a reader looks for first."""
    windows, many = pooled.windows, pooled.capacity
    return [
        Card("blocked fraction b", ratio(pooled.b), _spread(pooled)),
        Card(
            "agents a card",
            multiple(pooled.decision.multiple),
            f"ideal {multiple(many.ideal)}, with queueing {multiple(many.queue_corrected)}, "
            f"swapping at each wait {multiple(many.swap_corrected)}",
        ),
        Card(
            "a wait, half of them under",
            seconds(windows.p50_s),
            f"p90 {seconds(windows.p90_s)}, p99 {seconds(windows.p99_s)}",
        ),
        Card(
            "generation a step",
            seconds(pooled.generation_per_step_s),
            f"b while busy {ratio(pooled.b_busy)}, evictable {ratio(pooled.b_evictable)}",
        ),
        *_idle_card(pooled),
    ]


def _idle_card(pooled: PooledReport) -> list[Card]:
    if pooled.idle_gb_s is None or pooled.context_tokens is None:
        return []
    known = "" if pooled.idle_known == 1 else f", known for {percent(pooled.idle_known)} of the waiting"
    return [Card("idle cache", f"{pooled.idle_gb_s:,.0f} GB·s", f"{pooled.context_tokens:,.0f} tokens a wait{known}")]


def _spread(pooled: PooledReport) -> str:
    spread = []
    if pooled.b_interval_low is not None:
        spread.append(f"{ratio(pooled.b_interval_low)} to {ratio(pooled.b_interval_high)} at 95 % over agents")
    if pooled.open_calls:
        spread.append(f"{ratio(pooled.b_low)} to {ratio(pooled.b_high)} with open calls")
    if pooled.b_capped_60s is not None and pooled.b is not None and pooled.b - pooled.b_capped_60s >= _TELLING:
        spread.append(f"{ratio(pooled.b_capped_60s)} with every wait capped at 60 s")
    return ", ".join(spread) or "of wall clock, the person taken out"


def state_shares(pooled: PooledReport) -> list[StateShare]:
    """The states that took any time, in the order of the terminal's bar."""
    lengths: tuple[tuple[State, float], ...] = (
        ("blocked_tool", pooled.blocked_s),
        ("generating", pooled.generating_state_s),
        ("blocked_human", pooled.human_s),
        ("queued", pooled.queued_s),
        ("overhead", pooled.overhead_s),
    )
    return [
        StateShare(
            SHAPES[state].word, SHAPES[state].css, round(100 * length_s / pooled.wall_s, 3),
            percent(length_s / pooled.wall_s), seconds(length_s),
        )
        for state, length_s in lengths
        if length_s > 0
    ]  # fmt: skip


def agent_table(report: Report) -> Table:
    """Agents by wall clock."""
    labels = agent_labels(report.agents)
    rows = [
        (
            labels[agent.agent],
            f"{ratio(agent.b_low)}–{ratio(agent.b_high)}" if agent.open_calls else ratio(agent.b),
            seconds(agent.wall_s),
            seconds(agent.blocked_s),
            seconds(agent.generating_s),
            seconds(agent.human_s),
            f"{agent.tool_calls:,}",
            f"{agent.model_calls:,}",
            labels.get(agent.parent, agent.parent) if agent.parent else DASH,
        )
        for agent in sorted(report.agents, key=lambda agent: -agent.wall_s)[:_MAX_ROWS]
    ]
    head = ("agent", "b", "wall", "blocked", "generating", "person", "tool calls", "model calls", "parent")
    return Table("agents", "Agents", head, rows, _rest(len(report.agents), "agents"))


def tool_table(report: Report) -> Table:
    """Tools by total time."""
    rows = [
        (
            tool.tool,
            f"{tool.calls:,} ({tool.open_calls:,} open)" if tool.open_calls else f"{tool.calls:,}",
            seconds(tool.total_s),
            percent(tool.share),
            seconds(tool.p50_s),
            seconds(tool.p90_s),
            seconds(tool.p99_s),
            percent(tool.shorter_than_round_trip),
            seconds(tool.freed_s),
            seconds(tool.swap_s),
            seconds(tool.recompute_s),
        )
        for tool in report.tools[:_MAX_ROWS]
    ]
    short = f"under {report.pooled.assumptions.round_trip_ms:g} ms"
    head = ("tool", "calls", "total", "share", "p50", "p90", "p99", short, "freed", "by swapping", "by recomputing")
    return Table("tools", "Tools", head, rows, _rest(len(report.tools), "tools"))


def published_table(report: Report) -> Table:
    """What others published, with the b measured here on top."""
    rows = [("this report", ratio(report.pooled.b), "measured")]
    for row in report.published:
        b = ratio(row.b_low) if row.b_low == row.b_high else f"{ratio(row.b_low)}–{ratio(row.b_high)}"
        rows.append((f"{row.workload} ({row.source})", b, row.caveat))
    return Table("published", "b elsewhere, published by others", ("workload", "b", "caveat"), rows, "")


def _rest(rows: int, noun: str) -> str:
    return f"and {rows - _MAX_ROWS:,} more {noun} (all of them with --csv {noun})" if rows > _MAX_ROWS else ""
