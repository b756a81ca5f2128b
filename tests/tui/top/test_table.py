"""Rows in order, columns that fit, strips that show what took longest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.engine.records import AgentState
from kvtrace.tui.feed.contract import Sample
from kvtrace.tui.top import table
from kvtrace.tui.top.history import History
from kvtrace.tui.top.lines import text_of, width_of
from kvtrace.tui.top.looks import LOOKS, Shown
from kvtrace.tui.top.view import Layout, Sort, View

from .conftest import START_NS, record, sample


def _names(shown: Sample, view: View) -> list[str]:
    history = History()
    history.add(shown)
    return [row.agent.agent for row in table.rows(shown, history, view)]


def test_names_sort_as_people_count() -> None:
    assert _names(sample(*(record(f"docs-{n}") for n in (10, 9, 1))), View()) == ["docs-1", "docs-9", "docs-10"]


def test_numbers_sort_largest_first_and_reverse_turns_them_round() -> None:
    shown = sample(record("a", b=0.1), record("b", b=None), record("c", b=0.9))
    assert _names(shown, View(sort=Sort.B)) == ["c", "a", "b"]
    assert _names(shown, View(sort=Sort.B, reverse=True)) == ["b", "a", "c"]


@pytest.mark.parametrize("sort", Sort)
def test_every_column_sorts_agents_with_unknown_figures(sort: Sort) -> None:
    shown = sample(record("a", tokens_per_s=None, b=None), record("b", AgentState.HUMAN, tokens_per_s=3.0))
    assert sorted(_names(shown, View(sort=sort))) == ["a", "b"]


def test_filter_finds_names_states_and_tools_and_wants_all_words() -> None:
    shown = sample(
        record("api-1", AgentState.PARKED, tool="pytest"),
        record("api-2", AgentState.PARKED, tool="bash"),
        record("docs-1"),
    )
    assert _names(shown, View(filter="parked PYT")) == ["api-1"]
    assert _names(shown, View(filter="api")) == ["api-1", "api-2"]
    assert _names(shown, View(filter="nobody")) == []


def test_frozen_rows_keep_their_order_and_new_ones_come_last() -> None:
    shown = sample(record("a", since_s=1.0), record("b", since_s=9.0), record("c", since_s=5.0))
    history = History()
    history.add(shown)
    rows = table.rows(shown, history, View(sort=Sort.SINCE))
    assert [row.agent.agent for row in table.keep_order(rows, ["a", "b"])] == ["a", "b", "c"]


def test_queue_places_and_restored_share_are_told() -> None:
    shown = sample(
        record("a", AgentState.QUEUED, since_s=1.0),
        record("b", AgentState.QUEUED, since_s=4.0),
        record("c", AgentState.RESTORING, vram_bytes=147_456 * 600),
        record("d"),
    )
    history = History()
    history.add(shown)
    drawing = table.Drawing(
        table.columns_for(120, Layout.WIDE, True), history, shown.snapshot.time_unix_ns, Layout.WIDE, False
    )
    text = "\n".join(text_of(table.row_line(row, drawing, False)) for row in table.rows(shown, history, View()))
    assert "queued #2" in text.splitlines()[0]
    assert "queued #1" in text.splitlines()[1]
    assert "restoring 60%" in text.splitlines()[2]


@given(st.integers(1, 250), st.sampled_from(Layout), st.booleans(), st.integers(0, 60))
def test_columns_fit_any_width_that_holds_the_least_of_them(
    width: int, layout: Layout, knows: bool, longest: int
) -> None:
    columns = table.columns_for(width, layout, knows, longest)
    total = sum(column.width + 1 for column in columns)
    assert columns[0].sort is Sort.AGENT
    assert total <= max(width, 36)


def test_state_outlives_every_other_column_but_name_and_time() -> None:
    assert [column.sort for column in table.columns_for(20, Layout.COMPACT, True)] == [
        Sort.AGENT,
        Sort.STATE,
        Sort.SINCE,
    ]


@pytest.mark.parametrize("ascii_only", [False, True])
def test_strip_shows_what_took_longest_in_each_cell(ascii_only: bool) -> None:
    spells = [(0, 26, Shown.GENERATING), (26, 40, Shown.PARKED)]
    line = table.strip_of(spells, 0, 40, 4, ascii_only)
    work, parked = (LOOKS[s].ascii_fill if ascii_only else LOOKS[s].fill for s in (Shown.GENERATING, Shown.PARKED))
    assert text_of(line) == work * 3 + parked


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.sampled_from(list(Shown))), max_size=8),
    st.integers(1, 40),
)
def test_strip_has_a_cell_for_every_cell(spells: list[tuple[int, int, Shown]], width: int) -> None:
    ordered = [(min(a, b), max(a, b), state) for a, b, state in spells]
    assert width_of(table.strip_of(ordered, 0, 100, width, False)) == width


def test_clicked_cell_names_its_column() -> None:
    columns = table.columns_for(120, Layout.WIDE, True)
    found = table.column_at(columns, 1)
    assert found is not None
    assert found.sort is Sort.AGENT
    assert table.column_at(columns, 500) is None
    heading = text_of(table.heading(columns, View(), 120))
    at = heading.index("VRAM")
    found = table.column_at(columns, at)
    assert found is not None
    assert found.sort is Sort.VRAM


def test_every_state_looks_different_in_glyph_and_in_word() -> None:
    looks = LOOKS.values()
    for values in (
        [look.glyph for look in looks],
        [look.word for look in looks],
        [look.fill for look in looks],
        [look.style for look in looks],
    ):
        assert len(set(values)) == len(LOOKS)


def test_strip_of_a_paused_table_ends_when_it_was_paused() -> None:
    history = History()
    history.add(sample(record(since_s=60.0), at_s=0))
    history.add(sample(record(state=AgentState.PARKED, tool="bash", since_s=9.9), at_s=10))
    drawing = table.Drawing((), history, START_NS, Layout.WIDE, False)
    assert set(text_of(table.strip("api-1", drawing, 10))) == {LOOKS[Shown.GENERATING].fill}
