"""What the demo shows: a line per move of an agent's KV while it runs, and one table at the end."""

from __future__ import annotations

from typing import Final

from rich.table import Table
from rich.text import Text

from kvtrace.engine.records import EngineEvent, EventKind

from ..format import bytes_text, count_text, seconds_text
from .scene import SceneFacts

# Each kind of move as a glyph, a word and a colour: none of them carries the meaning alone.
_MOVES: Final[dict[EventKind, tuple[str, str, str]]] = {
    EventKind.PARK: ("→", "to host", "cyan"),
    EventKind.RESTORE: ("←", "to pool", "green"),
    EventKind.REVIVE: ("=", "still there", "green"),
    EventKind.RECLAIM: ("×", "handed over", "yellow"),
    EventKind.DROP: ("!", "dropped", "red"),
    EventKind.PREEMPT: ("↓", "preempted", "yellow"),
    EventKind.REFUSE: ("!", "refused", "red"),
}


def event_line(event: EngineEvent, since_s: float) -> Text:
    """One line: when, who, which way, how much, how long, and why."""
    glyph, word, style = _MOVES[event.kind]
    took = "" if event.duration_ms is None else f"{event.duration_ms:7.1f} ms"
    line = Text(f"{since_s:6.1f} s  {event.agent:<9}")
    line.append(f" {glyph} {word:<11}", style=style)
    line.append(f"{bytes_text(event.bytes):>9}  {took:>10}  {event.tool or '':<10}  ")
    line.append(event.why, style="dim")
    return line


def comparison(runs: list[SceneFacts]) -> Table:
    """The runs side by side, a column each; the first is the policy that was asked for."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("measured in this run")
    for run in runs:
        table.add_column(run.policy, justify="right")
    rows = (
        ("agents whose whole KV exists at once", lambda run: count_text(run.agents_whole)),
        ("copied to the host", lambda run: bytes_text(run.out_bytes)),
        ("copied back", lambda run: bytes_text(run.in_bytes)),
        ("tokens prefilled", lambda run: count_text(run.totals.prefilled_tokens)),
        ("… of these for the second time", lambda run: count_text(run.totals.reprefilled_tokens)),
        ("wall clock", lambda run: seconds_text(run.wall_s)),
    )
    for name, value in rows:
        table.add_row(name, *(value(run) for run in runs))
    return table


def verdict(asked: SceneFacts, recompute: SceneFacts) -> str:
    """One sentence: what rebuilding the caches cost against what this policy did instead."""
    again = recompute.totals.reprefilled_tokens
    extra = recompute.wall_s - asked.wall_s
    cost = f"{seconds_text(extra)} more wall clock" if extra > 0 else "no more wall clock on this machine"
    return (
        f"Rebuilding instead of copying prefilled {count_text(again)} tokens again and took {cost}; "
        f"{asked.policy} prefilled {count_text(asked.totals.reprefilled_tokens)} again."
    )
