"""The screen of one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from ..feed.contract import Sample
from ..top.detail import WINDOWS_S, Space, detail_lines, first_window
from ..top.history import History
from ..top.title import title_line
from ..widgets.lines import Lines, ScrolledLines

if TYPE_CHECKING:
    from ..app import TopApp


class DetailScreen(Screen[None]):
    """Its Gantt, tools by total wait, park history, what recomputing would have cost."""

    app: TopApp
    AUTO_FOCUS: ClassVar[str | None] = "#detail"

    def __init__(self, agent: str, sample: Sample | None, history: History) -> None:
        super().__init__()
        self.agent = agent
        self._window = first_window(agent, sample, history)

    def compose(self) -> ComposeResult:
        """A title, and everything else scrolls."""
        yield Lines(id="title")
        yield ScrolledLines(id="detail")

    def draw(self) -> None:
        """Draw the agent as of the latest sample."""
        self.draw_title()
        app = self.app
        space = Space(max(1, self.size.width - 1), WINDOWS_S[self._window], app.view.ascii_only, app.zone)
        lines = detail_lines(self.agent, app.shown, app.history, space)
        self.query_one("#detail", ScrolledLines).show(lines, app.colours)

    def draw_title(self) -> None:
        """Draw the first line alone."""
        app = self.app
        line = title_line(app.shown, app.standing(), app.view, self.size.width)
        self.query_one("#title", Lines).show([line], app.colours)

    def next_window(self) -> None:
        """A longer timeline, or again the shortest."""
        self._window = (self._window + 1) % len(WINDOWS_S)
        self.draw()

    def on_mount(self) -> None:
        """Draw at once."""
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        """Draw for the new size."""
        del event
        self.draw()

    def on_screen_resume(self) -> None:
        """Catch up with what happened under the help."""
        self.draw()
