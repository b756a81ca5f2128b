"""The waits on a logarithmic scale, as text."""

from __future__ import annotations

import doctest

import pytest

from kvtrace.analysis.render import axis, strip
from kvtrace.analysis.render.histogram import histogram_lines
from kvtrace.analysis.report import WindowBinReport

WAITS = (
    WindowBinReport(from_s=0.01, to_s=0.0178, windows=80, blocked_s=1.0),
    WindowBinReport(from_s=1.0, to_s=1.78, windows=40, blocked_s=40.0),
    WindowBinReport(from_s=56.2, to_s=100.0, windows=1, blocked_s=80.0),
)


def lines(width: int = 80, round_trip_s: float = 0.1) -> list[str]:
    return [line.plain for line in histogram_lines(WAITS, round_trip_s, width, 12)]


def test_bars_stand_at_their_length_and_keep_their_share() -> None:
    many, long, _, _ = lines()
    assert many[12:] == "████" + " " * 28 + "▄▄▄▄" + " " * 24 + "▁▁▁▁"
    assert long[12:] == "▁▁▁▁" + " " * 28 + "▄▄▄▄" + " " * 24 + "████"


def test_round_trip_is_marked_on_the_scale() -> None:
    _, _, scale, labels = lines()
    assert scale.startswith("▲ = 0.10 s  ")
    assert scale.index("▲", 12) == 12 + 16
    assert labels.split() == ["10", "ms", "100", "ms", "1", "s", "10", "s", "100", "s"]
    assert labels.index("1 s") + 1 == 12 + 32


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("round_trip_s", [0.0, 1e-5, 0.041, 5e4])
def test_lines_fit_any_width_and_round_trip(width: int, round_trip_s: float) -> None:
    assert max(map(len, lines(width, round_trip_s))) <= max(width, 60)
    assert lines(width, round_trip_s)[2].count("▲") == 2


def test_nothing_is_drawn_without_waits() -> None:
    assert histogram_lines((), 0.041, 80, 12) == []


@pytest.mark.parametrize("module", [axis, strip])
def test_examples_in_docstrings_hold(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
