"""What the demo shows: a line per move of an agent's KV while it runs, and one table at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rich.table import Table
from rich.text import Text

from kvtrace.engine.records import EngineEvent, EventKind

from ..format import bytes_text, count_text, counted, seconds_text
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


class EventLines:
    """Turns events into lines. Losses come block by block, so an agent's are summed until something else happens to it.

    ``now_s`` gives the seconds since the run began. Called in the engine's thread; only that thread may call it.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._losses: dict[str, EngineEvent] = {}

    def lines(self, event: EngineEvent) -> list[Text]:
        """The lines to print now that ``event`` happened."""
        held = self._losses.pop(event.agent, None)
        if event.kind in (EventKind.RECLAIM, EventKind.DROP):
            if held is not None and held.kind is event.kind:
                event = replace(event, bytes=held.bytes + event.bytes)
                held = None
            self._losses[event.agent] = event
            return [] if held is None else [self._line(held)]
        return [self._line(one) for one in (held, event) if one is not None]

    def _line(self, event: EngineEvent) -> Text:
        """When, who, which way, how much, how long, for which tool."""
        glyph, word, style = _MOVES[event.kind]
        took = "" if event.duration_ms is None else f"{event.duration_ms:.1f} ms"
        line = Text(f"{self._now_s():6.1f} s  {event.agent:<9}", no_wrap=True, overflow="ellipsis")
        line.append(f" {glyph} {word:<11}", style=style)
        line.append(f"{bytes_text(event.bytes):>9} {took:>9}  {event.tool or '':<10}")
        return line


_ROWS: Final[tuple[tuple[str, Callable[[SceneFacts], str]], ...]] = (
    ("agents whose whole KV exists, over time", lambda run: f"{run.agents_whole_mean:.1f}"),
    ("… and at most", lambda run: count_text(run.agents_whole)),
    ("copied to the host", lambda run: bytes_text(run.out_bytes)),
    ("copied back", lambda run: bytes_text(run.in_bytes)),
    ("tokens prefilled", lambda run: count_text(run.totals.prefilled_tokens)),
    ("… of these for the second time", lambda run: count_text(run.totals.reprefilled_tokens)),
    ("… which took, of all compute", lambda run: seconds_text(run.reprefill_s)),
    ("wall clock", lambda run: seconds_text(run.wall_s)),
)


def comparison(runs: list[SceneFacts]) -> Table:
    """The runs side by side, a column each; the first is the policy that was asked for."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("measured in this run")
    for run in runs:
        table.add_column(run.policy, justify="right")
    for name, value in _ROWS:
        table.add_row(name, *(value(run) for run in runs))
    return table


def verdict(asked: SceneFacts, recompute: SceneFacts) -> str:
    """One sentence: what rebuilding the caches cost against what this policy did instead."""
    moved = asked.out_bytes + asked.in_bytes
    return (
        f"Rebuilding the caches prefilled {counted(recompute.totals.reprefilled_tokens, 'token')} again, "
        f"{seconds_text(recompute.reprefill_s)} of compute; {asked.policy} copied {bytes_text(moved)} instead and "
        f"prefilled {count_text(asked.totals.reprefilled_tokens)} again."
    )
