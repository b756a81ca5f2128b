"""From lines to what Textual draws."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from ..top.lines import Line, fit


@lru_cache(maxsize=1024)
def _style(base: Style, text: str, over: str) -> Style:
    return base + Style.parse(text) + Style.parse(over) if over else base + Style.parse(text)


def strip_of(line: Line, width: int, base: Style, palette: Mapping[str, str], over: str = "") -> Strip:
    """A line in exactly ``width`` cells on the widget's own style; ``over`` names a style laid over all of it."""
    laid = palette[over] if over else ""
    segments = [Segment(text, _style(base, palette[style], laid)) for text, style in fit(line, width)]
    return Strip(segments, width)
