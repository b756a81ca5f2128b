"""``kvtrace top``: collects samples in a thread, keeps their history, and lets the screens draw it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType

from .exits import ExitCode
from .feed.collector import Collector
from .feed.contract import FASTEST, SLOWEST, Feed, Sample
from .gpu import GpuProbe
from .screens.detail import DetailScreen
from .screens.dialogs import Dialog, HelpScreen, SortScreen
from .screens.main import MainScreen
from .theme import palette, themes
from .top.history import History
from .top.keys import BY_NAME
from .top.memory import OtherUse
from .top.settings import LEAST_INTERVAL_S, MOST_INTERVAL_S, TopSettings
from .top.title import Standing
from .top.view import Sort, View
from .widgets.agents import AgentTable

Given = TypeVar("Given")

_FROZEN_S: Final = 3.0  # rows stay in order so long after a person moved the cursor
_TERMINAL_S: Final = 0.5  # how often it is looked whether the terminal is still there
_ACTIONS: Final = (
    "quit", "help", "details", "back", "filter", "sort", "sort_next", "sort_previous", "reverse", "pause", "faster",
    "slower", "refresh", "reset", "follow", "expand", "window", "export", "suspend",
)  # fmt: skip


class TopApp(App[int]):
    """Shows what a feed gives. Returns an :class:`.exits.ExitCode`."""

    CSS_PATH = "app.tcss"
    TITLE = "kvtrace top"
    ALLOW_SELECT: ClassVar[bool] = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(BY_NAME[name].keys, f"top_{name}", show=False, id=name) for name in _ACTIONS),
        # Not to be remapped: whatever a settings file says, there is a way out.
        Binding("ctrl+c", "interrupt", show=False, priority=True, system=True),
    ]

    def __init__(
        self,
        feed: Feed,
        settings: TopSettings,
        *,
        view: View | None = None,
        probe: GpuProbe | None = None,
        zone: tzinfo | None = None,
        export_to: Path | None = None,
    ) -> None:
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # set but empty means nothing (no-color.org); Textual takes it for a yes
        super().__init__()
        self.feed, self.settings, self.zone = feed, settings, zone
        self.view = view or View(sort=settings.sort)
        self.history = History()
        self.shown: Sample | None = None
        self.paused = False
        self.interval_s = settings.interval_s
        self.speed = feed.speed
        self._probe = probe
        self._export_to = export_to
        self._arrived_s: float | None = None
        self._paused_s = 0.0
        self._trouble: str | None = None
        self._moved_s = -_FROZEN_S
        self._collector: Collector | None = None

    # --- what screens ask -------------------------------------------------------------------------

    @property
    def colours(self) -> Mapping[str, str]:
        """Styles of the present theme."""
        return palette(self.current_theme.dark, not self.no_color)

    def standing(self) -> Standing:
        """How it stands with the feed."""
        since_s = self._paused_s if self.paused else self._arrived_s
        age_s = None if since_s is None else max(0.0, time.monotonic() - since_s)
        return Standing(self.feed.where, self.interval_s, self.speed, age_s, self._trouble, self.paused, self.feed.over)

    def other_use(self) -> OtherUse | None:
        """What the GPU's own library says of other processes, where it does."""
        if self._probe is None or self.shown is None:
            return None
        vram = self.shown.snapshot.tiers.vram
        return self._probe.other_use(vram.total_bytes, vram.weights_bytes + vram.kv_pool_bytes)

    def order_is_frozen(self) -> bool:
        """Whether rows must stay where they are: a person is about to choose one."""
        return isinstance(self.screen, Dialog) or time.monotonic() - self._moved_s < _FROZEN_S

    # --- samples ----------------------------------------------------------------------------------

    def get_default_screen(self) -> MainScreen:
        """The main screen."""
        return MainScreen()

    def on_mount(self) -> None:
        """Begin to collect."""
        for theme in themes():
            self.register_theme(theme)
        self.theme = self.settings.theme if self.settings.theme in self.available_themes else "kvtrace-dark"
        self.set_keymap(dict(self.settings.keys))
        self.set_class(self.view.ascii_only, "ascii")
        loop = asyncio.get_running_loop()

        def in_loop(callback: Callable[[Given], None], given: Given) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(callback, given)

        self._collector = Collector(
            self.feed,
            self.interval_s,
            lambda samples: in_loop(self.take, samples),
            lambda why: in_loop(self.take_trouble, why),
        )
        self._collector.start()
        if self._probe is not None:
            self._probe.start()
        self.set_interval(1.0, self._tick)
        # Back from the shell, the terminal is empty: what did not change must be drawn as well.
        self.app_resume_signal.subscribe(self, lambda _: self.screen.refresh(layout=True, repaint=True))
        self._leave_with_the_terminal(loop)

    def on_unmount(self) -> None:
        """Collect no more."""
        if self._collector is not None:
            self._collector.stop()
        if self._probe is not None:
            self._probe.stop()

    def take(self, samples: list[Sample]) -> None:
        """New samples: all of them are remembered, the last is drawn."""
        for sample in samples:
            self.history.add(sample)
        self._arrived_s, self._trouble = time.monotonic(), None
        if not self.paused:
            self.shown = samples[-1]
            self.draw()

    def take_trouble(self, why: str) -> None:
        """There was no sample; what was seen stays."""
        first, self._trouble = self._trouble is None, why
        if self.shown is None and first:
            self.draw()
        else:
            self._tick()

    def draw(self) -> None:
        """Let the screen in front draw, and the one under a dialog as well."""
        for screen in self.screen_stack[-2:]:
            if isinstance(screen, MainScreen | DetailScreen) and screen.is_mounted:
                screen.draw()

    def _tick(self) -> None:
        screen = self.screen
        if isinstance(screen, MainScreen | DetailScreen) and screen.is_mounted:
            screen.draw_title()

    # --- ways out ---------------------------------------------------------------------------------

    def _leave_with_the_terminal(self, loop: asyncio.AbstractEventLoop) -> None:
        """End on signals, and when the terminal is gone: without one Textual would spin, drawing for nobody."""
        if self.is_headless:
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.action_interrupt)
        if sys.__stdin__ is not None and sys.__stdin__.isatty():
            self.set_interval(_TERMINAL_S, self._check_terminal)

    def _check_terminal(self) -> None:
        try:
            termios.tcgetattr(sys.__stdin__.fileno() if sys.__stdin__ is not None else 0)
        except (OSError, ValueError, termios.error):
            self.exit(ExitCode.INTERRUPTED)

    def action_interrupt(self) -> None:
        """Quit as ctrl+c and signals ask for."""
        self.exit(ExitCode.INTERRUPTED)

    def action_top_quit(self) -> None:
        """Quit."""
        self.exit(ExitCode.OK)

    def action_top_suspend(self) -> None:
        """Go to the background."""
        self.action_suspend_process()

    # --- screens ----------------------------------------------------------------------------------

    def action_top_help(self) -> None:
        """Open the help."""
        self.push_screen(HelpScreen(self.settings.keys, self.colours, self.view.ascii_only))

    def action_top_details(self) -> None:
        """Open the chosen agent."""
        if isinstance(self.screen, MainScreen) and (agent := self.screen.table.chosen) is not None:
            self.push_screen(DetailScreen(agent, self.shown, self.history))

    def action_top_back(self) -> None:
        """Close what is open, else clear the filter."""
        if isinstance(self.screen, DetailScreen):
            self.pop_screen()
        elif isinstance(self.screen, MainScreen):
            self.screen.close_filter(clear=True)

    def action_top_window(self) -> None:
        """Another length of the timeline."""
        if isinstance(self.screen, DetailScreen):
            self.screen.next_window()

    def action_top_expand(self) -> None:
        """More room for the log, and back."""
        if isinstance(self.screen, MainScreen):
            self.screen.log_is_large = not self.screen.log_is_large
            self.draw()

    def action_top_filter(self) -> None:
        """Type a filter."""
        if isinstance(self.screen, MainScreen):
            self.screen.open_filter()

    def on_agent_table_opened(self, message: AgentTable.Opened) -> None:
        """Open an agent that was clicked twice."""
        self.push_screen(DetailScreen(message.agent, self.shown, self.history))

    def on_agent_table_moved(self) -> None:
        """Keep the rows still for a while."""
        self._moved_s = time.monotonic()

    # --- the view ---------------------------------------------------------------------------------

    def set_filter(self, words: str) -> None:
        """Show only what has these words."""
        self.view = replace(self.view, filter=words)
        self.draw()

    def set_sort(self, sort: Sort) -> None:
        """Sort by a column; by the same again, the other way round."""
        self._resort(self.view.sorted_by(sort))

    def _resort(self, view: View) -> None:
        self.view, self._moved_s = view, -_FROZEN_S
        self.draw()

    def action_top_sort(self) -> None:
        """Choose a column."""

        def chosen(sort: Sort | None) -> None:
            if sort is not None:
                self.set_sort(sort)

        if isinstance(self.screen, MainScreen):
            self.push_screen(SortScreen(self.view.sort), chosen)

    def action_top_sort_next(self) -> None:
        """Sort by the next column."""
        self._resort(self.view.sorted_next(1))

    def action_top_sort_previous(self) -> None:
        """Sort by the column before."""
        self._resort(self.view.sorted_next(-1))

    def action_top_reverse(self) -> None:
        """The other way round."""
        self._resort(replace(self.view, reverse=not self.view.reverse))

    def action_top_follow(self) -> None:
        """The cursor stays with its agent, or with its line."""
        self.view = replace(self.view, follow=not self.view.follow)
        self.notify(
            "the cursor stays with its agent" if self.view.follow else "the cursor stays on its line", timeout=2
        )

    def action_top_pause(self) -> None:
        """Stop drawing, or go on with the newest sample."""
        self.paused = not self.paused
        self._paused_s = time.monotonic()
        if not self.paused:
            self.shown = self.history.latest
        self.draw()

    # --- pace -------------------------------------------------------------------------------------

    def action_top_faster(self) -> None:
        """Sample more often, or play faster."""
        self._pace(2.0)

    def action_top_slower(self) -> None:
        """Sample less often, or play slower."""
        self._pace(0.5)

    def _pace(self, factor: float) -> None:
        if self._collector is None:
            return
        if self.speed is not None:
            self.speed = min(max(self.speed * factor, SLOWEST), FASTEST)
            self._collector.set_speed(self.speed)
        else:
            self.interval_s = min(max(self.interval_s / factor, LEAST_INTERVAL_S), MOST_INTERVAL_S)
            self._collector.set_interval(self.interval_s)
        self._tick()

    def action_top_refresh(self) -> None:
        """Sample now."""
        if self._collector is not None:
            self._collector.refresh()

    def action_top_reset(self) -> None:
        """Begin statistics anew."""
        self.history.reset()
        self.draw()

    # --- export -----------------------------------------------------------------------------------

    def action_top_export(self) -> None:
        """Write the sample as JSON and the screen as SVG into the current folder."""
        if self.shown is None:
            self.notify("nothing was seen yet", severity="warning")
            return
        folder = self._export_to or Path.cwd()
        stem = f"kvtrace-top-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        try:
            (folder / f"{stem}.json").write_text(json.dumps(self.shown.as_json()) + "\n", encoding="utf-8")
            (folder / f"{stem}.svg").write_text(self.export_screenshot(), encoding="utf-8")
        except OSError as error:
            self.notify(f"{folder} cannot be written: {error.strerror or error}", severity="error")
        else:
            self.notify(f"wrote {stem}.json and .svg")
