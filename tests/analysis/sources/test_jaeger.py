"""Jaeger's downloads: microseconds, references, typed tags, and noise around the calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtrace.analysis import build_report
from kvtrace.analysis.normal import SpanRecord
from kvtrace.analysis.sources import jaeger
from kvtrace.analysis.testing import EPOCH_NS, FixedHost, at_ns, read_source

TRACE = "3e28" + "0" * 28
US = EPOCH_NS // 1000


def span(number: int, parent: int, name: str, start_ms: int, length_ms: int, **tags: Any) -> dict[str, Any]:
    return {
        "traceID": TRACE,
        "spanID": f"{number:016x}",
        "operationName": name,
        "references": [{"refType": "CHILD_OF", "traceID": TRACE, "spanID": f"{parent:016x}"}] if parent else [],
        "startTime": US + start_ms * 1000,
        "duration": length_ms * 1000,
        "tags": [{"key": key.replace("__", "."), "type": "string", "value": value} for key, value in tags.items()],
        "processID": "p1",
    }


def download(*spans: dict[str, Any]) -> dict[str, Any]:
    process = {"serviceName": "helm", "tags": [{"key": "process.pid", "type": "int64", "value": 7}]}
    return {"data": [{"traceID": TRACE, "spans": list(spans), "processes": {"p1": process}}], "total": 0}


AGENT_RUN = (
    span(1, 0, "invocation", 0, 1000),
    span(2, 1, "invoke_agent helm", 0, 1000, gen_ai__operation__name="invoke_agent"),
    # The framework's step around the call holds the tool as well; what it says of the model is the client span's.
    span(3, 2, "call_llm", 0, 700, gen_ai__system="vertex", gen_ai__request__model="m", gen_ai__usage__output_tokens=3),
    span(4, 3, "openai.chat", 10, 400, llm__request__type="chat"),
    span(5, 4, "POST", 20, 380, span__kind="client"),
    span(6, 3, "execute_tool list", 500, 150, gen_ai__operation__name="execute_tool", gen_ai__tool__name="list"),
)


def test_span_is_read_with_its_parent_and_process(tmp_path: Path) -> None:
    kind, records, notes = read_source(tmp_path / "x.json", download(*AGENT_RUN))
    tool: SpanRecord = records[-1]
    assert (kind, notes.skipped) == (jaeger.KIND, 0)
    assert (tool.kind, tool.name, tool.parent_span_id) == ("tool", "list", f"{3:016x}")
    assert (tool.start_ns, tool.end_ns) == (at_ns(0.5), at_ns(0.65))
    assert [process.pid for process in notes.processes] == [7]


def test_framework_step_around_a_model_call_is_no_call(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(download(*AGENT_RUN)))
    pooled = build_report([tmp_path / "x.json"], host=FixedHost()).pooled
    assert (pooled.agents, pooled.model_calls, pooled.tool_calls) == (1, 1, 1)
    assert (pooled.generating_s, pooled.blocked_s, pooled.wall_s) == (0.4, 0.15, 1.0)


def test_framework_step_alone_is_the_model_call(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(download(*AGENT_RUN[:3])))
    pooled = build_report([tmp_path / "x.json"], host=FixedHost()).pooled
    assert (pooled.model_calls, pooled.generating_s) == (1, 0.7)


def test_parent_of_another_trace_is_none(tmp_path: Path) -> None:
    linked = span(1, 2, "x", 0, 1)
    linked["references"][0]["traceID"] = "f" * 32
    follows = {**span(3, 4, "x", 0, 1)}
    follows["references"][0]["refType"] = "FOLLOWS_FROM"
    _, (one, two), _ = read_source(tmp_path / "x.json", download(linked, follows))
    assert (one.parent_span_id, two.parent_span_id) == (None, f"{4:016x}")


def test_broken_traces_and_spans_are_named(tmp_path: Path) -> None:
    document = download({**span(1, 0, "x", 0, 1), "startTime": "soon"}, {**span(2, 0, "x", 0, 1), "startTime": 2**62})
    document["data"] += [{"traceID": TRACE}, 3]
    document["data"][0]["spans"].append("y")
    _, records, notes = read_source(tmp_path / "x.json", document)
    assert records == []
    assert [skip.why[:31] for skip in notes.skips] == [
        "startTime is no integer: 'soon'",
        "startTime does not fit 64 bits:",
        "str instead of a span",
        "no list of spans in the trace",
        "no list of spans in the trace",
    ]
