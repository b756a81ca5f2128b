"""Lines of styled text, and what they are made of: cells of a fixed width, bars, sparklines, short numbers.

A line is a list of pieces ``(text, style)``; a style is a name of :data:`kvtrace.tui.theme.STYLES`, so that the same
lines serve a live screen, a pipe and a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, set_cell_size

Piece = tuple[str, str]
Line = list[Piece]

_SPARKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_SPARKS: Final = "_.:-=+*#"
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def width_of(line: Line) -> int:
    """Cells that a line takes."""
    return sum(cell_len(text) for text, _ in line)


def text_of(line: Line) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line)


def fit(line: Line, width: int) -> Line:
    """The line, cut off or padded to ``width`` cells."""
    fitted: Line = []
    room = width
    for text, style in line:
        cells = cell_len(text)
        if cells > room:
            fitted.append((set_cell_size(text, room), style))
            return fitted
        fitted.append((text, style))
        room -= cells
    if room:
        fitted.append((" " * room, ""))
    return fitted


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` and ``right`` at both ends of a line; where both do not fit, the left one goes on alone."""
    gap = width - width_of(left) - width_of(right)
    return [*left, (" " * gap, ""), *right] if gap >= 1 else fit(left, width)


def first_that_fits(choices: Sequence[Line], width: int) -> Line:
    """The first of several ways to say something that fits, else the last one cut off."""
    return next((line for line in choices if width_of(line) <= width), fit(choices[-1], width))


def cell(text: str, width: int, right: bool = False) -> str:
    """``text`` in exactly ``width`` cells; what is too long ends in ``…``, or in ``~`` where it is ASCII throughout."""
    cells = cell_len(text)
    if cells > width:
        mark = "~" if text.isascii() else "…"
        return set_cell_size(text, width - 1) + mark if width > 0 else ""
    gap = " " * (width - cells)
    return gap + text if right else text + gap


def bar(parts: Sequence[tuple[float, str, str]], total: float, width: int) -> Line:
    """Amounts of ``total`` side by side, as ``(amount, filling, style)``, in ``width`` cells.

    What is more than nothing gets a cell as long as there are cells, so that no small part hides.
    """
    if width <= 0:
        return []
    if total <= 0:
        return [(" " * width, "")]
    cells = _shares([max(0.0, amount) for amount, _, _ in parts], total, width)
    line: Line = [(filling * count, style) for (_, filling, style), count in zip(parts, cells, strict=True) if count]
    rest = width - sum(cells)
    return [*line, (" " * rest, "")] if rest else line


def _shares(amounts: Sequence[float], total: float, width: int) -> list[int]:
    """Cells for each amount: largest remainders, and one at least for what is there."""
    exact = [amount / total * width for amount in amounts]
    cells = [max(1 if amount > 0 else 0, int(share)) for amount, share in zip(amounts, exact, strict=True)]
    whole = min(width, round(sum(exact)))
    by_rest = sorted(range(len(cells)), key=lambda at: exact[at] - cells[at], reverse=True)
    while cells and sum(cells) < whole:
        cells[by_rest[0]] += 1
        by_rest.sort(key=lambda at: exact[at] - cells[at], reverse=True)
    while sum(cells) > width:
        cells[max(range(len(cells)), key=lambda at: cells[at])] -= 1
    return cells


def spark(values: Sequence[float], width: int, top: float, ascii_only: bool = False) -> str:
    """The newest ``width`` values as little columns, of which ``top`` is the full height; blanks where none is known."""
    marks = _ASCII_SPARKS if ascii_only else _SPARKS
    newest = values[-width:] if width > 0 else []
    drawn = []
    for value in newest:
        share = min(1.0, value / top) if top > 0 else 0.0
        drawn.append(marks[min(len(marks) - 1, int(share * len(marks)))])
    return " " * (width - len(drawn)) + "".join(drawn)


def amount(value: float | None) -> str:
    """``1_010_000_000`` → ``1.01G``, ``6900`` → ``6.9k``; ``-`` for nothing or unknown. At most five characters."""
    if not value:
        return "-"
    for unit_size, unit in _UNITS:
        # What would be rounded up to 1000 belongs to the next unit.
        if value >= unit_size * 0.9995:
            scaled = value / unit_size
            digits = 2 if scaled < 9.995 and unit_size >= 1e9 else 1 if scaled < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:.0f}"


def size(value: float) -> str:
    """``1_010_000_000`` → ``1.01GB``; ``0 B`` for less than one."""
    return f"{amount(value)}B" if value >= 1 else "0 B"


def gigabytes(value: float | None) -> str:
    """Bytes as GB with one digit, ``?`` where unknown; below 0.1 GB in MB, with its unit."""
    if value is None:
        return "?"
    return f"{value / 1e9:.1f}" if value >= 1e8 or value == 0 else f"{value / 1e6:.0f} MB"


def of_total(used: float, total: float | None = None) -> str:
    """``8.1/16.0 GB``, ``12/13 MB``: both in the unit that suits the larger one; without a total ``8.1 GB``."""
    most = max(used, total or 0)
    unit, name, digits = (1e9, "GB", 1) if most >= 1e8 or not most else (1e6, "MB", 0)
    return "/".join(f"{value / unit:.{digits}f}" for value in (used, total) if value is not None) + f" {name}"


def seconds(value: float) -> str:
    """``4.2s``, ``38.4s``, ``12m34s``, ``3h04m``, ``2d03h``: at most six characters."""
    if value < 99.95:
        return f"{value:.1f}s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d{hours % 24:02d}h"


def share(value: float | None) -> str:
    """``0.62``; ``-`` where unknown."""
    return "-" if value is None else f"{value:.2f}"
