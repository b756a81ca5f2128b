"""The screen as text, once: for pipes, files and ``kvtrace ps``."""

from __future__ import annotations

from ..feed.contract import Sample
from . import memory, table
from .history import History
from .lines import Line
from .log import log_lines
from .view import Layout, View

_EVENTS = 4


def once_lines(sample: Sample, history: History, view: View, width: int, *, whole: bool) -> list[Line]:
    """Lines of one sample, ``width`` cells at most; ``whole``: with memory and events, not only the table."""
    layout = Layout.WIDE if width >= 104 else Layout.MEDIUM if width >= 72 else Layout.COMPACT
    lines: list[Line] = []
    if whole:
        lines += memory.panels(sample, history, width, layout, view.ascii_only)
    lines.append(memory.head(sample, history, width, view.ascii_only))
    lines += agent_lines(sample, history, view, width, layout)
    if whole and (events := log_lines(history, _EVENTS, width, view.ascii_only)):
        lines += [[], *events]
    return lines


def agent_lines(sample: Sample, history: History, view: View, width: int, layout: Layout) -> list[Line]:
    """The table: its heading and a line an agent. Without a past there is no strip of it."""
    rows = table.rows(sample, history, view)
    longest = max((len(row.agent.agent) for row in rows), default=0)
    columns = table.columns_for(width, layout, sample.knows_memory, longest)
    if not history.has_past():
        columns = [column for column in columns if column.sort is not None]
    drawing = table.Drawing(columns, history, sample.snapshot.time_unix_ns, layout, view.ascii_only)
    return [table.heading(columns, view, width), *(table.row_line(row, drawing, False) for row in rows)]
