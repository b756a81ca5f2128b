"""A stacked bar of shares, readable with and without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from .words import percent


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: its glyph tells it apart where its style (a rich colour) is not shown."""

    label: str
    share: float
    glyph: str
    style: str


def stacked_bar(parts: Sequence[Part], width: int) -> Text:
    """Cells of each part, ``width`` in all where the shares add up to 1."""
    bar = Text()
    for part, cells in zip(parts, cells_of([part.share for part in parts], width), strict=True):
        bar.append(part.glyph * cells, style=part.style)
    return bar


def legend(parts: Sequence[Part]) -> Text:
    """Glyph, label and per cent of every part that is there."""
    text = Text()
    for part in parts:
        if part.share > 0:
            text.append("  " if text else "")
            text.append(part.glyph, style=part.style)
            text.append(f" {part.label} {percent(part.share)}".replace(" %", "\u00a0%"))
    return text


def cells_of(shares: Sequence[float], width: int) -> list[int]:
    """Whole cells for shares, by largest remainder, so that no rounding is lost.

    >>> cells_of([0.62, 0.29, 0.04, 0.05], 10)
    [6, 3, 0, 1]
    """
    exact = [share * width for share in shares]
    cells = [int(value) for value in exact]
    left = min(width, round(sum(exact))) - sum(cells)
    for index in sorted(range(len(exact)), key=lambda i: cells[i] - exact[i])[:left]:
        cells[index] += 1
    return cells
