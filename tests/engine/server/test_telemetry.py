"""The server's spans tell what happened and hang below what caused it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from kvtrace.engine.config import PolicyMode
from kvtrace.engine.records import EngineEvent, EventKind
from kvtrace.engine.sequence import Usage
from kvtrace.engine.server.records import RequestRecord
from kvtrace.engine.server.telemetry import SpanRecorder, own_provider
from kvtrace.engine.server.telemetry.install import install_spans
from kvtrace.engine.server.telemetry.provider import end
from kvtrace.tracer import attributes as names
from kvtrace.tracer.signals import ToolEnded, ToolStarted

from .conftest import tiny_settings
from .support import running, text_body, until
from .tiny_tools import tiny_tools_settings

TRACE, SPAN = "ab" * 16, "cd" * 8
TOOL_TRACE, TOOL_SPAN = "12" * 16, "34" * 8
SECOND = 10**9


class StoppedClock:
    """A moment after everything below."""

    def unix_ns(self) -> int:
        return 15 * SECOND + 1


class Recorded:
    """A recorder whose spans end up in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.recorder = SpanRecorder(provider.get_tracer("test"), lambda: "tiny", StoppedClock())

    def spans(self) -> dict[str, ReadableSpan]:
        """By name, once everything was written."""
        self.recorder.close()
        return {span.name: span for span in self.exporter.get_finished_spans()}


def record(**changes: Any) -> RequestRecord:
    whole = RequestRecord(
        response_id="chatcmpl-1",
        endpoint="chat",
        agent="agent-1",
        model="asked",
        stream=True,
        arrived_unix_ns=10 * SECOND,
        traceparent=f"00-{TRACE}-{SPAN}-01",
        max_tokens=64,
        temperature=0.5,
        top_p=0.9,
        first_token_unix_ns=11 * SECOND,
        last_token_unix_ns=13 * SECOND,
        ended_unix_ns=14 * SECOND,
        outcome="tool_calls",
        usage=Usage(100, 7, 32, 16, 52, 5, [(10 * SECOND, 10 * SECOND + 250)]),
        queued_s=0.2,
        restoring_s=0.05,
        tool_calls={"call_1": "grep"},
    )
    return replace(whole, **changes)


def event(kind: EventKind, at_ns: int, *, caused: bool = False) -> EngineEvent:
    ids = (TOOL_TRACE, TOOL_SPAN) if caused else (None, None)
    return EngineEvent(at_ns, "agent-1", kind, "grep", 4096, 40.0, "tool started", *ids)


def test_a_request_is_a_model_call_below_the_callers_span() -> None:
    recorded = Recorded()
    recorded.recorder.request(record())
    span = recorded.spans()["chat tiny"]
    assert span.kind is SpanKind.SERVER
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert (span.start_time, span.end_time) == (10 * SECOND, 14 * SECOND)
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        names.GEN_AI_OPERATION_NAME: "chat",
        names.GEN_AI_PROVIDER_NAME: "kvtrace",
        names.GEN_AI_REQUEST_MODEL: "asked",
        names.GEN_AI_RESPONSE_MODEL: "tiny",
        names.GEN_AI_RESPONSE_ID: "chatcmpl-1",
        names.GEN_AI_REQUEST_STREAM: True,
        names.GEN_AI_REQUEST_MAX_TOKENS: 64,
        names.GEN_AI_REQUEST_TEMPERATURE: 0.5,
        names.GEN_AI_REQUEST_TOP_P: 0.9,
        names.GEN_AI_USAGE_INPUT_TOKENS: 100,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 7,
        names.GEN_AI_USAGE_CACHE_READ: 48,
        names.GEN_AI_RESPONSE_FINISH_REASONS: ("tool_calls",),
        names.GEN_AI_TIME_TO_FIRST_CHUNK: 1.0,
        names.AGENT_ID: "agent-1",
        names.CACHED_DEVICE_TOKENS: 32,
        names.CACHED_HOST_TOKENS: 16,
        names.PREFILLED_TOKENS: 52,
        names.REPREFILLED_TOKENS: 5,
        names.QUEUED_SECONDS: 0.2,
        names.RESTORING_SECONDS: 0.05,
        names.QUEUED_INTERVALS: (10 * SECOND, 10 * SECOND + 250),
        names.RESPONSE_TOOL_CALL_IDS: ("call_1",),
    }


