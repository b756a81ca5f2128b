"""A widget that draws lines, and only when they changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from ..theme import DARK
from ..top.lines import Line
from .painting import strip_of


class Lines(Widget):
    """Draws the lines it was shown; its height is the stylesheet's affair, or that of whoever lays it out."""

    DEFAULT_CSS = "Lines { height: auto; }"

    class Clicked(Message):
        """A cell of the widget was clicked."""

        def __init__(self, lines: Lines, x: int) -> None:
            super().__init__()
            self.lines = lines
            self.x = x

        @property
        def control(self) -> Lines:
            """The widget that was clicked."""
            return self.lines

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._palette: Mapping[str, str] = DARK

    def show(self, lines: Sequence[Line], palette: Mapping[str, str]) -> None:
        """Draw these lines from now on."""
        if list(lines) == self._lines and palette is self._palette:
            return
        taller = len(lines) != len(self._lines)
        self._lines, self._palette = list(lines), palette
        self.refresh(layout=taller)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """As wide as there is room."""
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As high as there are lines."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """One line, or an empty one below the last."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        return strip_of(self._lines[y], width, self.rich_style, self._palette)

    def on_click(self, event: events.Click) -> None:
        """Tell where."""
        self.post_message(self.Clicked(self, event.x))


class ScrolledLines(ScrollView, can_focus=True):
    """Lines that may be more than fit."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._palette: Mapping[str, str] = DARK

    def show(self, lines: Sequence[Line], palette: Mapping[str, str]) -> None:
        """Draw these lines from now on; how far it is scrolled stays."""
        if list(lines) == self._lines and palette is self._palette:
            return
        self._lines, self._palette = list(lines), palette
        self.virtual_size = Size(self.size.width, len(self._lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """One line of what is scrolled to."""
        at, width = self.scroll_offset.y + y, self.size.width
        if at >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        return strip_of(self._lines[at], width, self.rich_style, self._palette)
