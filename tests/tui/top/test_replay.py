"""The past at any speed: recordings come back as they were, spans become samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import write_otlp
from kvtrace.tui.feed.contract import FeedError, Sample, SourceKind
from kvtrace.tui.feed.replay import ReplayFeed, open_film

from .conftest import record, sample

TRACES = Path(__file__).parents[4] / "shared" / "traces"


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _recording(path: Path, seconds: int) -> list[Sample]:
    samples = [sample(record(since_s=float(at_s)), at_s=at_s) for at_s in range(seconds)]
    path.write_text("".join(json.dumps(each.as_json()) + "\n" for each in samples), encoding="utf-8")
    return samples


def _play(feed: ReplayFeed, clock: HandClock, step_s: float) -> list[Sample]:
    told = list(feed.read())
    for _ in range(10_000):
        if feed.over:
            return told
        clock.now_s += step_s
        told += feed.read()
    raise AssertionError("the replay never ended")


@pytest.mark.parametrize("speed", [0.5, 1.0, 7.0, 1000.0])
def test_recording_is_told_whole_and_in_order_at_any_speed(tmp_path: Path, speed: float) -> None:
    path, clock = tmp_path / "rec.ndjson", HandClock()
    recorded = _recording(path, 30)
    told = _play(ReplayFeed(open_film(path), "rec", clock, speed), clock, 0.7)
    assert [each.snapshot for each in told] == [each.snapshot for each in recorded]


def test_speed_can_be_changed_on_the_way(tmp_path: Path) -> None:
    path, clock = tmp_path / "rec.ndjson", HandClock()
    _recording(path, 60)
    feed = ReplayFeed(open_film(path), "rec", clock)
    feed.read()
    clock.now_s += 2
    assert len(feed.read()) == 2
    feed.play_at(10.0)
    clock.now_s += 2
    assert len(feed.read()) == 20
    assert feed.read() == []


def test_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path, clock = tmp_path / "rec.ndjson", HandClock()
    _recording(path, 3)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"time_unix_ns": 1, "age')
    assert len(_play(ReplayFeed(open_film(path), "rec", clock, at_end=True), clock, 1.0)) == 3


def test_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rec.ndjson"
    _recording(path, 3)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], "oops", lines[2]]), encoding="utf-8")
    with pytest.raises(FeedError, match="line 2"):
        open_film(path)


def test_spans_are_played_as_samples(tmp_path: Path) -> None:
    path, clock = write_otlp(tmp_path / "s.jsonl", sample_spans(3, 10, seed=0)), HandClock()
    film = open_film(path)
    told = _play(ReplayFeed(film, "s", clock, 16.0), clock, 1.0)
    assert told[-1].snapshot.time_unix_ns == film.last_ns
    assert {each.kind for each in told} == {SourceKind.SPANS}
    assert len({agent.state for each in told for agent in each.snapshot.agents}) >= 3


def test_what_holds_no_time_is_refused_with_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(FeedError, match="kvtrace report"):
        open_film(tmp_path / "empty.jsonl")
    with pytest.raises(FeedError, match="no file"):
        open_film(tmp_path / "missing.jsonl")


@pytest.mark.skipif(not TRACES.is_dir(), reason="no shared traces here")
@pytest.mark.parametrize("source", ["claude-code/viewer-inline-sidechain.jsonl", "openhands/basic-gui-mode.json"])
def test_other_peoples_traces_are_played(source: str) -> None:
    clock = HandClock()
    told = _play(ReplayFeed(open_film(TRACES / source), source, clock, 64.0), clock, 1.0)
    assert any(agent.b for agent in told[-1].snapshot.agents)
