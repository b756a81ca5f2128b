"""The event log: who, how many bytes, how long, why; and what a copy back spared."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Final

from kvtrace.engine.records import EngineEvent, EventKind

from .history import History
from .lines import Line, cell, first_that_fits, fit, seconds, size

# Each kind as a glyph, its ASCII stand-in, a word and a style.
_KINDS: Final[dict[EventKind, tuple[str, str, str, str]]] = {
    EventKind.PARK: ("→", ">", "to host", "parking"),
    EventKind.RECLAIM: ("×", "x", "handed over", "waiting"),
    EventKind.DROP: ("!", "!", "dropped", "alarm"),
    EventKind.RESTORE: ("←", "<", "back", "restoring"),
    EventKind.REVIVE: ("=", "=", "still there", "generating"),
    EventKind.PREEMPT: ("↓", "v", "preempted", "waiting"),
    EventKind.REFUSE: ("!", "!", "refused", "alarm"),
}
_SLACK_NS: Final = 1_000_000_000
_SPARES: Final = frozenset({EventKind.RESTORE, EventKind.REVIVE})


def event_line(event: EngineEvent, history: History, width: int, ascii_only: bool, zone: tzinfo | None = None) -> Line:
    """One event; without room, what is said last is left out first."""
    mark, plain, word, style = _KINDS[event.kind]
    took = "" if event.duration_ms is None else f"{event.duration_ms:.0f} ms"
    who: Line = [(f"{_clock(event.time_unix_ns, zone)} ", "dim"), (cell(event.agent, 14), "name")]
    what: Line = [
        (f" {plain if ascii_only else mark} {word:<11} ", style),
        (f"{size(event.bytes) if event.bytes else '-':>7} {took:>7}", ""),
    ]
    spared = history.recompute_s(event.bytes) if event.kind in _SPARES else None
    saved: Line = (
        [(f"  saves {spared:.1f} s of prefill", "generating")] if spared is not None and spared >= 0.05 else []
    )
    why: Line = [(f"  {event.why}", "dim")] if event.why else []
    return first_that_fits(
        [[*who, *what, *why, *saved], [*who, *what, *saved], [*who, *what], [*who, *what[:1]]], width
    )


def log_lines(
    history: History,
    height: int,
    width: int,
    ascii_only: bool,
    zone: tzinfo | None = None,
    *,
    agent: str | None = None,
    until_ns: int | None = None,
) -> list[Line]:
    """The newest ``height`` events, of one agent alone where it is named; the newest first.

    ``until_ns``: leave out what happened later than a second after that instant, since what is shown is from then.
    """
    latest_ns = None if until_ns is None else until_ns + _SLACK_NS
    if history.latest is not None and not history.latest.knows_memory:
        return _waits(history, height, width, zone, latest_ns)
    lines: list[Line] = []
    for event in reversed(history.events):
        if len(lines) >= height:
            break
        if agent in (None, event.agent) and (latest_ns is None or event.time_unix_ns <= latest_ns):
            lines.append(event_line(event, history, width, ascii_only, zone))
    return lines


def _waits(history: History, height: int, width: int, zone: tzinfo | None, latest_ns: int | None) -> list[Line]:
    """Without an engine no KV moves: the newest waits that ended."""
    lines: list[Line] = []
    for wait in reversed(history.ended):
        if len(lines) >= height:
            break
        if latest_ns is None or wait.at_ns <= latest_ns:
            who: Line = [(f"{_clock(wait.at_ns, zone)} ", "dim"), (cell(wait.agent, 14), "name")]
            what: Line = [(f" waited {seconds(wait.lasted_s):>6} for {wait.tool or 'a tool'}", "waiting")]
            lines.append(fit([*who, *what], width))
    return lines


def _clock(at_ns: int, zone: tzinfo | None) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, tz=zone).strftime("%H:%M:%S")
