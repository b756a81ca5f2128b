"""What others published, beside the b measured here, told apart from it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from ..published import PublishedRow
from .table import name_table
from .words import ratio


def published_lines(rows: Sequence[PublishedRow], b: float | None, width: int) -> list[RenderableType]:
    """A short table of published b, with the measured one on top; caveats are in the JSON."""
    heading = Text("published by others, not measured here (caveats with --json)", style="dim")
    cells = [(f"{row.workload} ({row.source.split(',')[0]})", _span(row)) for row in rows]
    return [heading, name_table(("b elsewhere", "b"), [("this report", ratio(b)), *cells], width, max_name=64)]


def _span(row: PublishedRow) -> str:
    return ratio(row.b_low) if row.b_low == row.b_high else f"{ratio(row.b_low)}..{ratio(row.b_high)}"
