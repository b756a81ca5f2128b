"""The app and where its samples come from: pausing, rates, replays, a lost server."""

from __future__ import annotations

from textual.pilot import Pilot

from kvtrace.tui.app import TopApp
from kvtrace.tui.feed.http import HttpFeed, ServerAddress
from kvtrace.tui.top.settings import TopSettings

from .conftest import StateServer, record, sample
from .driving import drive, played, table_names, text, until


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
