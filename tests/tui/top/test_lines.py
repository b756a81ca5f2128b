"""Cells, bars, sparklines and short numbers are as wide as they say and hide nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kvtrace.tui.top.lines import (
    amount,
    bar,
    cell,
    first_that_fits,
    fit,
    of_total,
    seconds,
    spark,
    spread,
    text_of,
    width_of,
)

TEXTS = st.text(st.characters(exclude_categories=["C", "M", "Z"]), max_size=30)
LINES = st.lists(st.tuples(TEXTS, st.just("")), max_size=5)


@given(LINES, st.integers(0, 60))
def test_fitted_line_has_exactly_the_width(line: list[tuple[str, str]], width: int) -> None:
    assert width_of(fit(line, width)) == width


@given(TEXTS, st.integers(1, 40), st.booleans())
def test_cell_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(cell(text, width, right)) == width


def test_cell_marks_what_was_cut_off() -> None:
    assert cell("refactor-12", 6) == "refac~"
    assert cell("größer", 4) == "grö…"


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=5), st.integers(0, 80))
def test_bar_fills_its_cells_and_hides_no_part_that_has_room(amounts: list[float], width: int) -> None:
    fillings = "abcde"
    line = bar([(value, fillings[at], "") for at, value in enumerate(amounts)], sum(amounts), width)
    drawn = text_of(line)
    assert len(drawn) == width
    some = [fillings[at] for at, value in enumerate(amounts) if value > 0]
    if width >= len(some):
        assert set(some) == set(drawn) - {" "}


def test_bar_is_in_proportion() -> None:
    assert text_of(bar([(50.0, "#", ""), (25.0, ".", "")], 100.0, 8)) == "####..  "


@given(st.lists(st.floats(0, 1e9), max_size=50), st.integers(0, 30), st.booleans())
def test_spark_has_one_mark_a_value_and_blanks_before(values: list[float], width: int, plain: bool) -> None:
    drawn = spark(values, width, max(values, default=0.0), plain)
    assert len(drawn) == width
    assert len(drawn.strip()) == min(len(values), width)


@given(st.floats(0, 9.99e14))
def test_amount_never_takes_more_than_five_characters(value: float) -> None:
    assert len(amount(value)) <= 5


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        (0, "-"),
        (999, "999"),
        (999.9, "1.0k"),
        (6900, "6.9k"),
        (999_999, "1.0M"),
        (1.01e9, "1.01G"),
        (12.5e9, "12.5G"),
    ],
)
def test_amounts_are_short_and_rounded(value: float | None, said: str) -> None:
    assert amount(value) == said


@given(st.floats(0, 8e6))
def test_seconds_never_take_more_than_six_characters(value: float) -> None:
    assert len(seconds(value)) <= 6


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0.0s"), (99.96, "1m40s"), (754, "12m34s"), (3599.7, "1h00m"), (200_000, "2d07h")]
)
def test_seconds_change_their_unit(value: float, said: str) -> None:
    assert seconds(value) == said


@pytest.mark.parametrize(
    ("used", "total", "said"),
    [
        (8_110_000_000, 16e9, "8.1/16.0 GB"),
        (11_800_000, 12_600_000, "12/13 MB"),
        (0, 16e9, "0.0/16.0 GB"),
        (0, 0, "0.0/0.0 GB"),
        (51e9, None, "51.0 GB"),
        (3_000_000, None, "3 MB"),
    ],
)
def test_a_part_and_its_whole_are_in_one_unit(used: float, total: float | None, said: str) -> None:
    assert of_total(used, total) == said


def test_first_choice_that_fits_is_taken_and_the_last_is_cut() -> None:
    long, short = [("long words", "")], [("short", "")]
    assert first_that_fits([long, short], 10) == long
    assert first_that_fits([long, short], 9) == short
    assert text_of(first_that_fits([long, short], 3)) == "sho"


def test_spread_puts_both_ends_apart_or_drops_the_right_one() -> None:
    assert text_of(spread([("ab", "")], [("yz", "")], 6)) == "ab  yz"
    assert text_of(spread([("abcd", "")], [("yz", "")], 6)) == "abcd  "
