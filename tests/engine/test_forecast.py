from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.errors import ConfigError
from kvtrace.engine.forecast import Durations, Forecasts

GOLDEN = Path(__file__).parents[1] / "contracts" / "forecast.json"
LENGTHS = st.floats(0, 1e5)


def learned(lengths: list[float]) -> Durations:
    durations = Durations()
    for length in lengths:
        durations.add(length)
    return durations


def test_nothing_known_gives_no_forecast() -> None:
    assert Durations().left() is None
    assert Forecasts().call("grep") is None
    assert Forecasts().pause() is None


def test_quantiles_lie_within_a_bin_of_the_true_ones() -> None:
    source = random.Random(1)
    lengths = sorted(source.lognormvariate(0, 1.5) for _ in range(60))
    left = learned(source.sample(lengths, 60)).left()
    assert left is not None
    # A quarter of an octave for the bin, and a little more since newer lengths weigh more.
    assert left.p50_s == pytest.approx(lengths[30], rel=0.5)
    assert left.p90_s == pytest.approx(lengths[54], rel=0.7)


def test_elapsed_time_rules_out_the_short_calls() -> None:
    durations = learned([0.005] * 9 + [60.0])
    at_once, later = durations.left(0.0), durations.left(1.0)
    assert at_once is not None
    assert later is not None
    assert at_once.p50_s < 0.01
    assert 40 < later.p50_s < 80


def test_wait_that_outlasted_everything_is_expected_to_last_as_long_again() -> None:
    left = learned([1.0] * 5).left(100.0)
    assert left is not None
    assert (left.p50_s, left.mean_s) == (100.0, 100.0)


def test_new_lengths_outweigh_old_ones() -> None:
    left = learned([0.01] * 200 + [30.0] * 100).left()
    assert left is not None
    assert left.p50_s > 20


@given(lengths=st.lists(LENGTHS, min_size=1, max_size=40), elapsed=LENGTHS)
def test_forecasts_are_ordered_and_never_negative(lengths: list[float], elapsed: float) -> None:
    durations = learned(lengths)
    left = durations.left(elapsed)
    assert left is not None
    assert 0 <= left.p50_s <= left.p90_s
    assert left.mean_s >= 0
    assert 0 <= durations.beyond(elapsed) <= 1 + 1e-9
    assert durations.beyond(elapsed) >= durations.beyond(elapsed * 2) - 1e-9


def test_tools_are_kept_apart_and_a_new_one_is_like_any_wait() -> None:
    forecasts = Forecasts()
    for _ in range(5):
        forecasts.call_ended("grep", 0.01)
        forecasts.call_ended("pytest", 40.0)
        forecasts.wait_ended(5.0)
    grep, pytest_, new = (forecasts.call(tool) for tool in ("grep", "pytest", "new"))
    assert grep is not None
    assert pytest_ is not None
    assert new is not None
    assert grep.p50_s < 0.02 < 4 < new.p50_s < 6 < 30 < pytest_.p50_s


def test_memory_is_bounded_however_many_tools_there_are() -> None:
    forecasts = Forecasts()
    for number in range(1000):
        forecasts.call_ended(f"tool-{number}", 1.0)
    assert len(forecasts._tools) == 256
    assert forecasts.call("tool-999") is not None


def test_document_of_report_gives_a_start(tmp_path: Path) -> None:
    document = json.loads(GOLDEN.read_text())
    path = tmp_path / "forecast.json"
    path.write_text(json.dumps(document))
    for source in (document, path, str(path)):
        forecasts = Forecasts.load(source)
        for row in document["tools"]:
            left = forecasts.call(row["tool"])
            assert left is not None
            assert left.p50_s == pytest.approx(max(row["p50_s"], 5e-4), rel=0.25)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"tools": [{"tool": "x"}], "any_tool": null}', '{"tools": 3, "any_tool": null}']
)
def test_broken_document_is_refused_with_what_makes_one(tmp_path: Path, content: str) -> None:
    path = tmp_path / "forecast.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="kvtrace report --forecast"):
        Forecasts.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.json"):
        Forecasts.load(tmp_path / "nowhere.json")


def test_longest_is_of_the_tool_or_of_anybodys_wait_and_is_forgotten_after_many_shorter_ones() -> None:
    forecasts = Forecasts()
    assert forecasts.longest_s("grep") is None
    forecasts.call_ended("grep", 0.01)
    forecasts.call_ended("pytest", 40.0)
    forecasts.wait_ended(3.0)
    assert forecasts.longest_s("grep") == pytest.approx(3.0, rel=0.2)
    assert forecasts.longest_s("new") == forecasts.longest_s("grep")
    assert forecasts.longest_s("pytest") == pytest.approx(40.0, rel=0.2)
    for _ in range(1000):
        forecasts.call_ended("pytest", 5.0)
    assert forecasts.longest_s("pytest") == pytest.approx(5.0, rel=0.2)
