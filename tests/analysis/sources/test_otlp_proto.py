"""OTLP in protobuf, written by OpenTelemetry's own classes: bare, behind lengths, compressed, broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

from kvtrace.analysis.sources import importer_for, otlp_proto
from kvtrace.analysis.testing import at_ns, otlp_line, otlp_span, read_source
from kvtrace.tracer import attributes as names

zstd = pytest.importorskip("backports.zstd")


def text(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def message(number: int = 2, failed: bool = False) -> bytes:
    waits = ArrayValue(values=[AnyValue(int_value=at_ns(1)), AnyValue(int_value=at_ns(2))])
    span = Span(
        trace_id=bytes.fromhex(f"{1:032x}"),
        span_id=bytes.fromhex(f"{number:016x}"),
        parent_span_id=bytes.fromhex(f"{1:016x}"),
        name="chat m",
        start_time_unix_nano=at_ns(1),
        end_time_unix_nano=at_ns(4),
        attributes=[
            text(names.GEN_AI_OPERATION_NAME, "chat"),
            text(names.AGENT_ID, "a"),
            KeyValue(key=names.QUEUED_INTERVALS, value=AnyValue(array_value=waits)),
            KeyValue(key=names.GEN_AI_TIME_TO_FIRST_CHUNK, value=AnyValue(double_value=1.5)),
        ],
        status=Status(code=Status.STATUS_CODE_ERROR if failed else Status.STATUS_CODE_UNSET),
    )
    resource = Resource(
        attributes=[KeyValue(key=names.PROCESS_PID, value=AnyValue(int_value=7)), text(names.RUN_ID, "r")]
    )
    spans = ResourceSpans(resource=resource, scope_spans=[ScopeSpans(spans=[span])])
    return TracesData(resource_spans=[spans]).SerializeToString()


def framed(*messages: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in messages)


def as_json(number: int) -> bytes:
    attributes = {names.QUEUED_INTERVALS: [at_ns(1), at_ns(2)], names.GEN_AI_TIME_TO_FIRST_CHUNK: 1.5}
    span = otlp_span("chat", 1, 4, span=number, parent=1, name="chat m", agent="a", attributes=attributes)
    return otlp_line([span], {names.PROCESS_PID: 7, names.RUN_ID: "r"}).encode()


@pytest.mark.parametrize(
    "content",
    [
        message(),
        framed(message()),
        framed(zstd.compress(message())),
        framed(zstd.compress(as_json(2))),
    ],
    ids=["bare", "framed", "framed-zstd", "framed-zstd-json"],
)
def test_every_framing_gives_the_record_of_the_same_span_in_json(tmp_path: Path, content: bytes) -> None:
    kind, records, notes = read_source(tmp_path / "x.pb", content)
    _, expected, _ = read_source(tmp_path / "x.json", as_json(2))
    assert (kind, notes.skipped) == (otlp_proto.KIND, 0)
    assert records == expected
    assert [(process.pid, process.touched) for process in notes.processes] == [(7, True)]


def test_messages_of_a_file_are_all_read(tmp_path: Path) -> None:
    _, records, _ = read_source(
        tmp_path / "x.pb", framed(*(message(number, failed=number == 3) for number in (2, 3, 4)))
    )
    assert [(record.span_id[-1], record.error) for record in records] == [("2", None), ("3", "error"), ("4", None)]


def test_broken_messages_cost_themselves_alone(tmp_path: Path) -> None:
    broken = b"\x0a\x03\x0a\xff\xff"
    content = (
        framed(message(2), broken, message(3), zstd.compress(message(4))[:-9], message(5)) + b"\x00\x00\x01\x00\x0a"
    )
    _, records, notes = read_source(tmp_path / "x.pb", content)
    assert [record.span_id[-1] for record in records] == ["2", "3", "5"]
    assert [(skip.line, skip.why[:28]) for skip in notes.skips] == [
        (2, "message 2 is no OTLP trace i"),
        (4, "message 4 cannot be unpacked"),
        (6, "message 6 is cut off or no m"),
    ]


def test_compressed_as_a_whole_names_the_command(tmp_path: Path) -> None:
    _, records, notes = read_source(tmp_path / "x.pb", zstd.compress(message()))
    assert records == []
    assert "`zstd -d`" in notes.skips[0].why


def test_missing_library_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_proto, "_ZSTD_HOMES", ("no.such.module",))
    _, records, notes = read_source(tmp_path / "x.pb", framed(zstd.compress(message()), message()))
    assert len(records) == 1
    assert "pip install backports.zstd" in notes.skips[0].why


@pytest.mark.parametrize(
    "content",
    [b"\n\n{}", b"\n", b"plain text", json.dumps({"a": 1}).encode(), b"\x00\x00\x00\x05hello"],
)
def test_other_files_are_not_taken_for_protobuf(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert importer_for(path) is None
