"""Exports of the OpenAI Agents SDK: traces and spans as its processors hand them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis import build_report
from kvtrace.analysis.sources import openai_agents
from kvtrace.analysis.testing import FixedHost, at_ns, read_source

TRACE: dict[str, Any] = {
    "object": "trace",
    "id": "trace_1",
    "workflow_name": "Agent workflow",
    "group_id": None,
    "metadata": {},
}


def span(number: int, start_s: int, end_s: int | None, parent: int | None = None, **data: Any) -> dict[str, Any]:
    return {
        "object": "trace.span",
        "id": f"span_{number}",
        "trace_id": "trace_1",
        "parent_id": parent and f"span_{parent}",
        "started_at": f"2023-11-14T22:13:{20 + start_s}.000000+00:00",
        "ended_at": None if end_s is None else f"2023-11-14T22:13:{20 + end_s}.000000+00:00",
        "span_data": data,
        "error": None,
    }


RUN = (
    TRACE,
    span(1, 0, 10, type="agent", name="triage", handoffs=["billing"], tools=["ask"]),
    span(2, 0, 2, parent=1, type="response", response_id="resp_1", usage={"input_tokens": 50, "output_tokens": 5}),
    span(3, 2, 8, parent=1, type="function", name="ask", input="{}", output=None, mcp_data=None),
    span(4, 3, 7, parent=3, type="agent", name="expert"),
    span(5, 3, 6, parent=4, type="generation", model="m", usage={"input_tokens": 7, "output_tokens": 2}),
    span(6, 9, 10, parent=1, type="handoff", from_agent="triage", to_agent="billing"),
)


@pytest.mark.parametrize(
    "content",
    [list(RUN), {"data": list(RUN)}, "".join(f"{json.dumps(item)}\n" for item in RUN)],
    ids=["list", "upload", "lines"],
)
def test_every_layout_is_read(tmp_path: Path, content: Any) -> None:
    kind, records, notes = read_source(tmp_path / "x.json", content)
    assert (kind, notes.skipped) == (openai_agents.KIND, 0)
    assert [record.kind for record in records] == ["agent", "model", "tool", "agent", "model", "other"]
    assert [record.name for record in records[:3]] == ["triage", "response", "ask"]
    assert (records[2].start_ns, records[2].end_ns, records[2].parent_span_id) == (at_ns(2), at_ns(8), "span_1")
    assert (records[1].input_tokens, records[1].output_tokens) == (50, 5)


def test_agent_as_tool_blocks_its_caller(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(RUN))
    report = build_report([tmp_path / "x.json"], host=FixedHost())
    triage, expert = report.agents
    assert (triage.name, triage.blocked_s, triage.generating_s, triage.model_elsewhere_s) == ("triage", 6, 2, 3)
    assert (expert.name, expert.generating_s, expert.blocked_s) == ("expert", 3, 0)
    assert "first token not visible" in report.sources[0].cannot_show


def test_span_that_never_ended_is_open(tmp_path: Path) -> None:
    _, (record,), _ = read_source(tmp_path / "x.json", [span(3, 2, None, type="function", name="ask")])
    assert (record.kind, record.end_ns) == ("tool", None)


def test_other_objects_are_named(tmp_path: Path) -> None:
    _, records, notes = read_source(tmp_path / "x.json", [*RUN[:3], {"object": "response"}, 4, {**RUN[3], "id": None}])
    assert len(records) == 2
    assert [skip.why[:20] for skip in notes.skips] == [
        "no trace and no span",
        "no trace and no span",
        "span without spanId:",
    ]
