"""The table of agents: which rows in which order, which columns fit, and each row as a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvtrace.engine.records import AgentRecord, AgentState

from ..feed.contract import Sample
from .history import History
from .lines import Line, amount, cell, fit, seconds, share
from .looks import LOOKS, WAITS, Detail, Shown, fill, glyph, shown, wording
from .view import Layout, Sort, View

STRIP_S: Final = 60
_NS: Final = 1_000_000_000
_LEAST_STRIP: Final = 10
_MOST_STRIP: Final = 60
_LEAST_NAME: Final = 8
_MOST_NAME: Final = 28


@dataclass(frozen=True, slots=True)
class Row:
    """One agent as the table has it."""

    agent: AgentRecord
    state: Shown
    detail: Detail


def rows(sample: Sample, history: History, view: View) -> list[Row]:
    """Agents of a sample that pass the filter, in the chosen order."""
    agents = sample.snapshot.agents
    queue = sorted((agent for agent in agents if agent.state is AgentState.QUEUED), key=lambda one: -one.since_s)
    places = {agent.agent: place for place, agent in enumerate(queue, 1)}
    made = []
    for agent in agents:
        state = shown(agent.state, sample.knows_memory)
        row = Row(agent, state, Detail(_restored(agent, state, history), places.get(agent.agent)))
        if passes(row, view.filter):
            made.append(row)
    return sort_rows(made, view)


def passes(row: Row, wanted: str) -> bool:
    """Whether every word of the filter is found in the agent's name, its state or its tool."""
    if not wanted:
        return True
    text = f"{row.agent.agent} {LOOKS[row.state].word} {row.agent.tool or ''}".lower()
    return all(word in text for word in wanted.lower().split())


def sort_rows(made: Iterable[Row], view: View) -> list[Row]:
    """Rows by the chosen column, equal ones by name. Numbers are wanted largest first, names and states from the top."""
    by_name = sorted(made, key=lambda row: _natural(row.agent.agent))
    key = _KEYS[view.sort]
    largest_first = view.sort not in (Sort.AGENT, Sort.STATE)
    return sorted(by_name, key=key, reverse=largest_first is not view.reverse)


