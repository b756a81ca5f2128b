"""Runs of LangSmith: types, open runs, lineage from the dotted order, first tokens, threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.sources import langsmith
from kvtrace.analysis.testing import FixedHost, at_ns, read_source


def run(
    name: str, kind: str, start_s: int, end_s: int | None, parent: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": f"{name}@{start_s}",
        "name": name,
        "run_type": kind,
        "start_time": f"2023-11-14T22:13:{20 + start_s}.000000",
        "end_time": None if end_s is None else f"2023-11-14T22:13:{20 + end_s}.000000",
        "trace_id": "t1",
        "parent_run_id": parent,
        **more,
    }


ROOT = run("LangGraph", "chain", 0, 9)
LLM = run("ChatOpenAI", "llm", 0, 3, parent="LangGraph@0", prompt_tokens=40, completion_tokens=4)
TOOL = run("search", "tool", 3, 8, parent="LangGraph@0")


@pytest.mark.parametrize(
    "content",
    [
        [ROOT, LLM, TOOL],
        {"runs": [ROOT, LLM, TOOL]},
        "".join(f"{json.dumps(item)}\n" for item in (ROOT, LLM, TOOL)),
        {**ROOT, "child_runs": [LLM, TOOL]},
    ],
    ids=["list", "answer", "lines", "nested"],
)
def test_every_layout_is_read(tmp_path: Path, content: Any) -> None:
    kind, records, notes = read_source(tmp_path / "x.json", content)
    assert (kind, notes.skipped) == (langsmith.KIND, 0)
    assert [(record.kind, record.name) for record in records] == [
        ("agent", "LangGraph"),
        ("model", "ChatOpenAI"),
        ("tool", "search"),
    ]
    assert (records[2].start_ns, records[2].end_ns, records[2].parent_span_id) == (at_ns(3), at_ns(8), "LangGraph@0")
    assert (records[1].input_tokens, records[1].output_tokens) == (40, 4)


def test_tokens_are_read_where_the_sdk_writes_them(tmp_path: Path) -> None:
    told = {"usage_metadata": {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}}
    runs = [
        run("a", "llm", 0, 1, outputs=told),
        run("b", "llm", 1, 2, outputs={"text": ""}, extra={"metadata": told}),
        run("c", "llm", 2, 3, outputs=told, prompt_tokens=40, completion_tokens=4),
        run("d", "llm", 3, 4, outputs=None),
    ]
    _, records, _ = read_source(tmp_path / "x.json", runs)
    found = [(record.input_tokens, record.output_tokens) for record in records]
    assert found == [(12, 5), (12, 5), (40, 4), (None, None)]


def test_lineage_comes_from_the_dotted_order_where_fields_are_missing(tmp_path: Path) -> None:
    at = "20231114T221320000000Z"
    orphan = {**TOOL, "trace_id": None, "parent_run_id": None, "dotted_order": f"{at}t1.{at}p2.{at}search@3"}
    _, (record,), _ = read_source(tmp_path / "x.json", [orphan])
    assert (record.trace_id, record.parent_span_id) == ("t1", "p2")


@pytest.mark.parametrize(
    "more",
    [
        {"first_token_time": "2023-11-14T22:13:21.5"},
        {"events": [{"name": "start"}, {"name": "new_token", "time": "2023-11-14T22:13:21.5+00:00"}]},
    ],
)
def test_first_token_is_found(tmp_path: Path, more: dict[str, Any]) -> None:
    _, (record,), _ = read_source(tmp_path / "x.json", [{**LLM, **more}])
    assert record.first_token_ns == at_ns(1.5)


def test_run_posted_and_patched_counts_once_and_open_runs_are_censored(tmp_path: Path) -> None:
    posted, running = {**TOOL, "end_time": None}, run("slow", "tool", 8, None, parent="LangGraph@0")
    (tmp_path / "x.json").write_text(json.dumps([ROOT, posted, LLM, TOOL, running]))
    pooled = build_report([tmp_path / "x.json"], host=FixedHost()).pooled
    assert (pooled.agents, pooled.tool_calls, pooled.open_calls) == (1, 2, 1)
    assert pooled.b_low == pytest.approx(5 / 9)
    assert pooled.b_high == pytest.approx(6 / 9)


def test_runs_of_a_thread_are_turns_of_one_agent(tmp_path: Path) -> None:
    thread = {"extra": {"metadata": {"thread_id": "th"}}}
    second = {**run("LangGraph", "chain", 29, 31), "trace_id": "t2", **thread}
    answer = {**run("ChatOpenAI", "llm", 29, 31, parent="LangGraph@29"), "trace_id": "t2"}
    (tmp_path / "x.json").write_text(json.dumps([{**ROOT, **thread}, LLM, second, answer]))
    (agent,) = build_report([tmp_path / "x.json"], host=FixedHost()).agents
    assert (agent.agent, agent.wall_s, agent.human_s, agent.generating_s) == ("th/LangGraph", 31, 20, 5)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    _, records, notes = read_source(tmp_path / "x.json", [ROOT, "x", {"id": 3}, {**TOOL, "end_time": "later"}])
    assert len(records) == 1
    assert [skip.why for skip in notes.skips] == ["no run: x", "no run: {'id': 3}", "end_time is no instant: 'later'"]
