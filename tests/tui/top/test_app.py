"""The screen under a person's hands: keys, mouse, sizes, a lost server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from datetime import UTC
from pathlib import Path

import pytest
from textual.pilot import Pilot

from kvtrace.engine.records import AgentState
from kvtrace.tui.app import TopApp
from kvtrace.tui.exits import ExitCode
from kvtrace.tui.feed.contract import Feed, Sample, SourceKind
from kvtrace.tui.feed.demo import DemoFeed
from kvtrace.tui.feed.http import HttpFeed, ServerAddress
from kvtrace.tui.feed.replay import Recording, ReplayFeed
from kvtrace.tui.screens.detail import DetailScreen
from kvtrace.tui.screens.dialogs import HelpScreen, SortScreen
from kvtrace.tui.screens.main import MainScreen
from kvtrace.tui.top.keys import keymap
from kvtrace.tui.top.looks import LOOKS, Shown, shown
from kvtrace.tui.top.settings import TopSettings
from kvtrace.tui.top.view import Layout, Sort, View, layout_for

from .conftest import START_NS, StateServer, record, sample

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


@pytest.mark.parametrize("size", [*SIZES, (40, 8), (20, 4)], ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
def test_every_state_is_drawn_in_every_layout(size: tuple[int, int], ascii_only: bool) -> None:
    waits = (AgentState.BLOCKED_RESIDENT, AgentState.PARKING, AgentState.PARKED)
    agents = [record(f"{state.value[:3]}", state, tool="bash" if state in waits else None) for state in AgentState]
    seen: set[str] = set()

    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        for _ in agents:
            seen.update(text(app).splitlines())
            await pilot.press("down")

    drive(played(sample(*agents)), script, size, view=View(ascii_only=ascii_only))
    drawn = "\n".join(seen)
    for agent in agents:
        look = LOOKS[shown(agent.state, True)]
        assert f"{look.ascii_glyph if ascii_only else look.glyph} {look.short[:4]}" in drawn
    assert max(map(len, seen)) == size[0]
    if ascii_only:
        assert drawn.isascii()


def test_wait_without_an_engine_names_its_tool_and_shows_no_memory() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        assert f"{LOOKS[Shown.TOOL].glyph} tool:pytest" in text(app)
        assert "VRAM" not in text(app)
        assert "no engine" in text(app)

    waiting = record(state=AgentState.BLOCKED_RESIDENT, tool="pytest")
    drive(played(sample(waiting, kind=SourceKind.SPANS)), script)


def test_layouts_by_size() -> None:
    assert [layout_for(*size) for size in SIZES] == [Layout.WIDE, Layout.MEDIUM, Layout.MEDIUM, Layout.COMPACT]
    assert layout_for(200, 10) is Layout.COMPACT


def test_resizing_chooses_the_layout_anew_and_keeps_the_cursor() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("down", "down")
        name = chosen(app)
        for size in [*SIZES, (30, 6), (160, 45)]:
            await pilot.resize_terminal(*size)
            await pilot.pause()
            assert chosen(app) == name
            assert len(text(app).splitlines()) == size[1]
        assert "LAST 60 s" in text(app)

    drive(demo(), script)


def test_cursor_moves_by_every_key_and_stays_inside() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        names = table_names(app)
        for keys, at in (
            ("up", 0),
            ("j", 1),
            ("down", 2),
            ("k", 1),
            ("end", 13),
            ("down", 13),
            ("home", 0),
            ("pagedown", 13),
        ):
            await pilot.press(keys)
            assert chosen(app) == names[at]

    drive(demo(), script)


def test_cursor_follows_its_agent_and_not_its_line_unless_told() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("down")
        name = chosen(app)
        await pilot.press("s", "down", "down", "down", "down", "enter")
        await pilot.pause()
        assert app.view.sort is Sort.VRAM
        assert chosen(app) == name
        await pilot.press("home", "F", "r")
        assert chosen(app) == table_names(app)[0]

    drive(demo(), script)


def test_rows_stay_in_order_while_a_menu_is_open() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        app.set_sort(Sort.SINCE)
        before = table_names(app)
        await pilot.press("s")
        app.take([sample(*(record(name, since_s=float(at)) for at, name in enumerate(before)), at_s=1)])
        assert table_names(app) == before
        await pilot.press("escape")
        app.draw()
        assert table_names(app) == before[::-1]

    # The next sample is the test's own.
    drive(demo(), script, settings=TopSettings(interval_s=60.0))


def test_sorting_by_keys_and_by_a_click_on_the_heading() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        sorts = []
        for key in ("full_stop", "comma", "comma"):
            await pilot.press(key)
            sorts.append(app.view.sort)
        assert sorts == [Sort.STATE, Sort.AGENT, Sort.PARKS]
        heading = next(line for line in text(app).splitlines() if "CTX" in line)
        await pilot.click("#heading", offset=(heading.index("CTX"), 0))
        await pilot.pause()
        assert app.view.sort is Sort.CONTEXT
        await pilot.click("#heading", offset=(heading.index("CTX"), 0))
        await pilot.pause()
        assert app.view.reverse

    drive(demo(), script)


def test_filter_is_typed_kept_and_cleared() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        everybody = table_names(app)
        await pilot.press("slash", *"tests")
        await pilot.pause()
        assert table_names(app) == ["tests-2", "tests-10"]
        await pilot.press("enter", "down")
        assert chosen(app) == "tests-10"
        assert "filter: tests" in text(app)
        await pilot.press("slash", *"xx", "enter")
        await pilot.pause()
        assert "No agent matches 'xx'" in text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert table_names(app) == everybody

    drive(demo(), script)


def test_pause_stops_drawing_and_not_collecting() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("space")
        app.take([sample(record("newcomer"), at_s=5)])
        await pilot.pause()
        assert "PAUSED" in text(app)
        assert "newcomer" not in text(app)
        assert "newcomer" in app.history.tracks
        await pilot.press("space")
        await pilot.pause()
        assert "newcomer" in text(app)

    drive(played(sample(record("old"))), script)


def test_details_open_draw_and_close() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("down", "enter")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        for words in ("TIMELINE", "TOOLS BY TOTAL WAIT", "RECOMPUTING INSTEAD", "PARKS AND RESTORES", "spared"):
            assert words in text(app)
        assert "last 2 min" in text(app)
        await pilot.press("z")
        assert "last 10 min" in text(app)
        await pilot.press("question_mark", "escape", "escape")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)
        table = app.screen.table
        await pilot.double_click("#agents", offset=(5, 3))
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        assert app.screen.agent == table.rows[3].agent.agent

    drive(demo(), script)


def test_life_by_state_is_told_where_the_engine_tells_it() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("enter")
        await pilot.pause()
        assert "since it began: waiting 90.0s  generating 40.0s" in text(app)

    spent = {"generating": 40.0, "blocked_resident": 90.0, "queued": 0.0, "later": 5.0}
    drive(played(sample(record(state_seconds=spent))), script)


def test_help_names_every_key_as_it_is_bound_now() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("p")
        assert app.paused
        await pilot.press("space")
        assert app.paused
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        pause = next(line for line in text(app).splitlines() if "stop drawing" in line)
        assert pause.split()[1] == "p"
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, MainScreen)

    drive(demo(), script, (100, 60), TopSettings(keys=keymap({"pause": "p"})))


def test_every_way_out_works_everywhere() -> None:
    def interrupted_in(*opened: str) -> Script:
        async def script(app: TopApp, pilot: Pilot[int]) -> None:
            await pilot.press(*opened, "ctrl+c")

        return script

    for key in ("question_mark", "s", "enter", "slash", "space"):
        assert drive(demo(), interrupted_in(key)).return_value == ExitCode.INTERRUPTED

    async def leave(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("q")

    assert drive(demo(), leave).return_value == ExitCode.OK


def test_rate_is_changed_within_bounds() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("plus", "plus", "plus")
        await pilot.pause()
        assert app.interval_s == 0.25
        assert "every 0.25 s" in text(app)
        await pilot.press(*["minus"] * 12)
        assert app.interval_s == 60.0

    server = StateServer()
    server.start()
    try:
        drive(HttpFeed(ServerAddress.parse(server.url)), script)
    finally:
        server.kill()


def test_replay_goes_faster_and_ends() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("plus")
        await pilot.pause()
        assert app.speed == 2.0
        assert "ENDED" in text(app)

    drive(played(sample(record())), script)


def test_reset_begins_graphs_anew_and_expand_makes_the_log_larger() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        def shown_events() -> int:
            return sum(" to host " in line or " back " in line for line in text(app).splitlines())

        few = shown_events()
        await pilot.press("e")
        await pilot.pause()
        assert shown_events() > few
        await pilot.press("R")
        assert len(app.history.out_rates) == 0

    drive(demo(), script, (120, 30))


def test_export_writes_what_is_seen(tmp_path: Path) -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("E")

    app = drive(demo(), script, export_to=tmp_path)
    (picture,) = tmp_path.glob("*.svg")
    (told,) = tmp_path.glob("*.json")
    assert "generating" in picture.read_text(encoding="utf-8")
    assert app.shown is not None
    assert json.loads(told.read_text(encoding="utf-8")) == json.loads(json.dumps(app.shown.as_json()))


def test_lost_server_is_told_nothing_is_emptied_and_it_is_met_again(state_server: StateServer) -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        names = table_names(app)
        assert "LIVE" in text(app)
        state_server.kill()
        await until(pilot, lambda: "DISCONNECTED, last sample" in text(app))
        assert "connection refused" in text(app)
        assert table_names(app) == names
        state_server.start()
        await until(pilot, lambda: "LIVE" in text(app))

    drive(HttpFeed(ServerAddress.parse(state_server.url)), script, settings=TopSettings(interval_s=0.25))


@pytest.mark.parametrize(("value", "plain"), [("1", True), ("", False)])
def test_without_colour_nothing_is_lost(value: str, plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        assert app.no_color is plain
        assert "● generating" in text(app)
        styles = [segment.style for strip in app.screen._compositor.render_strips() for segment in strip]
        hues = {style.color.name for style in styles if style is not None and style.color is not None}
        assert ("#2bbf93" in hues) is not plain

    monkeypatch.setenv("NO_COLOR", value)
    drive(demo(), script)


def test_sort_menu_begins_at_the_present_column_and_sorts() -> None:
    async def script(app: TopApp, pilot: Pilot[int]) -> None:
        for sort in (Sort.PARKS, Sort.STATE, Sort.B):
            await pilot.press("s")
            await pilot.pause()
            assert isinstance(app.screen, SortScreen)
            await pilot.press(*["up"] * list(Sort).index(app.view.sort), *["down"] * list(Sort).index(sort), "enter")
            await pilot.pause()
            assert app.view.sort is sort

    drive(demo(), script)
