"""One run, written in the words of every trace format, has the same figures in all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from kvtrace.analysis import build_report
from kvtrace.analysis.testing import FixedHost, at_ns, otlp_line, otlp_span


class Step(NamedTuple):
    """A piece of the run: ``kind`` is ``agent``, ``model`` or ``tool``; seconds."""

    number: int
    kind: str
    name: str
    start: float
    end: float


STEPS = (
    Step(1, "agent", "ada", 0, 10),
    Step(2, "model", "m", 0, 3),
    Step(3, "tool", "grep", 3, 8),
    Step(4, "tool", "sed", 4, 9),
    Step(5, "model", "m", 9, 10),
)
OPERATIONS = {"agent": "invoke_agent", "model": "chat", "tool": "execute_tool"}
TRACE = f"{1:032x}"


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(at_ns(seconds) / 1e9, UTC).isoformat()


def genai(step: Step) -> dict[str, str]:
    return {"gen_ai.operation.name": OPERATIONS[step.kind], f"gen_ai.{step.kind}.name": step.name}


def parent(step: Step) -> int:
    return 0 if step.kind == "agent" else 1


def span_id(number: int) -> str:
    return f"{number:016x}"


def otlp_json() -> str:
    spans = [
        otlp_span(None, step.start, step.end, span=step.number, parent=parent(step), attributes=genai(step))
        for step in STEPS
    ]
    return otlp_line(spans)


def otlp_protobuf() -> bytes:
    spans = [
        Span(
            trace_id=bytes.fromhex(TRACE),
            span_id=bytes.fromhex(span_id(step.number)),
            parent_span_id=bytes.fromhex(span_id(1)) if parent(step) else b"",
            start_time_unix_nano=at_ns(step.start),
            end_time_unix_nano=at_ns(step.end),
            attributes=[KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in genai(step).items()],
        )
        for step in STEPS
    ]
    return TracesData(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])]).SerializeToString()


def jaeger() -> str:
    spans = [
        {
            "traceID": TRACE,
            "spanID": span_id(step.number),
            "operationName": step.name,
            "references": [{"refType": "CHILD_OF", "traceID": TRACE, "spanID": span_id(1)}] if parent(step) else [],
            "startTime": at_ns(step.start) // 1000,
            "duration": round((step.end - step.start) * 1e6),
            "tags": [{"key": key, "type": "string", "value": value} for key, value in genai(step).items()],
        }
        for step in STEPS
    ]
    return json.dumps({"data": [{"traceID": TRACE, "spans": spans, "processes": {}}]})


def phoenix() -> str:
    kinds = {"agent": "AGENT", "model": "LLM", "tool": "TOOL"}
    rows = [
        {
            "context": {"trace_id": TRACE, "span_id": span_id(step.number)},
            "parent_id": span_id(1) if parent(step) else None,
            "name": step.name,
            "span_kind": kinds[step.kind],
            "start_time": iso(step.start),
            "end_time": iso(step.end),
        }
        for step in STEPS
    ]
    return json.dumps({"data": rows})


def langfuse() -> str:
    types = {"agent": "AGENT", "model": "GENERATION", "tool": "TOOL"}
    observations = [
        {
            "id": span_id(step.number),
            "traceId": TRACE,
            "parentObservationId": span_id(1) if parent(step) else None,
            "type": types[step.kind],
            "name": step.name,
            "startTime": iso(step.start),
            "endTime": iso(step.end),
        }
        for step in STEPS
    ]
    return json.dumps({"id": TRACE, "projectId": "p", "observations": observations})


def openai_agents() -> str:
    types = {"agent": "agent", "model": "generation", "tool": "function"}
    spans = [
        {
            "object": "trace.span",
            "id": span_id(step.number),
            "trace_id": TRACE,
            "parent_id": span_id(1) if parent(step) else None,
            "started_at": iso(step.start),
            "ended_at": iso(step.end),
            "span_data": {"type": types[step.kind], "name": step.name},
            "error": None,
        }
        for step in STEPS
    ]
    return json.dumps(spans)


def langsmith() -> str:
    types = {"agent": "chain", "model": "llm", "tool": "tool"}
    runs = [
        {
            "id": span_id(step.number),
            "trace_id": TRACE,
            "parent_run_id": span_id(1) if parent(step) else None,
            "run_type": types[step.kind],
            "name": step.name,
            "start_time": iso(step.start),
            "end_time": iso(step.end),
        }
        for step in STEPS
    ]
    return json.dumps(runs)


def logged_calls() -> str:
    names = {"model": "claude_code.api_request", "tool": "claude_code.tool_result"}
    records: list[dict[str, Any]] = []
    for step in STEPS[1:]:
        values = {"session.id": "s", "tool_name": step.name, "duration_ms": f"{(step.end - step.start) * 1000:.0f}"}
        attributes = [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
        body = {"stringValue": names[step.kind]}
        records.append({"timeUnixNano": str(at_ns(step.end)), "body": body, "attributes": attributes})
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})


WRITERS: tuple[Callable[[], str | bytes], ...] = (
    otlp_json,
    otlp_protobuf,
    jaeger,
    phoenix,
    langfuse,
    openai_agents,
    langsmith,
    logged_calls,
)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_figures_are_those_of_the_run(tmp_path: Path, write: Callable[[], str | bytes]) -> None:
    written = write()
    path = tmp_path / "run.json"
    path.write_bytes(written if isinstance(written, bytes) else written.encode())
    report = build_report([path], host=FixedHost())
    (agent,) = report.agents
    assert report.sources[0].skipped == 0
    assert (agent.tool_calls, agent.model_calls, agent.open_calls, agent.windows) == (2, 2, 0, 1)
    assert (agent.wall_s, agent.generating_s, agent.tool_union_s, agent.blocked_s) == (10, 4, 6, 6)
    assert (agent.human_s, agent.overhead_s, agent.b) == (0, 0, 0.6)
    assert {tool.tool: tool.total_s for tool in report.tools} == {"grep": 5, "sed": 5}
