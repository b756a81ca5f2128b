"""What a person chose to see, and how much room there is for it: plain data, changed by keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Layout(StrEnum):
    """How much is drawn. Nothing is ever refused: what has no room is left out."""

    WIDE = "wide"
    MEDIUM = "medium"
    COMPACT = "compact"


def layout_for(width: int, height: int) -> Layout:
    """The layout for a terminal of this many cells."""
    if width < 72 or height < 16:
        return Layout.COMPACT
    return Layout.WIDE if width >= 104 and height >= 24 else Layout.MEDIUM


class Sort(StrEnum):
    """What agents are ordered by. The value is the column's heading in small letters."""

    AGENT = "agent"
    STATE = "state"
    SINCE = "for"
    CONTEXT = "ctx"
    VRAM = "vram"
    HOST = "host"
    RATE = "tok/s"
    B = "b"
    PARKS = "parks"


@dataclass(frozen=True, slots=True)
class View:
    """Choices of the person who looks."""

    sort: Sort = Sort.AGENT
    reverse: bool = False
    filter: str = ""
    follow: bool = True
    ascii_only: bool = False

    def sorted_by(self, sort: Sort) -> View:
        """Order by ``sort``; by the same once more, the other way round."""
        return replace(self, sort=sort, reverse=not self.reverse if sort is self.sort else False)

    def sorted_next(self, step: int) -> View:
        """Order by the next column, or with -1 by the one before."""
        order = list(Sort)
        return replace(self, sort=order[(order.index(self.sort) + step) % len(order)], reverse=False)
