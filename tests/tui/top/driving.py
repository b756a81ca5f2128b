"""The app without a terminal, and what a person sees of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path

from textual.pilot import Pilot

from kvtrace.tui.app import TopApp
from kvtrace.tui.feed.contract import Feed, Sample
from kvtrace.tui.feed.demo import DemoFeed
from kvtrace.tui.feed.replay import Recording, ReplayFeed
from kvtrace.tui.screens.main import MainScreen
from kvtrace.tui.top.settings import TopSettings
from kvtrace.tui.top.view import View

from .conftest import START_NS

SIZES = [(160, 45), (100, 30), (80, 24), (60, 12)]
Script = Callable[[TopApp, Pilot[int]], Awaitable[None]]


def played(*samples: Sample) -> ReplayFeed:
    """A feed that tells these samples at once."""
    return ReplayFeed(Recording(samples), "a recording", time.monotonic, at_end=True)


def demo() -> DemoFeed:
    """The demo at an instant that does not pass."""
    return DemoFeed(14, 0, lambda: START_NS)


def drive(
    feed: Feed,
    script: Script,
    size: tuple[int, int] = (120, 40),
    settings: TopSettings | None = None,
    view: View | None = None,
    export_to: Path | None = None,
) -> TopApp:
    """Run the app without a terminal, wait for its first sample, and let ``script`` use it."""
    app = TopApp(feed, settings or TopSettings(), view=view, zone=UTC, export_to=export_to)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.shown is not None)
            await pilot.pause()
            await script(app, pilot)

    asyncio.run(run())
    return app


async def until(pilot: Pilot[int], holds: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        await pilot.pause(0.01)


def text(app: TopApp) -> str:
    """What is on the screen."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def table_names(app: TopApp) -> list[str]:
    """Agents in the order of the table."""
    screen = app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return [row.agent.agent for row in screen.table.rows]


def chosen(app: TopApp) -> str | None:
    """The agent under the cursor."""
    screen = app.screen_stack[0]
    assert isinstance(screen, MainScreen)
    return screen.table.chosen
