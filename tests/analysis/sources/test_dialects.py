"""Agents and frameworks that name their spans in words of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_line, otlp_span, read_source, write_otlp
from kvtrace.tracer import attributes as names


def claude(name: str, start: float, end: float, span: int, parent: int = 0, **attributes: Any) -> dict[str, Any]:
    given = {"session.id": "s", **attributes}
    return otlp_span(None, start, end, span=span, parent=parent, name=f"claude_code.{name}", attributes=given)


def test_claude_code_turn_with_a_permission_wait(tmp_path: Path) -> None:
    spans = [
        claude("interaction", 0, 12, 1),
        claude("llm_request", 0, 3, 2, 1, ttft_ms=500, input_tokens=10, cache_read_tokens=90, output_tokens=4),
        claude("tool", 3, 10, 3, 1, tool_name="Bash", tool_use_id="c1"),
        claude("tool.blocked_on_user", 3, 7, 4, 3),
        claude("tool.execution", 7, 10, 5, 3),
        claude("interaction", 20, 22, 6),
        claude("llm_request", 20, 22, 7, 6),
    ]
    path = write_otlp(tmp_path / "x.jsonl", spans)
    (agent,) = build_report([path], host=FixedHost()).agents
    assert (agent.agent, agent.tool_calls, agent.model_calls) == ("s", 1, 2)
    assert (agent.blocked_s, agent.generating_s, agent.overhead_s) == (3, 5, 2)
    assert agent.human_s == 4 + 8  # the permission, and the time between the turns


def test_claude_code_sub_agent_has_a_timeline_of_its_own(tmp_path: Path) -> None:
    spans = [
        claude("tool", 0, 9, 1, tool_name="Agent"),
        claude("llm_request", 1, 8, 2, 1, agent_id="sub"),
        claude("tool", 8, 9, 3, 1, agent_id="sub", tool_name="Read"),
    ]
    path = write_otlp(tmp_path / "x.jsonl", spans)
    main, sub = build_report([path], host=FixedHost()).agents
    assert (main.agent, main.blocked_s, main.tool_calls) == ("s", 9, 1)
    assert (sub.agent, sub.generating_s, sub.blocked_s) == ("s/sub", 7, 1)


def test_claude_code_tells_first_token_and_cached_input(tmp_path: Path) -> None:
    request = claude("llm_request", 1, 3, 2, ttft_ms=500, input_tokens=10, cache_read_tokens=90, output_tokens=4)
    _, (record,), _ = read_source(tmp_path / "x.jsonl", otlp_line([request]))
    assert (record.first_token_ns, record.input_tokens, record.output_tokens) == (at_ns(1.5), 100, 4)


@pytest.mark.parametrize("name", ["approval", "tool.approval", "wait for approval", "permission_request"])
def test_approval_inside_a_tool_is_the_persons_time(tmp_path: Path, name: str) -> None:
    spans = [
        otlp_span("chat", 0, 1, span=1, agent="a"),
        otlp_span("execute_tool", 1, 9, span=2, agent="a"),
        otlp_span(None, 2, 6, span=3, parent=2, agent="a", name=name),
    ]
    (agent,) = build_report([write_otlp(tmp_path / "x.jsonl", spans)], host=FixedHost()).agents
    assert (agent.blocked_s, agent.human_s) == (4, 4)


@pytest.mark.parametrize(
    ("name", "attributes", "kind", "called"),
    [
        ("ai.toolCall", {"ai.toolCall.name": "grep", "ai.toolCall.id": "c"}, "tool", "grep"),
        ("x", {"gen_ai.tool.name": "grep"}, "tool", "grep"),
        ("grep.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "grep"}, "tool", "grep"),
        ("x", {"langfuse.observation.type": "generation"}, "model", "x"),
        ("x", {"gen_ai.system": "s", "gen_ai.request.model": "m", "gen_ai.usage.completion_tokens": 3}, "model", "x"),
        ("x", {"gen_ai.system": "s", "gen_ai.request.model": "m"}, "other", "x"),
        ("x", {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "w"}, "agent", "w"),
        ("run approval_tool", {}, "other", "run approval_tool"),
    ],
)
def test_kinds_in_other_and_older_words(
    tmp_path: Path, name: str, attributes: dict[str, Any], kind: str, called: str
) -> None:
    span = otlp_span(None, 0, 1, span=1, name=name, attributes=attributes)
    _, (record,), _ = read_source(tmp_path / "x.jsonl", otlp_line([span]))
    assert (record.kind, record.name) == (kind, called)


def test_pending_span_is_the_start_of_its_parent(tmp_path: Path) -> None:
    pending = {"logfire.span_type": "pending_span", "logfire.pending_parent_id": f"{1:016x}"}
    tool = {names.GEN_AI_TOOL_NAME: "grep"}
    spans = [
        otlp_span("execute_tool", 2, 2, span=9, parent=2, agent="a", attributes={**tool, **pending}),
        otlp_span("execute_tool", 5, 5, span=8, parent=3, agent="a", attributes={**tool, **pending}),
        otlp_span("execute_tool", 2, 6, span=2, parent=1, agent="a", attributes=tool),
    ]
    pooled = build_report([write_otlp(tmp_path / "x.jsonl", spans)], host=FixedHost()).pooled
    assert (pooled.tool_calls, pooled.open_calls, pooled.blocked_s) == (2, 1, 4)
    assert pooled.anomalies.duplicates == 0


@pytest.mark.parametrize("wrap", ["data", "trace", "result"])
def test_what_a_query_interface_wraps_around_a_document_is_taken_off(tmp_path: Path, wrap: str) -> None:
    inner = otlp_line([otlp_span("chat", 0, 1, span=1)])
    content = f'{{"{wrap}": [{inner}]}}' if wrap == "data" else f'{{"{wrap}": {inner}}}'
    _, records, notes = read_source(tmp_path / "x.json", content)
    assert (len(records), notes.skipped) == (1, 0)
