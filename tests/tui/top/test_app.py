"""The screens under a person's hands: sizes, details, help, ways out, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from textual.pilot import Pilot

from kvtrace.engine.records import AgentState
from kvtrace.tui.app import TopApp
from kvtrace.tui.exits import ExitCode
from kvtrace.tui.feed.contract import SourceKind
from kvtrace.tui.screens.detail import DetailScreen
from kvtrace.tui.screens.dialogs import HelpScreen
from kvtrace.tui.screens.main import MainScreen
from kvtrace.tui.top.keys import keymap
from kvtrace.tui.top.looks import LOOKS, Shown, shown
from kvtrace.tui.top.settings import TopSettings
from kvtrace.tui.top.view import Layout, View, layout_for

from .conftest import record, sample
from .driving import SIZES, Script, chosen, demo, drive, played, text


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
