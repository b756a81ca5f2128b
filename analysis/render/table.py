"""A table of names and numbers in which a long name gives way, never a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.table import Table

from .words import plain

MIN_NAME: Final = 8
MAX_NAME: Final = 40


def name_table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, max_name: int = MAX_NAME) -> Table:
    """Names to the left, cut in the middle where ``width`` demands it; every other column to the right and whole."""
    numbers = [max(len(row[column]) for row in (header, *rows)) for column in range(1, len(header))]
    room = min(max_name, max(MIN_NAME, width - sum(numbers) - len(numbers)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(header[0], no_wrap=True)
    for title in header[1:]:
        table.add_column(title, justify="right", no_wrap=True)
    for name, *others in rows:
        table.add_row(plain(name, room), *others)
    return table
