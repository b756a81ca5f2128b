"""The help: keys as they are bound now, what states and columns mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .keys import KEYS, key_text
from .lines import Line
from .looks import LOOKS, Shown, fill, glyph

_COLUMNS: Final = (
    ("FOR", "time in this state; a wait counts as one, wherever its KV goes"),
    ("CTX", "tokens of context"),
    ("VRAM, HOST", "bytes of its KV in each; shared blocks count for each holder"),
    ("TOK/S", "tokens it generates a second"),
    ("b", "share of its life waiting for tools, without a person's time"),
    ("PARKS", "times its KV was parked"),
)


def help_lines(keys: Mapping[str, str], ascii_only: bool) -> list[Line]:
    """Lines of the help, for a box of 80 cells."""
    lines: list[Line] = [[("KEYS", "label"), ("   mouse: click a row or a heading, twice a row to open it", "dim")]]
    for key in KEYS:
        bound = [key_text(each) for each in keys.get(key.name, "").split(",") if each]
        lines.append([(f"{' '.join(bound) or 'none':>12}  ", "strong"), (key.help, "")])
    lines.append([(f"{'ctrl+c':>12}  ", "strong"), ("quit, always", "")])
    lines += [[], [("STATES", "label")]]
    for state in Shown:
        look = LOOKS[state]
        mark = f"{glyph(state, ascii_only)} {fill(state, ascii_only) * 2}"
        lines.append([(f"{mark:>6} {look.word:<12}", look.style), (look.means, "")])
    lines += [[], [("COLUMNS", "label")]]
    lines += [[(f"{name:>12}  ", "strong"), (means, "")] for name, means in _COLUMNS]
    lines += [[], [("Above the table: b of all agents together, and 1/(1-b), the times as many fit.", "dim")]]
    return lines
