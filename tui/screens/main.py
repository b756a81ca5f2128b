"""The screen that is there first: memory, agents, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from textual import events, on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input

from ..top import memory, table
from ..top.log import log_lines
from ..top.title import keys_line, nothing_yet, title_line
from ..top.view import Layout, layout_for
from ..widgets.agents import AgentTable
from ..widgets.lines import Lines

if TYPE_CHECKING:
    from ..app import TopApp

# Below so many lines a part gives its place to the agents.
_LEAST_HEIGHTS: Final = {"memory": 8, "head": 7, "heading": 5}
_LEAST_ROWS: Final = 6  # that the event log leaves to the table


class MainScreen(Screen[None]):
    """Draws what the app holds; it decides nothing but how much of it fits."""

    app: TopApp
    AUTO_FOCUS: ClassVar[str | None] = "#agents"

    def __init__(self) -> None:
        super().__init__()
        self.log_is_large = False
        self._order: list[str] = []
        self._columns: list[table.Column] = []

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Lines(id="title")
        yield Lines(id="memory")
        yield Lines(id="head")
        yield Lines(id="heading")
        yield AgentTable(id="agents")
        yield Lines(id="log")
        yield Input(id="filter", placeholder="words of an agent's name, state or tool", compact=True)
        yield Lines(id="keys")

    @property
    def table(self) -> AgentTable:
        """The table of agents."""
        return self.query_one("#agents", AgentTable)

    def draw(self) -> None:
        """Draw the latest sample that is to be seen."""
        app, width = self.app, self.size.width
        layout = layout_for(width, self.size.height)
        self.set_class(layout is Layout.COMPACT, "compact")
        for name, least in _LEAST_HEIGHTS.items():
            self._lines(name).display = self.size.height >= least
        sample, history, palette = app.shown, app.history, app.colours
        self.draw_title()
        if sample is not None:
            plain = app.view.ascii_only
            self._lines("memory").show(memory.panels(sample, history, width, layout, plain, app.other_use()), palette)
            self._lines("head").show([memory.head(sample, history, width, plain)], palette)
        self._draw_table(layout)
        self._draw_log(layout)
        self._lines("keys").show([keys_line(app.settings.keys, width)], palette)

    def draw_title(self) -> None:
        """Draw the first line alone: time passes without samples, too."""
        app = self.app
        line = title_line(app.shown, app.standing(), app.view, self.size.width)
        self._lines("title").show([line], app.colours)

    def _draw_table(self, layout: Layout) -> None:
        app, sample = self.app, self.app.shown
        rows: list[table.Row] = []
        if sample is not None:
            rows = table.rows(sample, app.history, app.view)
            if app.order_is_frozen():
                rows = table.keep_order(rows, self._order)
        self._order = [row.agent.agent for row in rows]
        knows = sample is None or sample.knows_memory
        # The scroll bar takes a cell of every row.
        longest = max((len(name) for name in self._order), default=0)
        self._columns = table.columns_for(self.size.width - 1, layout, knows, longest)
        drawing = table.Drawing(
            self._columns,
            app.history,
            0 if sample is None else sample.snapshot.time_unix_ns,
            layout,
            app.view.ascii_only,
        )
        self._lines("heading").show([table.heading(self._columns, app.view, self.size.width)], app.colours)
        instead = nothing_yet(sample, app.standing(), app.view)
        self.table.show(rows, drawing, app.colours, app.view.follow, instead)

    def _draw_log(self, layout: Layout) -> None:
        height = 0 if layout is Layout.COMPACT else self._log_height(len(self._order))
        plain, app = self.app.view.ascii_only, self.app
        at_ns = 0 if app.shown is None else app.shown.snapshot.time_unix_ns
        lines = log_lines(app.history, height, self.size.width, plain, app.zone, until_ns=at_ns)
        log = self._lines("log")
        log.display = bool(lines)
        log.show(lines, app.colours)

    def _log_height(self, agents: int) -> int:
        """Lines of the log: what the agents leave, within bounds; more where a person asked for more."""
        height = self.size.height
        free = height - 8 - agents
        if self.log_is_large:
            return max(free, height // 2)
        return max(2 if height < 30 else 4, min(free, height // 3)) if height - 10 > _LEAST_ROWS else 0

    def _lines(self, name: str) -> Lines:
        return self.query_one(f"#{name}", Lines)

    def on_mount(self) -> None:
        """Draw at once, even before there is anything to draw."""
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout anew."""
        del event
        self.draw()

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was there."""
        self.draw()

    # --- filter -----------------------------------------------------------------------------------

    def open_filter(self) -> None:
        """Let a person type words that rows must have."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self.app.view.filter
        field.focus()

    def close_filter(self, clear: bool) -> bool:
        """Put the field away; whether there was anything to close or to clear."""
        field = self.query_one("#filter", Input)
        was_open = bool(field.display)
        field.display = False
        self.table.focus()
        if clear and self.app.view.filter:
            self.app.set_filter("")
            return True
        return was_open

    @on(Input.Changed, "#filter")
    def _filter_typed(self, event: Input.Changed) -> None:
        self.app.set_filter(event.value)

    @on(Input.Submitted, "#filter")
    def _filter_entered(self) -> None:
        self.close_filter(clear=False)

    # --- mouse ------------------------------------------------------------------------------------

    @on(Lines.Clicked, "#heading")
    def _heading_clicked(self, event: Lines.Clicked) -> None:
        column = table.column_at(self._columns, event.x)
        if column is not None and column.sort is not None:
            self.app.set_sort(column.sort)