@pytest.mark.parametrize("traceparent", [None, "", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_without_a_usable_traceparent_it_begins_a_trace(traceparent: str | None) -> None:
    recorded = Recorded()
    recorded.recorder.request(record(traceparent=traceparent))
    assert recorded.spans()["chat tiny"].parent is None


def test_a_failure_says_what_kind_it_was() -> None:
    recorded = Recorded()
    recorded.recorder.request(record(outcome="error", error="the step failed", endpoint="completions"))
    span = recorded.spans()["text_completion tiny"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "the step failed")
    assert (span.attributes or {})[names.ERROR_TYPE] == "error"


def test_a_client_that_went_away_is_no_failure() -> None:
    recorded = Recorded()
    recorded.recorder.request(record(outcome="cancelled", error="gone"))
    span = recorded.spans()["chat tiny"]
    assert span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})[names.OUTCOME] == names.OUTCOME_CANCELLED


@pytest.mark.parametrize(("kind", "name"), [(EventKind.PARK, "kv.park"), (EventKind.RESTORE, "kv.restore")])
def test_kv_hangs_below_the_tool_that_caused_it_and_is_linked_to_it(kind: EventKind, name: str) -> None:
    recorded = Recorded()
    recorded.recorder.event(event(kind, 20 * SECOND, caused=True))
    span = recorded.spans()[name]
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == TOOL_SPAN
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TOOL_TRACE]
    assert span.end_time == 20 * SECOND
    assert span.start_time == 20 * SECOND - 40_000_000
    assert dict(span.attributes or {}) == {
        names.AGENT_ID: "agent-1",
        names.GEN_AI_TOOL_NAME: "grep",
        names.KV_BYTES: 4096,
        names.KV_WHY: "tool started",
    }


@pytest.mark.parametrize("record_first", [True, False])
@pytest.mark.parametrize(
    ("kind", "at_s", "explained"),
    [
        (EventKind.PARK, 15, True),  # the turn had ended
        (EventKind.PARK, 9, False),  # it had not begun
        (EventKind.RESTORE, 11, True),  # the request waited for it
        (EventKind.RESTORE, 15, False),  # it was over
    ],
)
def test_kv_without_a_tool_hangs_below_the_request_that_caused_it(
    kind: EventKind, at_s: int, explained: bool, record_first: bool
) -> None:
    recorded = Recorded()
    told: list[Callable[[], None]] = [
        lambda: recorded.recorder.request(record()),
        lambda: recorded.recorder.event(event(kind, at_s * SECOND)),
    ]
    for tell in told if record_first else reversed(told):
        tell()
    spans = recorded.spans()
    span = spans["kv.park" if kind is EventKind.PARK else "kv.restore"]
    turn = spans["chat tiny"].get_span_context()
    assert turn is not None
    if explained:
        assert span.parent is not None
        assert span.parent.span_id == turn.span_id
        assert [link.context.span_id for link in span.links] == [turn.span_id]
    else:
        assert span.parent is None
        assert not span.links


