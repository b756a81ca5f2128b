"""Colours. Okabe and Ito's palette, which people with any kind of colour vision tell apart, on dark and on light.

Nothing is said by colour alone: every state has a glyph and a word, every part of a bar its own filling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from textual.theme import Theme

DARK: Final[Mapping[str, str]] = {
    "generating": "#2bbf93",
    "restoring": "#f0e442",
    "queued": "#dd93bc",
    "waiting": "#e69f00",
    "parking": "#7fc4f0",
    "resident": "bold #ff7f27",
    "parked": "#56b4e9",
    "human": "#a8a8a8",
    "idle": "#7d7d7d",
    "weights": "#9a9a9a",
    "reclaimable": "#e69f00",
    "free": "#6c6c6c",
    "other": "#dd93bc",
    "host": "#56b4e9",
    "trend": "#4f7a96",
    "label": "bold #d7d7d7",
    "heading": "bold #b0b0b0 on #24292f",
    "heading.sorted": "bold #ffffff on #24292f",
    "name": "#e8e8e8",
    "strong": "bold #ffffff",
    "dim": "#8f8f8f",
    "cursor": "bold #f0e442",
    "alarm": "bold #ff7f27",
    "live": "bold #2bbf93",
    "chosen": "on #2d3640",
    "": "#cfcfcf",
}
LIGHT: Final[Mapping[str, str]] = {
    "generating": "#00725a",
    "restoring": "#7a6a00",
    "queued": "#9b3f72",
    "waiting": "#8f5f00",
    "parking": "#00639c",
    "resident": "bold #b84300",
    "parked": "#0072b2",
    "human": "#5f5f5f",
    "idle": "#767676",
    "weights": "#6b6b6b",
    "reclaimable": "#8f5f00",
    "free": "#949494",
    "other": "#9b3f72",
    "host": "#0072b2",
    "trend": "#34647f",
    "label": "bold #222222",
    "heading": "bold #444444 on #e4e7ea",
    "heading.sorted": "bold #000000 on #e4e7ea",
    "name": "#111111",
    "strong": "bold #000000",
    "dim": "#6a6a6a",
    "cursor": "bold #b84300",
    "alarm": "bold #b84300",
    "live": "bold #00725a",
    "chosen": "on #d4e3ee",
    "": "#333333",
}
# Without colour, weight alone may add to the glyphs and words.
PLAIN: Final[Mapping[str, str]] = {
    **dict.fromkeys(DARK, ""),
    **dict.fromkeys(("resident", "label", "strong", "cursor", "alarm", "live"), "bold"),
    **dict.fromkeys(("dim", "idle"), "dim"),
    "heading": "bold underline",
    "heading.sorted": "bold underline reverse",
    "chosen": "reverse",
}
STYLES: Final = frozenset(DARK)


def themes() -> list[Theme]:
    """The themes as Textual takes them."""
    from textual.theme import Theme

    dark = Theme(
        name="kvtrace-dark",
        primary="#56b4e9",
        secondary="#2bbf93",
        accent="#f0e442",
        warning="#e69f00",
        error="#ff7f27",
        success="#2bbf93",
        foreground="#cfcfcf",
        background="#101418",
        surface="#161b20",
        panel="#24292f",
        dark=True,
    )
    light = Theme(
        name="kvtrace-light",
        primary="#0072b2",
        secondary="#00725a",
        accent="#b84300",
        warning="#8f5f00",
        error="#b84300",
        success="#00725a",
        foreground="#333333",
        background="#fbfbf9",
        surface="#f1f2f0",
        panel="#e4e7ea",
        dark=False,
    )
    return [dark, light]


def palette(dark: bool, colour: bool) -> Mapping[str, str]:
    """Rich styles by the names that lines use."""
    if not colour:
        return PLAIN
    return DARK if dark else LIGHT
