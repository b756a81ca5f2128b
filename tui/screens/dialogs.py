"""What opens over a screen: the help, and the choice of a column to sort by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ..top.help import help_lines
from ..top.keys import BY_NAME
from ..top.view import Sort
from ..widgets.lines import ScrolledLines


class Dialog(ModalScreen[Sort | None]):
    """Closed by escape; every way out of the program works here, too."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", show=False),
        Binding("ctrl+c", "app.interrupt", show=False, priority=True, system=True),
        Binding(BY_NAME["quit"].keys, "app.top_quit", show=False, id="quit"),
    ]


class HelpScreen(Dialog):
    """Keys as they are bound, states, columns."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding(BY_NAME["help"].keys, "dismiss", show=False, id="help")]
    AUTO_FOCUS: ClassVar[str | None] = "#help-text"

    def __init__(self, keys: Mapping[str, str], palette: Mapping[str, str], ascii_only: bool) -> None:
        super().__init__()
        self._lines = help_lines(keys, ascii_only)
        self._palette = palette

    def compose(self) -> ComposeResult:
        """A box with scrolled lines."""
        with Vertical(classes="box"):
            yield ScrolledLines(id="help-text")

    def on_mount(self) -> None:
        """As high as the help, where the screen is."""
        text = self.query_one("#help-text", ScrolledLines)
        text.styles.height = len(self._lines)
        text.styles.max_height = "100%"
        text.show(self._lines, self._palette)


class SortScreen(Dialog):
    """Columns to sort by; rows keep their order while it is open."""

    def __init__(self, now: Sort) -> None:
        super().__init__()
        self._now = now

    def compose(self) -> ComposeResult:
        """A list of columns."""
        with Vertical(classes="box"):
            yield OptionList(*(Option(f"sort by {sort.name.lower()}", id=sort.name) for sort in Sort))

    def on_mount(self) -> None:
        """Begin at the present column."""
        choices = self.query_one(OptionList)
        choices.highlighted = list(Sort).index(self._now)
        choices.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the choice."""
        self.dismiss(Sort[event.option_id or self._now.name])
