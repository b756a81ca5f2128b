"""Our reader and writer of protobuf against OpenTelemetry's own classes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status as RpcStatus  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode

from kvtrace.tracer import attributes as names
from kvtrace.tracer.otlp_proto import Sender, encode_request, encode_signal
from kvtrace.tracer.receive import BadRequest, Limits, Receiver
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted
from kvtrace.tracer.wire import Budget, read_fields, write_varint

PROTOBUF = "application/x-protobuf"
SENDER = Sender.of({"service.name": "agent"}, "kvtrace", "1")
IDS = {"trace_id": "0a" * 16, "span_id": "0b" * 8}

texts = st.text(max_size=40)
maybe = st.none() | texts.filter(lambda text: text not in ("", names.UNKNOWN_AGENT))
times = st.integers(1, (1 << 63) - 1)
names_of_tools = texts.filter(lambda text: text != "")
starts = st.builds(
    ToolStarted,
    trace_id=st.integers(1, (1 << 128) - 1).map("{:032x}".format),
    span_id=st.integers(1, (1 << 64) - 1).map("{:016x}".format),
    time_unix_ns=times,
    tool=names_of_tools,
    agent=maybe,
    conversation=maybe,
    call_id=maybe,
)


def body_of(*spans: Span) -> bytes:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.extend(spans)
    encoded: bytes = request.SerializeToString()
    return encoded


def attribute(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def tool_span(**fields: Any) -> Span:
    attributes = [attribute(names.GEN_AI_OPERATION_NAME, "execute_tool"), attribute(names.GEN_AI_TOOL_NAME, "search")]
    given: dict[str, Any] = {
        "trace_id": bytes.fromhex(IDS["trace_id"]),
        "span_id": bytes.fromhex(IDS["span_id"]),
        "start_time_unix_nano": 100,
        "attributes": attributes,
        **fields,
    }
    return Span(**given)


@given(starts, st.none() | texts.filter(bool), times)
def test_signals_come_through_a_request_unchanged(start: ToolStarted, error: str | None, end_ns: int) -> None:
    owner = (start.agent, start.conversation, start.call_id)
    end = ToolEnded(start.trace_id, start.span_id, end_ns, start.tool, *owner, error)
    spans = [encode_signal(signal, start.time_unix_ns) for signal in (start, end)]
    body = encode_request(spans, SENDER)
    expected: tuple[Signal, ...] = (start, end)
    assert Receiver().receive(body, PROTOBUF).signals == expected


@given(starts)
def test_what_is_written_opentelemetry_reads(start: ToolStarted) -> None:
    body = encode_request([encode_signal(start, start.time_unix_ns)], SENDER)
    request = ExportTraceServiceRequest.FromString(body)
    (group,) = request.resource_spans
    (scope,) = group.scope_spans
    (span,) = scope.spans
    assert (scope.scope.name, scope.scope.version) == ("kvtrace", "1")
    assert [(one.key, one.value.string_value) for one in group.resource.attributes] == [("service.name", "agent")]
    assert (span.trace_id.hex(), span.span_id.hex()) == (start.trace_id, start.span_id)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (start.time_unix_ns, 0)
    assert (span.name, span.kind) == (f"execute_tool {start.tool}", Span.SPAN_KIND_INTERNAL)
    found = {one.key: one.value.string_value for one in span.attributes}
    assert found[names.GEN_AI_TOOL_NAME] == start.tool
    assert found.get(names.AGENT_ID) == start.agent
    assert body == request.SerializeToString()


@given(st.integers(0, (1 << 64) - 1))
def test_varints_are_read_as_written(number: int) -> None:
    assert list(read_fields(b"\x08" + write_varint(number), Budget(1))) == [(8, number, b"")]


def test_spans_of_the_real_exporter_are_read() -> None:
    bodies: list[bytes] = []

    class Keep(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            bodies.append(encode_spans(spans).SerializeToString())
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Keep()))
    tracer = provider.get_tracer("theirs")
    owner: dict[str, str | float | tuple[int, ...]] = {
        names.GEN_AI_CONVERSATION_ID: "c-1",
        "numbers": (1, 2),
        "big": "x" * 100_000,
        "ratio": 0.5,
    }
    with tracer.start_as_current_span("run", attributes=owner) as span:
        span.set_attribute("openinference.span.kind", "TOOL")
        span.set_status(StatusCode.ERROR)
    with tracer.start_as_current_span("chat", attributes={names.GEN_AI_OPERATION_NAME: "chat"}):
        pass
    provider.shutdown()
    receiver = Receiver()
    signals = [one for body in bodies for one in receiver.receive(gzip.compress(body), PROTOBUF, "gzip").signals]
    context = span.get_span_context()
    (end,) = signals
    assert (end.trace_id, end.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert isinstance(end, ToolEnded)
    assert (end.tool, end.conversation, end.error) == ("run", "c-1", "_OTHER")


def test_log_events_are_read() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.trace_id, record.span_id = bytes.fromhex(IDS["trace_id"]), bytes.fromhex(IDS["span_id"])
    record.observed_time_unix_nano = 7
    record.event_name = names.EVENT_SPAN_STARTED
    record.attributes.extend(tool_span().attributes)
    signals = Receiver().receive(request.SerializeToString(), PROTOBUF, path="/v1/logs").signals
    assert signals == (ToolStarted(**IDS, time_unix_ns=7, tool="search"),)


def test_damaged_span_leaves_its_neighbours() -> None:
    good = body_of(tool_span())
    bad_text = good.replace(b"search", b"sear\xff\xfe")
    bad_id = body_of(tool_span(trace_id=b"short"))
    received = Receiver().receive(bad_text + bad_id + good, PROTOBUF)
    assert received.signals == (ToolStarted(**IDS, time_unix_ns=100, tool="search"),)
    partial = ExportTraceServiceResponse.FromString(received.response_body).partial_success
    assert partial.rejected_spans == received.rejected == 2
    assert "UTF-8" in partial.error_message


def test_wrong_wire_types_are_unknown_fields() -> None:
    # start_time as a varint and name as a number: what protobuf itself skips.
    span = tool_span().SerializeToString() + b"\x38\x05" + b"\x28\x07"
    body = b"\x12" + write_varint(len(span)) + span
    body = b"\x12" + write_varint(len(body)) + body
    body = b"\x0a" + write_varint(len(body)) + body
    assert Receiver().receive(body, PROTOBUF).signals == (ToolStarted(**IDS, time_unix_ns=100, tool="search"),)


def test_long_values_are_content_and_not_kept() -> None:
    attributes = [*tool_span().attributes, attribute(names.AGENT_ID, "a" * 5000)]
    (signal,) = Receiver().receive(body_of(tool_span(attributes=attributes)), PROTOBUF).signals
    assert signal.agent is None


def test_huge_attribute_counts_are_refused() -> None:
    attributes = [*tool_span().attributes, *[attribute("k", "v")] * 5000]
    with pytest.raises(BadRequest, match="more than 10000 fields"):
        Receiver(Limits(fields=10_000)).receive(body_of(tool_span(attributes=attributes)), PROTOBUF)


def test_refusal_is_a_google_status() -> None:
    body, content_type = BadRequest(400, "no: \ud800").response(PROTOBUF)
    assert content_type == PROTOBUF
    assert RpcStatus.FromString(body).message == "no: ?"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("resourceSpans", "scopeSpans", "spans", "resourceLogs", "scopeLogs", "logRecords", "attributes"),
                    *("key", "value", "stringValue", "traceId", "spanId", "startTimeUnixNano", "status", "code"),
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


@st.composite
def mutated_bodies(draw: st.DrawFn) -> tuple[bytes, str]:
    """A good body, with some bytes changed, cut out or put in."""
    span = tool_span(end_time_unix_nano=200)
    as_json = draw(st.booleans())
    body = bytearray(body_of(span))
    if as_json:
        document = MessageToDict(ExportTraceServiceRequest.FromString(bytes(body)))
        # OTLP's ids are hex, where protobuf's own JSON has base64.
        ids = {"traceId": IDS["trace_id"], "spanId": IDS["span_id"]}
        document["resourceSpans"][0]["scopeSpans"][0]["spans"][0].update(ids)
        body = bytearray(json.dumps(document).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(body), "application/json" if as_json else PROTOBUF


def survives(body: bytes, content_type: str, encoding: str | None, path: str) -> None:
    receiver = Receiver(Limits(body_bytes=1 << 16, inflated_bytes=1 << 16, json_bytes=1 << 16))
    try:
        signals = receiver.receive(body, content_type, encoding, path=path).signals
    except BadRequest as error:
        answer = error
    else:
        assert all(str(signal).encode() for signal in signals)
        return
    assert 400 <= answer.status < 500
    assert answer.response(content_type)[0]


@settings(max_examples=300)
@given(mutated_bodies(), st.sampled_from(["/v1/traces", "/v1/logs"]))
def test_damaged_requests_raise_nothing_else(body: tuple[bytes, str], path: str) -> None:
    survives(*body, None, path)


@settings(max_examples=300)
@given(
    st.binary(max_size=200),
    st.sampled_from([PROTOBUF, "application/json", "x"]),
    st.sampled_from([None, "gzip", "y"]),
    st.sampled_from(["/v1/traces", "/v1/logs", "/"]),
)
def test_random_bytes_raise_nothing_else(body: bytes, content_type: str, encoding: str | None, path: str) -> None:
    survives(body, content_type, encoding, path)


@settings(max_examples=200)
@given(json_values, st.sampled_from(["/v1/traces", "/v1/logs"]), st.booleans())
def test_odd_json_raises_nothing_else(value: Any, path: str, zipped: bool) -> None:
    body = json.dumps(value).encode()
    survives(gzip.compress(body) if zipped else body, "application/json", "gzip" if zipped else None, path)
