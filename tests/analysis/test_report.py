"""Hand-written timelines whose figures can be told by looking at them. Instants are seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtrace.analysis import NoDataError, ReportOptions, build_report
from kvtrace.analysis.render.caveats import caveats
from kvtrace.analysis.report import AgentReport, Report
from kvtrace.analysis.sources.values import text
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_span, write_otlp
from kvtrace.tracer import attributes as names

TOOL, MODEL, RUN, HUMAN = "execute_tool", "chat", "invoke_agent", "kvtrace.human_wait"
OURS = {names.RUN_ID: "r", names.PROCESS_PID: 7, names.HOST_NAME: "h", names.PROCESS_START: at_ns(0)}
Spans = list[dict[str, Any]]


def report(
    tmp_path: Path, spans: Spans, resource: Mapping[str, Any] | None = None, host: FixedHost | None = None
) -> Report:
    path = write_otlp(tmp_path / "spans.jsonl", spans, resource)
    os.utime(path, ns=(at_ns(20), at_ns(20)))
    return build_report([path], host=host or FixedHost())


def only_agent(tmp_path: Path, spans: Spans, **more: Any) -> AgentReport:
    (agent,) = report(tmp_path, spans, **more).agents
    return agent


def states(agent: AgentReport) -> tuple[float, ...]:
    """Blocked, human, queued, overhead seconds."""
    return agent.blocked_s, agent.human_s, agent.queued_s, agent.overhead_s


def test_plain_loop_of_model_and_tool(tmp_path: Path) -> None:
    agent = only_agent(
        tmp_path,
        [
            otlp_span(RUN, 0, 10, span=1, agent="a", attributes={names.GEN_AI_AGENT_NAME: "ada"}),
            otlp_span(MODEL, 0, 4, span=2, parent=1, agent="a"),
            otlp_span(TOOL, 4, 9, span=3, parent=1, agent="a"),
        ],
    )
    assert (agent.agent, agent.name, agent.parent) == ("a", "ada", None)
    assert (agent.wall_s, agent.generating_s, agent.tool_union_s) == (10, 4, 5)
    assert states(agent) == (5, 0, 0, 1)
    assert agent.b == agent.b_low == agent.b_high == agent.b_wall == agent.b_idle == 0.5
    assert agent.b_busy == pytest.approx(5 / 9)
    assert agent.b_evictable == pytest.approx(0.4959)


def test_parallel_tools_are_a_union(tmp_path: Path) -> None:
    agent = only_agent(
        tmp_path,
        [
            otlp_span(MODEL, 0, 2, span=1, agent="a"),
            otlp_span(TOOL, 2, 6, span=2, agent="a"),
            otlp_span(TOOL, 3, 8, span=3, agent="a"),
        ],
    )
    assert (agent.tool_calls, agent.windows) == (2, 1)
    assert agent.blocked_s == agent.tool_union_s == 6


def test_model_and_tool_that_overlap_generate(tmp_path: Path) -> None:
    agent = only_agent(tmp_path, [otlp_span(MODEL, 0, 5, span=1, agent="a"), otlp_span(TOOL, 3, 9, span=2, agent="a")])
    assert (agent.generating_s, agent.tool_union_s, agent.blocked_s) == (5, 6, 4)


@pytest.mark.parametrize("between", [False, True])
def test_tool_inside_a_model_call_blocks(tmp_path: Path, between: bool) -> None:
    spans = [
        otlp_span(MODEL, 0, 10, span=1, agent="a"),
        otlp_span(None, 2, 8, span=2, parent=1),
        otlp_span(TOOL, 3, 6, span=3, parent=2 if between else 1, agent="a"),
        otlp_span(MODEL, 4, 5, span=4, parent=3, agent="a"),
    ]
    agent = only_agent(tmp_path, spans)
    assert agent.generating_s == 10
    assert agent.blocked_s == 2


def test_queueing_comes_out_of_the_model_calls_around_it(tmp_path: Path) -> None:
    waits = {names.QUEUED_INTERVALS: [at_ns(1), at_ns(3), at_ns(2), at_ns(4), at_ns(9), at_ns(50)]}
    agent = only_agent(
        tmp_path,
        [
            otlp_span(MODEL, 0, 10, span=1, agent="a"),
            otlp_span(MODEL, 1, 9.5, span=2, parent=1, agent="a", attributes=waits),
        ],
    )
    assert states(agent) == (0, 0, 3.5, 0)


def test_permission_wait_is_human_unless_another_tool_runs(tmp_path: Path) -> None:
    agent = only_agent(
        tmp_path,
        [
            otlp_span(MODEL, 0, 1, span=1, agent="a"),
            otlp_span(TOOL, 1, 9, span=2, agent="a"),
            otlp_span(HUMAN, 2, 6, span=3, parent=2, agent="a"),
            otlp_span(TOOL, 4, 5, span=4, agent="a"),
        ],
    )
    assert states(agent) == (5, 3, 0, 0)
    assert agent.b == pytest.approx(5 / 6)
    assert agent.b_idle == pytest.approx(8 / 9)


def test_gap_between_runs_of_one_agent_is_human(tmp_path: Path) -> None:
    spans = [
        otlp_span(RUN, 0, 3, span=1, agent="a"),
        otlp_span(MODEL, 0, 3, span=2, parent=1, agent="a"),
        otlp_span(RUN, 7, 10, span=3, trace=2, agent="a"),
        otlp_span(TOOL, 6, 9, span=4, trace=2, agent="a"),
    ]
    assert states(only_agent(tmp_path, spans)) == (3, 3, 0, 1)


def test_gap_between_the_traces_of_a_conversation_is_human(tmp_path: Path) -> None:
    named = {names.GEN_AI_CONVERSATION_ID: "c", names.GEN_AI_AGENT_NAME: "ada"}
    spans = [
        otlp_span(RUN, 0, 3, span=1, attributes=named),
        otlp_span(MODEL, 0, 3, span=2, parent=1),
        # Between two runs of one trace another agent of the conversation worked.
        otlp_span(RUN, 5, 6, span=3, attributes=named),
        otlp_span(RUN, 20, 22, span=4, trace=2, attributes=named),
        otlp_span(TOOL, 20, 22, span=5, parent=4, trace=2),
    ]
    result = report(tmp_path, spans)
    assert states(result.agents[0]) == (2, 14, 0, 3)
    assert "approvals not visible (they count as tool time)" in result.sources[0].cannot_show


def test_sub_agent_blocks_its_parent_once(tmp_path: Path) -> None:
    spans = [
        otlp_span(RUN, 0, 20, span=1, agent="boss"),
        otlp_span(MODEL, 0, 2, span=2, parent=1, agent="boss"),
        otlp_span(TOOL, 2, 8, span=3, parent=1, agent="boss", name="execute_tool delegate"),
        otlp_span(RUN, 3, 7, span=4, parent=3, agent="kid", attributes={names.GEN_AI_AGENT_NAME: "kid"}),
        otlp_span(MODEL, 3, 6, span=5, parent=4, agent="kid"),
        otlp_span(
            RUN, 10, 14, span=6, trace=2, agent="far",
            attributes={names.PARENT_AGENT_ID: "boss", names.GEN_AI_AGENT_NAME: "far"},
        ),
        otlp_span(MODEL, 10, 11, span=7, trace=2, parent=6, agent="far"),
    ]  # fmt: skip
    result = report(tmp_path, spans)
    boss, kid, far = result.agents
    assert (kid.parent, far.parent) == ("boss", "boss")
    assert (boss.tool_calls, boss.blocked_s, boss.model_elsewhere_s) == (2, 10, 4)
    assert (kid.wall_s, kid.generating_s, kid.blocked_s) == (4, 3, 0)
    assert {tool.tool for tool in result.tools} == {"delegate", "agent:far"}


def test_owner_is_found_in_the_agreed_order(tmp_path: Path) -> None:
    named = {names.GEN_AI_CONVERSATION_ID: "c", names.GEN_AI_AGENT_NAME: "n"}
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="explicit", attributes=named),
        otlp_span(MODEL, 0, 1, span=2, trace=2, attributes=named),
        otlp_span(RUN, 0, 1, span=3, trace=3),
        otlp_span(None, 0, 1, span=4, trace=3, parent=3),
        otlp_span(TOOL, 0, 1, span=5, trace=3, parent=4, attributes={names.GEN_AI_CONVERSATION_ID: "c"}),
        otlp_span(TOOL, 0, 1, span=6, trace=4, parent=99),
    ]
    result = report(tmp_path, spans)
    trace = [f"{number:032x}" for number in range(5)]
    assert {agent.agent for agent in result.agents} == {"explicit", "c/n", f"{trace[3]}/{3:016x}", trace[4]}
    assert result.pooled.anomalies.parent_missing == 1


def test_open_call_of_a_dead_process_lasts_to_the_last_touch(tmp_path: Path) -> None:
    spans = [otlp_span(MODEL, 0, 10, span=1, agent="a"), otlp_span(TOOL, 10, None, span=2, agent="a")]
    agent = only_agent(tmp_path, spans, resource=OURS)
    assert (agent.wall_s, agent.blocked_s, agent.open_calls, agent.running) == (20, 10, 1, False)
    assert (agent.b_low, agent.b, agent.b_high) == (0, 0.5, 0.5)


def test_open_call_of_a_live_process_lasts_until_now(tmp_path: Path) -> None:
    spans = [otlp_span(MODEL, 0, 10, span=1, agent="a"), otlp_span(TOOL, 10, None, span=2, agent="a")]
    result = report(tmp_path, spans, OURS, FixedHost(now_s=40, running=frozenset({7})))
    assert result.agents[0].running
    assert (result.pooled.b_low, result.pooled.b_high) == (0, 0.75)


def test_open_call_of_a_foreign_file_lasts_to_its_latest_instant(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 4, span=1, agent="a"),
        otlp_span(TOOL, 4, None, span=2, agent="a"),
        otlp_span(MODEL, 0, 8, span=3, agent="b"),
    ]
    assert report(tmp_path, spans).agents[0].b_high == 0.5


def test_start_record_gives_way_to_the_complete_one(tmp_path: Path) -> None:
    complete = otlp_span(TOOL, 2, 5, span=2, agent="a")
    start = otlp_span(TOOL, 2, None, span=2, agent="a")
    for order in ([start, complete], [complete, start]):
        result = report(tmp_path, [otlp_span(MODEL, 0, 2, span=1, agent="a"), *order], OURS)
        assert (result.pooled.open_calls, result.pooled.tool_calls, result.pooled.blocked_s) == (0, 1, 3)
        assert result.pooled.anomalies.duplicates == 0


def test_same_spans_in_two_files_count_once(tmp_path: Path) -> None:
    spans = [otlp_span(MODEL, 0, 2, span=1, agent="a"), otlp_span(TOOL, 2, 5, span=2, agent="a")]
    paths = [write_otlp(tmp_path / name, spans) for name in ("one.jsonl", "two.jsonl")]
    once, twice = build_report(paths[:1], host=FixedHost()), build_report(paths, host=FixedHost())
    assert twice.agents == once.agents
    assert twice.tools == once.tools
    assert twice.pooled.anomalies.duplicates == 2
    assert build_report([tmp_path, paths[0]], host=FixedHost()).sources == twice.sources


def test_backward_and_empty_spans_are_counted_not_measured(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 2, span=1, agent="a"),
        otlp_span(TOOL, 2, 1, span=2, agent="a"),
        otlp_span(TOOL, 2, 2, span=3, agent="a"),
        otlp_span(TOOL, None, 3, span=4, agent="a"),
        otlp_span(TOOL, 2, 3, span=5, parent=5, agent="a"),
    ]
    result = report(tmp_path, spans)
    odd = result.pooled.anomalies
    assert (odd.backward, odd.zero_length, odd.untimed, odd.parent_circular) == (1, 1, 1, 1)
    assert (result.pooled.blocked_s, result.pooled.tool_calls, result.pooled.wall_s) == (1, 3, 3)


def test_nothing_over_nothing_is_null(tmp_path: Path) -> None:
    result = report(tmp_path, [otlp_span(MODEL, 1, 1, span=1, agent="a")])
    pooled, agent = result.pooled, result.agents[0]
    assert agent.b is agent.b_low is agent.b_high is agent.b_wall is agent.b_busy is agent.b_idle is None
    assert pooled.b is pooled.capacity.ideal is pooled.windows.p50_s is pooled.b_interval_low is None
    assert pooled.decision.verdict == "unknown"


def test_pooled_shares_are_weighted_by_time(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="short"),
        otlp_span(TOOL, 1, 2, span=2, agent="short"),
        otlp_span(MODEL, 0, 90, span=3, agent="long"),
        otlp_span(TOOL, 90, 98, span=4, agent="long"),
    ]
    pooled = report(tmp_path, spans).pooled
    assert pooled.b == pytest.approx(0.09)
    assert pooled.b_interval_low == pytest.approx(8 / 98)
    assert pooled.b_interval_high == pytest.approx(0.5)
    assert pooled.generation_per_step_s == 45.5


def test_waits_shorter_than_the_round_trip_are_told_apart(tmp_path: Path) -> None:
    spans = [
        otlp_span(MODEL, 0, 1, span=1, agent="a"),
        otlp_span(TOOL, 1, 1.01, span=2, agent="a", name="execute_tool read"),
        otlp_span(MODEL, 1.01, 2, span=3, agent="a"),
        otlp_span(TOOL, 2, 2.99, span=4, agent="a", name="execute_tool bash"),
    ]
    result = report(tmp_path, spans)
    windows = result.pooled.windows
    assert (windows.count, windows.shorter_than_round_trip) == (2, 0.5)
    assert windows.blocked_shorter_than_round_trip == pytest.approx(0.01)
    bash, read = result.tools
    assert (bash.tool, bash.calls, bash.shorter_than_round_trip, read.shorter_than_round_trip) == ("bash", 1, 0, 1)
    assert bash.p50_s == pytest.approx(0.99)
    assert read.share == pytest.approx(0.01)
    longer = build_report([tmp_path], options=ReportOptions(round_trip_ms=1000), host=FixedHost()).pooled
    assert (longer.b_evictable, longer.windows.shorter_than_round_trip) == (0, 1)


def test_every_source_says_what_it_cannot_show(tmp_path: Path) -> None:
    calls = [otlp_span(MODEL, 0, 2, span=1, agent="a"), otlp_span(TOOL, 2, 5, span=2, agent="a")]
    foreign, ours = report(tmp_path, calls).sources[0], report(tmp_path, calls, OURS).sources[0]
    assert [limit.split(" (")[0] for limit in foreign.cannot_show] == [
        "queue not visible",
        "approvals and turns not visible",
        "retries not visible",
    ]
    assert "approvals" not in " ".join(ours.cannot_show)
    queued = {names.QUEUED_INTERVALS: [at_ns(0), at_ns(1)]}
    seen = report(tmp_path, [otlp_span(MODEL, 0, 2, span=1, agent="a", attributes=queued)]).sources[0]
    assert "queue" not in " ".join(seen.cannot_show)


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        ([otlp_span(TOOL, None, None, span=1)], "none of the 1 calls"),
        ([otlp_span(None, 0, 1, span=1)], "no tool call and no model call"),
        ([otlp_span(RUN, 0, 1, span=1)], "no tool call and no model call"),
        ([], "the file is empty"),
        ([{"traceId": "", "name": "x"}], "line 1: span without traceId"),
    ],
)
def test_no_figure_comes_with_a_reason(tmp_path: Path, spans: Spans, reason: str) -> None:
    with pytest.raises(NoDataError, match=reason):
        report(tmp_path, spans)


def test_unreadable_file_is_said_and_the_rest_counts(tmp_path: Path) -> None:
    write_otlp(tmp_path / "a.jsonl", [otlp_span(MODEL, 0, 2, span=1, agent="a")])
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.jsonl").write_bytes(b'{"resourceSpans": [\xff')
    first, second, third = build_report([tmp_path], host=FixedHost()).sources
    assert (first.spans, first.skipped) == (1, 0)
    assert (second.kind, second.skipped_lines[0].why) == (None, "of no known kind")
    assert (third.spans, third.skipped_lines[0].line) == (0, 1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(min_size=1), min_size=1, max_size=20, unique=True))
def test_names_of_any_characters_survive_loading(tmp_path: Path, wild: list[str]) -> None:
    spans = [
        otlp_span(TOOL, 0, 1, span=number, agent="a", attributes={names.GEN_AI_TOOL_NAME: name})
        for number, name in enumerate(wild, 1)
    ]
    expected = {text(name) for name in wild}
    assert {tool.tool for tool in report(tmp_path, spans).tools} == expected


def test_control_characters_of_names_are_replaced(tmp_path: Path) -> None:
    odd = 'a,"b"\n\x00\x1b\ud800;é'
    span = otlp_span(TOOL, 0, 1, span=1, agent="a", attributes={names.GEN_AI_TOOL_NAME: odd})
    assert report(tmp_path, [span]).tools[0].tool == 'a,"b"\ufffd\ufffd\ufffd\ufffd;é'


def test_workflow_around_agents_is_no_agent(tmp_path: Path) -> None:
    spans = [
        otlp_span("invoke_workflow", 0, 10, span=1, name="flow"),
        otlp_span(RUN, 0, 6, span=2, parent=1, name="outer"),
        otlp_span(RUN, 1, 5, span=3, parent=2, agent="inner"),
        otlp_span(MODEL, 1, 3, span=4, parent=3, agent="inner"),
        otlp_span(TOOL, 3, 5, span=5, parent=3, agent="inner", attributes={names.GEN_AI_TOOL_NAME: "grep"}),
    ]
    result = report(tmp_path, spans)
    assert [agent.agent for agent in result.agents] == ["inner"]
    assert (result.pooled.b, result.pooled.blocked_s, result.pooled.windows.count) == (0.5, 2, 1)
    assert [tool.tool for tool in result.tools] == ["grep"]
    assert (result.pooled.anomalies.containers, result.pooled.anomalies.idle_agents) == (2, 0)
    assert "2 agents that only held other agents together left out" in caveats(result)
