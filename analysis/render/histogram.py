"""How waits spread over a logarithmic scale, in three lines of text: bars, the scale, the round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from ..report import WindowBinReport
from .axis import LogScale
from .strip import decade_label
from .words import seconds

_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_BINS_A_DECADE: Final = 4


def histogram_lines(bins: Sequence[WindowBinReport], round_trip_s: float, width: int, indent: int) -> list[Text]:
    """Bars of how many waits and of how much waiting there is at each length, above a scale with the round trip marked.

    Each row is scaled to its own tallest bar; what is there at all shows. Empty without bins.
    """
    if not bins:
        return []
    scale = LogScale(min(bins[0].from_s, round_trip_s or bins[0].from_s), max(bins[-1].to_s, round_trip_s))
    decades = scale.high - scale.low
    cells = max(1, (width - indent - 2) // (decades * _BINS_A_DECADE))
    columns = decades * _BINS_A_DECADE * cells
    at = min(columns - 1, round(scale.percent(round_trip_s) / 100 * columns))
    return [
        _row("how many", indent, _bars([each.windows for each in bins], bins, scale, cells), "cyan"),
        _row("how long", indent, _bars([each.blocked_s for each in bins], bins, scale, cells), "red"),
        _row(f"▲ = {seconds(round_trip_s)}", indent, _ticks(scale, columns, at), "dim"),
        _row("", indent, _labels(scale, columns), "dim"),
    ]


def _row(label: str, indent: int, text: str, style: str) -> Text:
    return Text.assemble(f"{label:<{indent}}", (text.rstrip(), style))


def _bars(values: Sequence[float], bins: Sequence[WindowBinReport], scale: LogScale, cells: int) -> str:
    columns = (scale.high - scale.low) * _BINS_A_DECADE
    glyphs = [_BLOCKS[0]] * columns
    for each, value in zip(bins, values, strict=True):
        column = round(scale.percent(each.from_s) / 100 * columns)
        glyphs[column] = _BLOCKS[max(1, round(value / max(values) * (len(_BLOCKS) - 1)))]
    return "".join(glyph * cells for glyph in glyphs)


def _ticks(scale: LogScale, columns: int, at: int) -> str:
    ticks = ["─"] * (columns + 1)
    for decade in scale.decades_s():
        ticks[round(scale.percent(decade) / 100 * columns)] = "┴"
    ticks[at] = "▲"
    return "".join(ticks)


def _labels(scale: LogScale, columns: int) -> str:
    """Decades under their ticks, as many as fit."""
    line = ""
    for decade in scale.decades_s():
        at, label = round(scale.percent(decade) / 100 * columns), decade_label(decade)
        start = max(0, min(columns + 1 - len(label), at - len(label) // 2))
        if start > len(line) or not line:
            line = f"{line:<{start}}{label}"
    return line