def keep_order(made: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """Rows in the order they had before, new ones at the end: nothing jumps under a choosing hand."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(made, key=lambda row: places.get(row.agent.agent, len(places)))


def _restored(agent: AgentRecord, state: Shown, history: History) -> float | None:
    whole = agent.kept_tokens * (history.token_bytes or 0)
    return min(1.0, agent.vram_bytes / whole) if state is Shown.RESTORING and whole > 0 else None


def _natural(name: str) -> list[tuple[int, int, str]]:
    """``docs-10`` comes after ``docs-9``, and numbers come before letters."""
    parts = re.split(r"(\d{1,9})", name.lower())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part]


_STATES: Final = list(Shown)
_KEYS: Final[dict[Sort, Callable[[Row], Any]]] = {
    Sort.AGENT: lambda row: _natural(row.agent.agent),
    Sort.STATE: lambda row: _STATES.index(row.state),
    Sort.SINCE: lambda row: row.agent.since_s,
    Sort.CONTEXT: lambda row: row.agent.context_tokens,
    Sort.VRAM: lambda row: row.agent.vram_bytes,
    Sort.HOST: lambda row: row.agent.host_bytes,
    Sort.RATE: lambda row: row.agent.tokens_per_s or 0.0,
    Sort.B: lambda row: -1.0 if row.agent.b is None else row.agent.b,
    Sort.PARKS: lambda row: row.agent.parks,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what it sorts by, its heading, its width, and how dispensable it is (the largest goes first)."""

    sort: Sort | None
    title: str
    width: int
    right: bool
    spare: int
    memory: bool = False


_COLUMNS: Final = (
    Column(Sort.AGENT, "AGENT", _LEAST_NAME, False, 0),
    Column(Sort.STATE, "STATE", 19, False, 0),
    Column(Sort.SINCE, "FOR", 6, True, 0),
    Column(Sort.CONTEXT, "CTX", 5, True, 2),
    Column(Sort.VRAM, "VRAM", 6, True, 4, memory=True),
    Column(Sort.HOST, "HOST", 6, True, 5, memory=True),
    Column(Sort.RATE, "TOK/S", 6, True, 6, memory=True),
    Column(Sort.B, "b", 5, True, 1),
    Column(Sort.PARKS, "PARKS", 5, True, 7, memory=True),
    Column(None, "LAST 60 s", _LEAST_STRIP, False, 8),
)
_GAP: Final = 1
_SHORT_STATE: Final = 14
_MOST_STATE: Final = 24


def columns_for(width: int, layout: Layout, knows_memory: bool, longest_name: int = _LEAST_NAME) -> list[Column]:
    """Columns that fit into ``width`` cells: the most dispensable leave first, names and the strip share what is left."""
    chosen = [column for column in _COLUMNS if knows_memory or not column.memory]
    if layout is Layout.COMPACT:
        chosen = [_resized(each, _SHORT_STATE) if each.sort is Sort.STATE else each for each in chosen]
        chosen = [each for each in chosen if each.spare <= 4]
    while _total(chosen) > width and (spare := max(each.spare for each in chosen)):
        chosen = [each for each in chosen if each.spare != spare]
    left = width - _total(chosen)
    grown = []
    for each in chosen:
        most = _most(each, longest_name)
        more = max(0, min(left, most - each.width))
        left -= more
        grown.append(_resized(each, each.width + more))
    return grown


def heading(columns: Sequence[Column], view: View, width: int) -> Line:
    """The line above the table, ``width`` cells long; the column it is sorted by bears an arrow."""
    line: Line = [(" ", "heading")]
    for column in columns:
        title = column.title
        if column.sort is view.sort:
            down = (column.sort not in (Sort.AGENT, Sort.STATE)) is not view.reverse
            mark = ("v" if down else "^") if view.ascii_only else ("▼" if down else "▲")
            title = f"{title[: column.width - 1]}{mark}"
        style = "heading.sorted" if column.sort is view.sort else "heading"
        line += [(cell(title, column.width, column.right), style), (" " * _GAP, "heading")]
    return fit([*line, (" " * width, "heading")], width)


def column_at(columns: Sequence[Column], x: int) -> Column | None:
    """The column that covers cell ``x`` of the heading."""
    at = 1
    for column in columns:
        if at <= x < at + column.width + _GAP:
            return column
        at += column.width + _GAP
    return None


@dataclass(frozen=True, slots=True)
class Drawing:
    """What rows are drawn with: columns, the past at ``at_ns``, and how."""

    columns: Sequence[Column]
    history: History
    at_ns: int
    layout: Layout
    ascii_only: bool


def row_line(row: Row, drawing: Drawing, chosen: bool) -> Line:
    """One agent's line; a mark in front says that it is the chosen one."""
    line: Line = [((">" if drawing.ascii_only else "▌") if chosen else " ", "cursor")]
    for column in drawing.columns:
        if column.sort is None:
            line += strip(row.agent.agent, drawing, column.width)
        elif column.sort is Sort.STATE:
            words = wording(row.state, row.agent, row.detail, drawing.layout is Layout.COMPACT)
            text = f"{glyph(row.state, drawing.ascii_only)} {words}"
            line.append((cell(text, column.width), LOOKS[row.state].style))
        else:
            text, style = _CELLS[column.sort](row)
            line.append((cell(text, column.width, column.right), style))
        line.append((" " * _GAP, ""))
    return line


def strip(agent: str, drawing: Drawing, width: int, span_s: int = STRIP_S) -> Line:
    """The last ``span_s`` seconds of an agent, the newest on the right: each cell shows what it did longest."""
    track = drawing.history.tracks.get(agent)
    if track is None or width <= 0:
        return [(" " * max(0, width), "")]
    start_ns = drawing.at_ns - span_s * _NS
    spells = [(begin_ns, end_ns, spell.state) for begin_ns, end_ns, spell in track.between(start_ns, drawing.at_ns)]
    return strip_of(spells, start_ns, drawing.at_ns, width, drawing.ascii_only)


def strip_of(
    spells: Iterable[tuple[int, int, Shown | None]], start_ns: int, stop_ns: int, width: int, ascii_only: bool
) -> Line:
    """Spells of an interval as ``width`` cells of equal time; a blank where nothing is known."""
    lengths: list[dict[Shown, float]] = [{} for _ in range(width)]
    per_cell = (stop_ns - start_ns) / width
    for begin_ns, end_ns, state in spells:
        if state is None:
            continue
        first, last = (begin_ns - start_ns) / per_cell, (end_ns - start_ns) / per_cell
        for at in range(max(0, int(first)), min(width, int(last) + 1)):
            covered = min(last, at + 1) - max(first, at)
            if covered > 0:
                lengths[at][state] = lengths[at].get(state, 0.0) + covered
    line: Line = []
    for cell_lengths in lengths:
        if not cell_lengths:
            piece = (" ", "")
        else:
            longest = max(cell_lengths, key=lambda each: cell_lengths[each])
            piece = (fill(longest, ascii_only), LOOKS[longest].style)
        if line and line[-1][1] == piece[1]:
            line[-1] = (line[-1][0] + piece[0], piece[1])
        else:
            line.append(piece)
    return line


def _most(column: Column, longest_name: int) -> int:
    """How wide a column may become where there is room."""
    if column.sort is Sort.AGENT:
        return min(_MOST_NAME, max(_LEAST_NAME, longest_name))
    if column.sort is Sort.STATE:
        return _MOST_STATE
    return column.width if column.sort is not None else _MOST_STRIP


def _resized(column: Column, width: int) -> Column:
    return Column(column.sort, column.title, width, column.right, column.spare, column.memory)


def _total(columns: Sequence[Column]) -> int:
    return 1 + sum(column.width + _GAP for column in columns) - _GAP


def _b_style(row: Row) -> str:
    return "strong" if row.agent.b is not None and row.agent.b >= 0.5 else ""


_CELLS: Final[dict[Sort, Callable[[Row], tuple[str, str]]]] = {
    Sort.AGENT: lambda row: (row.agent.agent, "name"),
    Sort.SINCE: lambda row: (seconds(row.agent.since_s), LOOKS[row.state].style if row.state in WAITS else ""),
    Sort.CONTEXT: lambda row: (amount(row.agent.context_tokens), ""),
    Sort.VRAM: lambda row: (amount(row.agent.vram_bytes), "resident" if row.state is Shown.RESIDENT else ""),
    Sort.HOST: lambda row: (amount(row.agent.host_bytes), ""),
    Sort.RATE: lambda row: ("-" if row.agent.tokens_per_s is None else f"{row.agent.tokens_per_s:.1f}", ""),
    Sort.B: lambda row: (share(row.agent.b), _b_style(row)),
    Sort.PARKS: lambda row: (str(row.agent.parks) if row.agent.parks else "-", ""),
}
