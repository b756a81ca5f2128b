"""Observations of Langfuse: types where they are used, and how frameworks without them call their tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.sources import langfuse
from kvtrace.analysis.testing import FixedHost, at_ns, read_source

TRACE = "5f0c"


def stamp(ms: int) -> str:
    return f"2023-11-14T22:13:{20 + ms // 1000:02d}.{ms % 1000:03d}Z"


def observation(
    name: str, kind: str, start_ms: int, end_ms: int | None, parent: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": f"{name}-{start_ms}",
        "traceId": TRACE,
        "type": kind,
        "name": name,
        "startTime": stamp(start_ms),
        "endTime": None if end_ms is None else stamp(end_ms),
        "parentObservationId": parent,
        "metadata": "{}",
        **more,
    }


def export(*observations: dict[str, Any], session: str | None = None) -> dict[str, Any]:
    return {"trace": {"id": TRACE, "projectId": "p", "sessionId": session}, "observations": list(observations)}


@pytest.mark.parametrize(
    ("given", "kind", "name"),
    [
        (observation("grep", "TOOL", 0, 1), "tool", "grep"),
        (observation("tool.grep", "SPAN", 0, 1), "tool", "grep"),
        (observation("x", "SPAN", 0, 1, metadata={"attributes": {"gen_ai.tool.name": "grep"}}), "tool", "grep"),
        (observation("llm.chat", "GENERATION", 0, 1), "model", "llm.chat"),
        (observation("ada", "AGENT", 0, 1), "agent", "ada"),
        (observation("LangGraph", "SPAN", 0, 1), "agent", "LangGraph"),
        (observation("made", "AGENT", 0, 1, metadata='{"attributes": {"gen_ai.operation.name": "create_agent"}}'), "other", "made"),
        (observation("node", "SPAN", 0, 1), "other", "node"),
        (observation("search", "RETRIEVER", 0, 1), "other", "search"),
    ],
)  # fmt: skip
def test_kind_of_an_observation(tmp_path: Path, given: dict[str, Any], kind: str, name: str) -> None:
    source, (record,), notes = read_source(tmp_path / "x.json", export(given))
    assert (source, notes.skipped) == (langfuse.KIND, 0)
    assert (record.kind, record.name) == (kind, name)


def test_step_inside_the_tools_node_is_a_tool_call(tmp_path: Path) -> None:
    node = observation("tools", "SPAN", 0, 9, metadata={"langgraph_node": "tools"})
    call = observation("Web-Search", "SPAN", 1, 8, parent=node["id"], metadata='{"langgraph_node": "tools"}')
    _, records, _ = read_source(tmp_path / "x.json", export(call, node))
    assert [record.kind for record in records] == ["tool", "other"]


def test_first_token_and_usage_are_kept(tmp_path: Path) -> None:
    call = observation(
        "chat", "GENERATION", 1000, 4000, completionStartTime=stamp(2500), usageDetails={"input": 70, "output": 9}
    )
    _, (record,), _ = read_source(tmp_path / "x.json", export(call))
    assert (record.start_ns, record.first_token_ns) == (at_ns(1), at_ns(2.5))
    assert (record.input_tokens, record.output_tokens) == (70, 9)


def test_parallel_tools_are_a_union_and_open_ones_a_range(tmp_path: Path) -> None:
    spans = (
        observation("ada", "AGENT", 0, 9000),
        observation("chat", "GENERATION", 0, 2000, parent="ada-0"),
        observation("tool.a", "SPAN", 2000, 3000, parent="ada-0"),
        observation("tool.b", "SPAN", 2000, 3500, parent="ada-0"),
        observation("tool.c", "SPAN", 8000, None, parent="ada-0"),
    )
    (tmp_path / "x.json").write_text(json.dumps(export(*spans)))
    pooled = build_report([tmp_path / "x.json"], host=FixedHost()).pooled
    assert (pooled.tool_calls, pooled.open_calls, pooled.tool_union_s, pooled.generating_s) == (3, 1, 2.5, 2.0)


def test_time_between_runs_of_a_session_is_the_persons(tmp_path: Path) -> None:
    for number, start in enumerate((0, 30_000)):
        run = observation("ada", "AGENT", start, start + 2000)
        call = observation("chat", "GENERATION", start, start + 2000, parent=run["id"])
        trace = export(run, call, session="s")
        trace["trace"]["id"] = run["traceId"] = call["traceId"] = f"t{number}"
        (tmp_path / f"{number}.json").write_text(json.dumps(trace))
    (agent,) = build_report([tmp_path], host=FixedHost()).agents
    assert (agent.agent, agent.wall_s, agent.human_s) == ("s/ada", 32, 28)


def test_names_of_the_blob_export_are_understood(tmp_path: Path) -> None:
    row = {
        "id": "o", "trace_id": TRACE, "project_id": "p", "parent_observation_id": "up", "type": "TOOL", "name": "grep",
        "start_time": "2023-11-14 22:13:21.000000", "end_time": "2023-11-14 22:13:22.000000",
    }  # fmt: skip
    _, (record,), _ = read_source(tmp_path / "x.jsonl", json.dumps(row) + "\n")
    assert (record.kind, record.parent_span_id, record.start_ns) == ("tool", "up", at_ns(1))


@pytest.mark.parametrize("wrap", [lambda trace: [trace], lambda trace: {"data": trace["observations"]}])
def test_lists_of_traces_and_of_observations_are_read(tmp_path: Path, wrap: Any) -> None:
    _, records, notes = read_source(tmp_path / "x.json", wrap(export(observation("grep", "TOOL", 0, 1), 7)))  # type: ignore[arg-type]
    assert [record.name for record in records] == ["grep"]
    assert [skip.why for skip in notes.skips] == ["int instead of an observation"]
