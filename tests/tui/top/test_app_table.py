"""The table under a person's hands: cursor, order, filter."""

from __future__ import annotations

from textual.pilot import Pilot

from kvtrace.tui.app import TopApp
from kvtrace.tui.screens.dialogs import SortScreen
from kvtrace.tui.top.settings import TopSettings
from kvtrace.tui.top.view import Sort

from .conftest import record, sample
from .driving import chosen, demo, drive, table_names, text


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
