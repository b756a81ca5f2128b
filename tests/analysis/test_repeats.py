"""What two instrumentations saw counts once; nobody is one agent everywhere; a paused generator blocks nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtrace.analysis import build_report
from kvtrace.analysis.report import Report
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_span, write_otlp
from kvtrace.tracer import attributes as names

TOOL, MODEL, RUN = "execute_tool", "chat", "invoke_agent"


def report(tmp_path: Path, *spans: dict[str, Any]) -> Report:
    return build_report([write_otlp(tmp_path / "spans.jsonl", spans)], host=FixedHost())


def tool(
    start: float, end: float | None, span: int, parent: int = 0, name: str = "grep", **more: Any
) -> dict[str, Any]:
    given = {names.GEN_AI_TOOL_NAME: name, **{key.replace("__", "."): value for key, value in more.items()}}
    return otlp_span(TOOL, start, end, span=span, parent=parent, agent="a", attributes=given)


def test_framework_and_client_span_of_a_model_call_count_once(tmp_path: Path) -> None:
    pooled = report(
        tmp_path,
        otlp_span(MODEL, 0, 5, span=1, agent="a"),
        otlp_span(None, 0, 5, span=2, parent=1),
        otlp_span(MODEL, 1, 4, span=3, parent=2, agent="a"),
    ).pooled
    assert (pooled.model_calls, pooled.generating_s, pooled.generation_per_step_s) == (1, 5, 5)
    assert pooled.anomalies.repeated_calls == 1


def test_model_call_of_a_tool_inside_a_model_call_is_another_one(tmp_path: Path) -> None:
    pooled = report(
        tmp_path,
        otlp_span(MODEL, 0, 9, span=1, agent="a"),
        tool(2, 8, 2, 1),
        otlp_span(MODEL, 3, 6, span=3, parent=2, agent="a"),
    ).pooled
    assert (pooled.model_calls, pooled.tool_calls, pooled.generating_state_s, pooled.blocked_s) == (2, 1, 6, 3)


def test_tool_inside_a_tool_of_the_same_name_counts_once(tmp_path: Path) -> None:
    found = report(tmp_path, tool(0, 5, 1), tool(1, 4, 2, 1), tool(2, 3, 3, 2, name="sed"))
    assert found.pooled.tool_calls == 2
    assert {(each.tool, each.calls, each.total_s) for each in found.tools} == {("grep", 1, 5), ("sed", 1, 1)}
    assert found.pooled.blocked_s == 5


def test_overlapping_spans_of_one_call_id_count_once(tmp_path: Path) -> None:
    call: dict[str, Any] = {"gen_ai__tool__call__id": "c1"}
    found = report(tmp_path, tool(1, 5, 1, name="grep.tool", **call), tool(0, 4, 2, **call), tool(7, 8, 3, **call))
    assert (found.pooled.tool_calls, found.pooled.blocked_s, found.pooled.anomalies.repeated_calls) == (2, 6, 1)


def test_copies_that_name_each_other_never_vanish(tmp_path: Path) -> None:
    call: dict[str, Any] = {"gen_ai__tool__call__id": "c1"}
    assert report(tmp_path, tool(1, 5, 1, **call), tool(0, 5, 2, 1, **call)).pooled.tool_calls == 1
    assert report(tmp_path, tool(1, 5, 1, **call), tool(1, 5, 2, 1, **call)).pooled.tool_calls == 1


def test_open_copy_of_a_call_keeps_the_range(tmp_path: Path) -> None:
    found = report(tmp_path, otlp_span(MODEL, 0, 4, span=9, agent="a"), tool(0, 1, 1), tool(0, None, 2, 1)).pooled
    assert (found.tool_calls, found.open_calls) == (1, 0)
    assert found.b_low is not None
    assert found.b is not None
    assert found.b_low <= found.b


def test_unknown_agent_is_not_one_agent_across_traces(tmp_path: Path) -> None:
    unknown = names.UNKNOWN_AGENT
    found = report(
        tmp_path,
        otlp_span(RUN, 0, 9, span=1, trace=1),
        otlp_span(TOOL, 1, 3, span=2, parent=1, trace=1, agent=unknown),
        otlp_span(TOOL, 100, 104, span=3, trace=2, agent=unknown),
    )
    assert [agent.agent for agent in found.agents] == [f"{1:032x}/{1:016x}", f"{2:032x}"]
    assert found.pooled.wall_s == 13
    assert found.pooled.anomalies.agent_unknown == 2


def test_consumer_of_a_generator_is_not_the_tools_time(tmp_path: Path) -> None:
    paused: dict[str, Any] = {
        "kvtrace__suspended__unix_ns": [at_ns(2), at_ns(5), at_ns(6), at_ns(7), at_ns(9), at_ns(40)]
    }
    found = report(tmp_path, tool(0, 10, 1, **paused), otlp_span(MODEL, 2, 4, span=2, agent="a"))
    (agent,) = found.agents
    assert [(each.tool, each.total_s, each.p50_s) for each in found.tools] == [("grep", 5, 5)]
    assert (agent.wall_s, agent.tool_union_s) == (10, 10)
    assert (agent.blocked_s, agent.generating_s, agent.overhead_s) == (5, 2, 3)
    assert agent.human_s == 0


def test_tool_around_a_paused_generator_still_blocks(tmp_path: Path) -> None:
    paused: dict[str, Any] = {"kvtrace__suspended__unix_ns": [at_ns(2), at_ns(5)]}
    (agent,) = report(tmp_path, tool(0, 10, 1, name="outer"), tool(1, 8, 2, 1, **paused)).agents
    assert agent.blocked_s == 10
