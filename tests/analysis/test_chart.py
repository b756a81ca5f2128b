"""Marks and stretches: nothing of a timeline is lost, and never too many are drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.analysis import Study, open_study
from kvtrace.analysis.chart import Chart, read_chart
from kvtrace.analysis.render.gantt import UNITS, draw_gantt
from kvtrace.analysis.render.lanes import choose_lanes
from kvtrace.analysis.sample import sample_spans
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_span, write_otlp
from kvtrace.tracer import attributes as names


@contextmanager
def studied(tmp_path: Path, spans: Sequence[dict[str, Any]]) -> Iterator[tuple[Study, list[str]]]:
    with open_study([write_otlp(tmp_path / "spans.jsonl", spans)], host=FixedHost()) as study:
        yield study, [agent.agent for agent in study.report.agents]


def drawn_ns(chart: Chart) -> dict[str, int]:
    total: defaultdict[str, int] = defaultdict(int)
    for mark in chart.marks:
        total[mark.agent] += mark.stop_ns - mark.start_ns
    return total


@pytest.mark.parametrize("most", [20, 100, 5000])
def test_every_instant_of_every_agent_is_drawn_once(tmp_path: Path, most: int) -> None:
    with studied(tmp_path, list(sample_spans(4, 30, 2))) as (study, agents):
        chart = read_chart(study.connection, agents, most)
        walls_ns = {agent.agent: round(agent.wall_s * 1e9) for agent in study.report.agents}
    assert len(chart.marks) <= max(most, len(agents))
    assert drawn_ns(chart) == pytest.approx(walls_ns, abs=2)
    assert (chart.bin_ns is None) == (chart.changes <= most)


@contextmanager
def timeline_of(runs: Sequence[tuple[str, int, int]]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with nothing but one agent's timeline: state, start, stop."""
    with duckdb.connect() as connection:
        connection.execute(
            "create table timeline (variant text, agent text, state text, start_ns bigint, stop_ns bigint)"
        )
        connection.execute(
            "create table spans (agent text, kind text, name text, start_ns bigint, stop_ns bigint, "
            "input_tokens bigint, output_tokens bigint)"
        )
        connection.executemany("insert into timeline values ('seen', 'a', ?, ?, ?)", runs)
        yield connection


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=30),
    gap=st.sampled_from([0, 3, 500, 10**9]),
    most=st.sampled_from([3, 8, 5000]),
)
def test_marks_follow_each_other_inside_their_stretch(lengths: list[int], gap: int, most: int) -> None:
    lengths[len(lengths) // 2] += gap
    states = ["overhead" if length > 400 else ("generating", "blocked_tool")[i % 2] for i, length in enumerate(lengths)]
    stops = list(accumulate(lengths))
    runs = [(state, stop - length, stop) for state, length, stop in zip(states, lengths, stops, strict=True)]
    with timeline_of(runs) as connection:
        chart = read_chart(connection, ["a"], most)
    stretches = {stretch.stretch: stretch for stretch in chart.stretches}
    reached = 0
    for mark in chart.marks:
        assert max(reached, stretches[mark.stretch].start_ns) <= mark.start_ns < mark.stop_ns
        assert mark.stop_ns <= stretches[mark.stretch].stop_ns
        reached = mark.stop_ns
    assert sum(mark.changes for mark in chart.marks) >= len(chart.marks)


def test_long_idleness_parts_the_stretches(tmp_path: Path) -> None:
    spans = [
        otlp_span("chat", 0, 10, span=1, agent="a"),
        otlp_span("execute_tool", 10.1, 20, span=2, agent="a", attributes={names.GEN_AI_TOOL_NAME: "grep"}),
        otlp_span("chat", 1000, 1010, span=3, agent="a"),
    ]
    with studied(tmp_path, spans) as (study, agents):
        chart = read_chart(study.connection, agents)
    assert [(s.start_ns, s.stop_ns) for s in chart.stretches] == [(at_ns(0), at_ns(20)), (at_ns(1000), at_ns(1010))]
    assert [(mark.state, mark.stretch, mark.tools) for mark in chart.marks] == [
        ("generating", 0, []),
        ("overhead", 0, []),
        ("blocked_tool", 0, ["grep"]),
        ("generating", 1, []),
    ]


def test_cache_held_is_told_by_the_last_model_call(tmp_path: Path) -> None:
    usage = {names.GEN_AI_USAGE_INPUT_TOKENS: 900, names.GEN_AI_USAGE_OUTPUT_TOKENS: 100}
    spans = [
        otlp_span("chat", 0, 100, span=1, agent="a", attributes=usage),
        otlp_span("execute_tool", 100, 400, span=2, agent="a"),
        otlp_span("execute_tool", 0, 200, span=3, agent="silent"),
    ]
    with studied(tmp_path, spans) as (study, agents):
        chart = read_chart(study.connection, agents)
        gantt = draw_gantt(chart, choose_lanes(study.report.agents, 4), study.report.agents, 1_000_000)
    assert {(held.working_tokens, held.idle_tokens) for held in chart.held} == {(1000, 0), (0, 1000)}
    assert sum(held.idle_tokens for held in chart.held) == 3 * sum(held.working_tokens for held in chart.held)
    assert gantt is not None
    assert gantt.held is not None
    assert gantt.held.most == "1.0 GB"
    assert "75 % of it idle" in gantt.held.says


def test_no_cache_is_drawn_where_no_tokens_are_told(tmp_path: Path) -> None:
    with studied(tmp_path, [otlp_span("chat", 0, 4, span=1, agent="a")]) as (study, agents):
        assert read_chart(study.connection, agents).held == ()


def test_geometry_fills_the_width_in_both_layouts(tmp_path: Path) -> None:
    with studied(tmp_path, list(sample_spans(6, 12, 4, gap_s=900))) as (study, agents):
        chart = read_chart(study.connection, agents)
        gantt = draw_gantt(chart, choose_lanes(study.report.agents, 4), study.report.agents, 1000)
    assert gantt is not None
    assert [layout.name for layout in gantt.layouts] == ["squeezed", "true"]
    assert gantt.note == "The 4 agents of the longest wall clock out of 6."
    for layout in gantt.layouts:
        last = layout.slots[-1]
        assert last.start + last.width == pytest.approx(100)
        assert all(tick.at < 100 for tick in layout.ticks)
    for lane in gantt.lanes:
        for stretch, bars in lane.stretches:
            room = gantt.layouts[0].slots[stretch].width / 100 * UNITS
            assert max(bar.x + bar.width for bar in bars) <= room + 1.1


def test_sub_agents_follow_their_parent_and_circles_end(tmp_path: Path) -> None:
    def member(number: int, agent: str, parent: str) -> list[dict[str, Any]]:
        above = {names.PARENT_AGENT_ID: parent}
        return [
            otlp_span("invoke_agent", number, number + 5, span=1, trace=number, agent=agent, attributes=above),
            otlp_span("chat", number, number + 4, span=2, parent=1, trace=number, agent=agent),
        ]

    spans = [*member(1, "top", ""), *member(2, "x", "y"), *member(3, "y", "x"), *member(4, "kid", "top")]
    with studied(tmp_path, spans) as (study, _):
        places = [(place.agent.agent, place.depth) for place in choose_lanes(study.report.agents, 10)]
    assert places == [("top", 0), ("kid", 1), ("x", 0), ("y", 0)]