def test_other_events_are_no_spans() -> None:
    recorded = Recorded()
    for kind in set(EventKind) - {EventKind.PARK, EventKind.RESTORE}:
        recorded.recorder.event(event(kind, SECOND))
    assert recorded.spans() == {}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {names.ENV_OTLP_ENDPOINT: "http://127.0.0.1:4318", names.ENV_TRACES_EXPORTER: "none"},
        {names.ENV_OTLP_ENDPOINT: "http://127.0.0.1:4318", names.ENV_SDK_DISABLED: "true"},
    ],
)
def test_nothing_is_recorded_unless_it_was_asked_for(environment: dict[str, str]) -> None:
    assert own_provider(environment) is None


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """An OTLP/HTTP receiver: its URL and what it got."""
    got: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_spans_of_a_real_server_reach_a_collector(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    collector: tuple[str, list[ExportTraceServiceRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn that ends in a tool call: the request's span, and the park that followed, in the caller's trace."""
    pytest.importorskip("llguidance")
    url, got = collector
    monkeypatch.setenv(names.ENV_OTLP_ENDPOINT, url)
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": False}},
    }
    settings = replace(tiny_tools_settings(tiny_folder("llama"), tmp_path), policy=PolicyMode.SWAP)
    with running(settings) as server:
        answer = server.http.post(
            "/v1/chat/completions",
            json={
                "model": server.model,
                "messages": [{"role": "user", "content": "go"}],
                "tools": [tool],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "max_tokens": 80,
            },
            headers={"traceparent": f"00-{TRACE}-{SPAN}-01", names.HEADER_AGENT: "agent-7"},
        )
        assert answer.json()["choices"][0]["finish_reason"] == "tool_calls", answer.text
        until(lambda: any(one.kind is EventKind.PARK for one in server.service.engine.state().events))
    found = [
        (resource, span)
        for one in got
        for resource in one.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    spans = {span.name: span for _, span in found}
    assert {attribute.value.string_value for attribute in found[0][0].resource.attributes} >= {"kvtrace-serve"}
    assert {span.trace_id.hex() for _, span in found} == {TRACE}
    turn = spans[f"chat {server.model}"]
    assert turn.parent_span_id.hex() == SPAN
    assert spans["kv.park"].parent_span_id == turn.span_id
    assert [link.span_id for link in spans["kv.park"].links] == [turn.span_id]


def test_kv_of_a_traced_tool_is_in_the_tools_own_trace(
    tiny_folder: Callable[[str], Path],
    collector: tuple[str, list[ExportTraceServiceRequest]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache leaves when the tool's span starts and another agent takes its place; it comes back when the span ends."""
    url, got = collector
    monkeypatch.setenv(names.ENV_OTLP_ENDPOINT, url)
    with running(replace(tiny_settings(tiny_folder("llama")), policy=PolicyMode.EAGER)) as server:
        engine = server.service.engine
        server.http.post(
            "/v1/completions",
            json=text_body(server.model, "hello " * 10),
            headers={names.HEADER_AGENT: "agent-8"},
        )
        begun = engine.state().time_unix_ns + SECOND
        engine.signal(ToolStarted(TOOL_TRACE, TOOL_SPAN, begun, "grep", "agent-8"))
        until(lambda: any(one.kind is EventKind.PARK for one in engine.state().events))
        engine.signal(ToolEnded(TOOL_TRACE, TOOL_SPAN, begun + SECOND, "grep", "agent-8"))
        until(lambda: any(one.kind is EventKind.RESTORE for one in engine.state().events))
    spans = {
        span.name: span for one in got for each in one.resource_spans for s in each.scope_spans for span in s.spans
    }
    for name in ("kv.park", "kv.restore"):
        assert spans[name].trace_id.hex() == TOOL_TRACE
        assert spans[name].parent_span_id.hex() == TOOL_SPAN
        assert [link.span_id.hex() for link in spans[name].links] == [TOOL_SPAN]


def test_a_dead_collector_does_not_hold_up_the_end() -> None:
    provider = own_provider({names.ENV_OTLP_ENDPOINT: "http://127.0.0.1:9"})
    assert provider is not None
    provider.get_tracer("test").start_span("x").end()
    end(provider, 0.0)


def test_without_export_the_server_has_no_recorder(tiny_folder: Callable[[str], Path]) -> None:
    from kvtrace.engine.server.service import Service

    install_spans(Service(tiny_settings(tiny_folder("llama"))))()
    assert not [thread for thread in threading.enumerate() if thread.name == "kvtrace-spans"]
