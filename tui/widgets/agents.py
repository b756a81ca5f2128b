"""The table of agents: only the rows in sight are drawn, so that five hundred agents cost what thirty do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..theme import DARK
from ..top.keys import BY_NAME
from ..top.table import Drawing, Row, row_line
from .painting import strip_of

MOVES: Final = ("up", "down", "page_up", "page_down", "first", "last")


class AgentTable(ScrollView, can_focus=True):
    """Rows with a cursor that stays with its agent, or, without ``follow``, with its line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(BY_NAME[name].keys, f"move('{name}')", show=False, id=name) for name in MOVES
    ]

    class Moved(Message):
        """A person moved the cursor."""

    class Opened(Message):
        """A person wants to see an agent."""

        def __init__(self, agent: str) -> None:
            super().__init__()
            self.agent = agent

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self.rows: Sequence[Row] = ()
        self.cursor = 0
        self._drawing: Drawing | None = None
        self._palette: Mapping[str, str] = DARK
        self._instead: str = ""

    @property
    def chosen(self) -> str | None:
        """The agent under the cursor."""
        return self.rows[self.cursor].agent.agent if self.cursor < len(self.rows) else None

    def show(
        self, rows: Sequence[Row], drawing: Drawing, palette: Mapping[str, str], follow: bool, instead: str
    ) -> None:
        """Draw these rows from now on, or ``instead`` where there are none."""
        chosen = self.chosen
        self.rows, self._drawing, self._palette, self._instead = rows, drawing, palette, instead
        if follow and chosen is not None:
            place = next((at for at, row in enumerate(rows) if row.agent.agent == chosen), None)
            moved = place is not None and place != self.cursor
            self.cursor = self.cursor if place is None else place
        else:
            moved = False
        self.cursor = max(0, min(self.cursor, len(rows) - 1))
        size = Size(self.size.width, len(rows))
        if size != self.virtual_size:
            self.virtual_size = size
        if moved:
            self._scroll_to_cursor()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One row of what is scrolled to."""
        at, width = self.scroll_offset.y + y, self.size.width
        if self._drawing is None or at >= len(self.rows):
            lines = [] if self.rows else wrap(self._instead, max(10, width - 4))
            words = lines[y - 1] if 0 < y <= len(lines) else ""
            return strip_of([(f"  {words}", "dim")], width, self.rich_style, self._palette)
        chosen = at == self.cursor
        line = row_line(self.rows[at], self._drawing, chosen)
        return strip_of(line, width, self.rich_style, self._palette, "chosen" if chosen else "")

    def action_move(self, name: str) -> None:
        """Move the cursor."""
        page = max(1, self.size.height - 1)
        steps = {
            "up": -1,
            "down": 1,
            "page_up": -page,
            "page_down": page,
            "first": -len(self.rows),
            "last": len(self.rows),
        }
        self._move_to(self.cursor + steps[name])

    def on_click(self, event: events.Click) -> None:
        """Choose the row; the second click on it opens it."""
        at = self.scroll_offset.y + event.y
        if at >= len(self.rows):
            return
        if at == self.cursor and event.chain >= 2:
            self.post_message(self.Opened(self.rows[at].agent.agent))
        self._move_to(at)

    def _move_to(self, at: int) -> None:
        self.cursor = max(0, min(at, len(self.rows) - 1))
        self._scroll_to_cursor()
        self.refresh()
        self.post_message(self.Moved())

    def _scroll_to_cursor(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1), animate=False, force=True)
