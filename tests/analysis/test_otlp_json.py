"""The OTLP JSON importer takes what exists in the wild, and names what it cannot take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvtrace.analysis.normal import MAX_NAMED_SKIPS, Notes, SpanRecord
from kvtrace.analysis.sources import importer_for
from kvtrace.analysis.testing import at_ns, otlp_line, otlp_span
from kvtrace.tracer import attributes as names

SPAN = otlp_span(
    "execute_tool",
    1,
    2,
    span=2,
    parent=1,
    name="execute_tool grep",
    agent="a",
    attributes={names.GEN_AI_TOOL_CALL_ID: "c1"},
)


def read(path: Path, content: str | bytes) -> tuple[list[SpanRecord], Notes]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    importer = importer_for(path)
    assert importer is not None
    notes = Notes(path, 0)
    return list(importer.read(path, notes)), notes


def whys(notes: Notes) -> list[tuple[int, str]]:
    return [(skip.line, skip.why) for skip in notes.skips]


def test_tool_span_becomes_one_record(tmp_path: Path) -> None:
    (record,), notes = read(tmp_path / "a.jsonl", otlp_line([SPAN]))
    assert record == SpanRecord(
        source=0,
        process=0,
        trace_id=f"{1:032x}",
        span_id=f"{2:016x}",
        parent_span_id=f"{1:016x}",
        kind="tool",
        name="grep",
        call_id="c1",
        agent_id="a",
        agent_label=None,
        agent_name=None,
        parent_agent_id=None,
        conversation_id=None,
        start_ns=at_ns(1),
        end_ns=at_ns(2),
        first_token_ns=None,
        queued_unix_ns=None,
        error=None,
        confidence="exact",
    )
    assert notes.skipped == 0


def test_model_span_keeps_queue_and_first_token(tmp_path: Path) -> None:
    span = otlp_span(
        "chat",
        1,
        4,
        span=1,
        attributes={names.QUEUED_INTERVALS: [at_ns(1), at_ns(2)], names.GEN_AI_TIME_TO_FIRST_CHUNK: 1.5},
    )
    (record,), _ = read(tmp_path / "a.jsonl", otlp_line([span]))
    assert record.kind == "model"
    assert record.first_token_ns == at_ns(2.5)
    assert record.queued_unix_ns == f"[{at_ns(1)},{at_ns(2)}]"


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"startTimeUnixNano": at_ns(1)}, "start_ns", at_ns(1)),
        ({"endTimeUnixNano": "0"}, "end_ns", None),
        ({"endTimeUnixNano": None}, "end_ns", None),
        ({"startTimeUnixNano": 0}, "start_ns", None),
        ({"traceId": "5B8EFFF798038103D269B633813FC60C"}, "trace_id", "5b8efff798038103d269b633813fc60c"),
        ({"traceId": "W47/95gDgQPSabYzgT/GDA=="}, "trace_id", "5b8efff798038103d269b633813fc60c"),
        ({"parentSpanId": "0000000000000000"}, "parent_span_id", None),
        ({"kind": "SPAN_KIND_INTERNAL", "status": {"code": "STATUS_CODE_ERROR"}}, "error", "error"),
        ({"status": {"code": 2}}, "error", "error"),
        ({"attributes": {"gen_ai.operation.name": "chat"}}, "kind", "model"),
        ({"attributes": "none"}, "kind", "other"),
        ({"name": None}, "name", "grep"),
    ],
)
def test_tolerates_every_spelling(tmp_path: Path, change: dict[str, Any], field: str, expected: object) -> None:
    span = {**SPAN, **change}
    if change == {"name": None}:
        span["attributes"] = [*SPAN["attributes"], {"key": names.GEN_AI_TOOL_NAME, "value": {"stringValue": "grep"}}]
    (record,), notes = read(tmp_path / "a.jsonl", otlp_line([span]))
    assert getattr(record, field) == expected
    assert notes.skipped == 0


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    ("outer", "middle"), [("resourceSpans", "scopeSpans"), ("batches", "instrumentationLibrarySpans")]
)
def test_reads_documents_of_any_layout(tmp_path: Path, outer: str, middle: str, indent: int | None) -> None:
    document = {outer: [{"resource": {}, middle: [{"spans": [SPAN, {**SPAN, "spanId": "3" * 16}]}]}]}
    for value in (document, [document]):
        records, notes = read(tmp_path / "a.json", json.dumps(value, indent=indent))
        assert len(records) == 2
        assert notes.skipped == 0


def test_bad_lines_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good = otlp_line([SPAN]).encode()
    lines = [
        good,
        b"not json at all",
        b'{"resourceSpans": "x"}',
        b"",
        b'{"resourceMetrics": []}',
        b"null",
        b"[1]",
        good[:-40] + b"\xff\xfe" + good[-40:],
        otlp_line([{**SPAN, "startTimeUnixNano": "soon"}]).encode(),
        otlp_line([{**SPAN, "spanId": ""}]).encode(),
        otlp_line([{**SPAN, "endTimeUnixNano": 2**80}]).encode(),
        b'{"resourceSpans": [7]}',
        b"[" * 100_000,
        good.replace(b'"1700000001', b'"-1700000001'),
        good[:60],
    ]
    records, notes = read(tmp_path / "a.jsonl", b"\n".join(lines))
    assert len(records) == 1
    found = dict(whys(notes))
    assert found.keys() == {2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
    assert "not JSON" in found[2]
    assert found[3] == "resourceSpans is no list"
    assert "resourceMetrics" in found[5]
    assert "UTF-8" in found[8]
    assert found[9] == "startTimeUnixNano is no integer: 'soon'"
    assert "spanId" in found[10]
    assert "64 bits" in found[11]
    assert "negative" in found[14]
    assert found[15] == "cut off inside the line"


def test_bad_queue_costs_only_the_queue(tmp_path: Path) -> None:
    span = otlp_span("chat", 1, 4, span=1, attributes={names.QUEUED_INTERVALS: [1, 2, 3]})
    (record,), notes = read(tmp_path / "a.jsonl", otlp_line([span]))
    assert record.queued_unix_ns is None
    assert whys(notes) == [(1, f"{names.QUEUED_INTERVALS} is no list of start and end pairs")]


def test_named_skips_are_bounded(tmp_path: Path) -> None:
    _, notes = read(tmp_path / "a.jsonl", otlp_line([SPAN]) + "\nbad" * 500)
    assert notes.skipped == 500
    assert len(notes.skips) == MAX_NAMED_SKIPS


def test_processes_are_told_apart_by_resource(tmp_path: Path) -> None:
    lines = [
        otlp_line([{**SPAN, "spanId": f"{i:016x}"}], {names.PROCESS_PID: pid, names.RUN_ID: "r"})
        for i, pid in ((1, 7), (2, 8), (3, 7))
    ]
    records, notes = read(tmp_path / "a.jsonl", "\n".join(lines))
    assert [record.process for record in records] == [0, 1, 0]
    assert [(process.pid, process.touched) for process in notes.processes] == [(7, True), (8, True)]


@pytest.mark.parametrize("content", ["", "hello", '{"a": 1}', "\x00\x01"])
def test_other_files_are_of_no_known_kind(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    assert importer_for(tmp_path / "x") is None


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"openinference.span.kind": "TOOL"}, "tool"),
        ({"openinference.span.kind": "CHAIN"}, "other"),
        ({"traceloop.span.kind": "agent"}, "agent"),
        ({"llm.request.type": "chat"}, "model"),
        ({"gen_ai.operation.name": "text_completion"}, "model"),
        ({"gen_ai.operation.name": "embeddings", "openinference.span.kind": "LLM"}, "other"),
        ({"gen_ai.operation.name": "kvtrace.human_wait"}, "human"),
        ({}, "other"),
    ],
)
def test_flat_spans_are_read_in_every_dialect(tmp_path: Path, attributes: dict[str, str], kind: str) -> None:
    span = {"trace_id": "a" * 32, "span_id": "b" * 16, "start_time": at_ns(0), "end_time": at_ns(1), "name": "x"}
    bad = {**span, "span_id": None}
    (record,), notes = read(tmp_path / "a.json", json.dumps([{**span, "attributes": attributes}, bad, 3]))
    assert record.kind == kind
    assert notes.skipped == 2
