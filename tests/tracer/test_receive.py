from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from kvtrace.tracer import attributes as names
from kvtrace.tracer.receive import BadRequest, Limits, Receiver
from kvtrace.tracer.signals import ToolEnded, ToolStarted

JSON = "application/json"
TRACE, SPAN, OTHER = "a" * 32, "b" * 16, "c" * 16
TOOL = {names.GEN_AI_OPERATION_NAME: "execute_tool", names.GEN_AI_TOOL_NAME: "search"}


def span(start: Any = "100", end: Any = None, *, span_id: str = SPAN, **fields: Any) -> dict[str, Any]:
    attributes = fields.pop("attributes", TOOL)
    found: dict[str, Any] = {
        "traceId": TRACE,
        "spanId": span_id,
        "name": "execute_tool search",
        "startTimeUnixNano": start,
        "attributes": attributes if isinstance(attributes, list) else pairs(attributes),
        **fields,
    }
    return found if end is None else {**found, "endTimeUnixNano": end}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]


def request(*spans: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


def event(name: str, attributes: dict[str, str] | None = None, at: str = "300", **fields: Any) -> bytes:
    record = {
        "traceId": TRACE,
        "spanId": SPAN,
        "timeUnixNano": at,
        "eventName": name,
        "attributes": pairs(attributes or {}),
        **fields,
    }
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}).encode()


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def started(**changes: Any) -> ToolStarted:
    return ToolStarted(**{"trace_id": TRACE, "span_id": SPAN, "time_unix_ns": 100, "tool": "search", **changes})


def ended(**changes: Any) -> ToolEnded:
    return ToolEnded(**{"trace_id": TRACE, "span_id": SPAN, "time_unix_ns": 200, "tool": "search", **changes})


def test_open_span_starts_and_complete_span_ends(receiver: Receiver) -> None:
    assert receiver.receive(request(span()), JSON).signals == (started(),)
    assert receiver.receive(request(span(end="200")), JSON).signals == (ended(),)


def test_each_start_and_end_signals_once(receiver: Receiver) -> None:
    body = request(span(), span(), span(end="200"), span(end="200"), span())
    assert receiver.receive(body, JSON).signals == (started(), ended())
    assert receiver.receive(body, JSON).signals == ()


def test_complete_span_never_seen_open_only_ends(receiver: Receiver) -> None:
    assert receiver.receive(request(span(end="200"), span()), JSON).signals == (ended(),)


def test_memory_of_spans_is_bounded() -> None:
    receiver = Receiver(Limits(remembered=2))
    for number in range(1, 50):
        receiver.receive(request(span(span_id=f"{number:016x}")), JSON)
    assert len(receiver._seen) == 2
    assert receiver.receive(request(span(span_id=f"{1:016x}")), JSON).signals == (started(span_id=f"{1:016x}"),)


@pytest.mark.parametrize(
    ("attributes", "tool"),
    [
        (TOOL, "search"),
        ({names.GEN_AI_OPERATION_NAME: "execute_tool"}, "search"),
        ({"openinference.span.kind": "TOOL", "tool.name": "find"}, "find"),
        ({"traceloop.span.kind": "tool", "traceloop.entity.name": "grep"}, "grep"),
    ],
)
def test_tools_are_known_by_every_convention(receiver: Receiver, attributes: dict[str, str], tool: str) -> None:
    assert receiver.receive(request(span(attributes=attributes)), JSON).signals == (started(tool=tool),)


@pytest.mark.parametrize(
    "attributes",
    [{}, {names.GEN_AI_OPERATION_NAME: "chat"}, {"openinference.span.kind": "LLM"}, {"http.method": "GET"}],
)
def test_other_spans_signal_nothing(receiver: Receiver, attributes: dict[str, str]) -> None:
    received = receiver.receive(request(span(attributes=attributes)), JSON)
    assert (received.signals, received.rejected, received.response_body) == ((), 0, b"{}")


def test_agent_conversation_and_call_are_read(receiver: Receiver) -> None:
    owner = {
        names.AGENT_ID: "a-1",
        names.GEN_AI_CONVERSATION_ID: "c-1",
        names.GEN_AI_TOOL_CALL_ID: "call-1",
    }
    (signal,) = receiver.receive(request(span(attributes=TOOL | owner)), JSON).signals
    assert signal == started(agent="a-1", conversation="c-1", call_id="call-1")


def test_unknown_agent_is_nobody(receiver: Receiver) -> None:
    attributes = TOOL | {names.AGENT_ID: names.UNKNOWN_AGENT, "session.id": "s-1"}
    (signal,) = receiver.receive(request(span(attributes=attributes)), JSON).signals
    assert (signal.agent, signal.conversation) == (None, "s-1")


def test_end_takes_owner_from_its_start(receiver: Receiver) -> None:
    receiver.receive(request(span(attributes=TOOL | {names.AGENT_ID: "a-1"})), JSON)
    (signal,) = receiver.receive(request(span(end="200")), JSON).signals
    assert signal.agent == "a-1"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, None),
        ({"status": {"code": 2}}, "_OTHER"),
        ({"status": {"code": "STATUS_CODE_ERROR"}}, "_OTHER"),
        ({"attributes": TOOL | {names.ERROR_TYPE: "TimeoutError"}}, "TimeoutError"),
    ],
)
def test_failure_is_named(receiver: Receiver, changes: dict[str, Any], error: str | None) -> None:
    (signal,) = receiver.receive(request(span(end="200", **changes)), JSON).signals
    assert signal == ended(error=error)


def test_logfire_pending_span_starts_its_parent(receiver: Receiver) -> None:
    pending = TOOL | {"logfire.span_type": "pending_span", "logfire.pending_parent_id": OTHER}
    placeholder = span(end="100", span_id=OTHER, parentSpanId=SPAN, attributes=pending)
    assert receiver.receive(request(placeholder), JSON).signals == (started(),)
    assert receiver.receive(request(span(end="200")), JSON).signals == (ended(),)


def test_log_events_start_and_end_a_span(receiver: Receiver) -> None:
    start = event(names.EVENT_SPAN_STARTED, TOOL | {names.AGENT_ID: "a-1"}, at="100")
    assert receiver.receive(start, JSON, path="/v1/logs").signals == (started(agent="a-1"),)
    assert receiver.receive(event(names.EVENT_SPAN_HEARTBEAT, TOOL), JSON, path="/v1/logs").signals == ()
    end = event(names.EVENT_SPAN_ENDED)
    assert receiver.receive(end, JSON, path="/v1/logs").signals == (ended(time_unix_ns=300, agent="a-1"),)
    assert receiver.receive(request(span(end="200")), JSON).signals == ()


def test_heartbeat_stands_for_a_lost_start(receiver: Receiver) -> None:
    body = event(names.EVENT_SPAN_HEARTBEAT, TOOL)
    assert receiver.receive(body, JSON, path="/v1/logs").signals == (started(time_unix_ns=300),)


def test_event_name_may_be_an_attribute(receiver: Receiver) -> None:
    body = event("", TOOL | {"event.name": names.EVENT_SPAN_STARTED})
    assert receiver.receive(body, JSON, path="/v1/logs").signals == (started(time_unix_ns=300),)


def test_events_of_other_spans_are_ignored(receiver: Receiver) -> None:
    for body in (event(names.EVENT_SPAN_ENDED), event(names.EVENT_SPAN_STARTED), event("exception", TOOL)):
        assert receiver.receive(body, JSON, path="/v1/logs").signals == ()


def test_gzip_and_parameters_of_content_type(receiver: Receiver) -> None:
    body = gzip.compress(request(span()))
    assert receiver.receive(body, "Application/JSON; charset=utf-8", "GZIP").signals == (started(),)


@pytest.mark.parametrize(
    "bad",
    [
        span(traceId="xyz"),
        span(traceId="0" * 32),
        span(spanId=""),
        span(spanId=7),
        span(start=None),
        span(start="NaN"),
        span(start=-1),
        span(start=True),
        span(start=1.5),
        span(start="1" * 400),
        span(start=1 << 64),
        span(end=[]),
        span(attributes=[{"key": "x"}]),
        span(attributes=[{"key": names.AGENT_ID, "value": {"stringValue": "\ud800"}}, *pairs(TOOL)]),
        span(attributes=[{"key": names.AGENT_ID, "value": {"stringValue": 7}}]),
        "no object",
        None,
    ],
)
def test_bad_span_is_counted_and_passed_over(receiver: Receiver, bad: Any) -> None:
    received = receiver.receive(request(bad, span(span_id=OTHER)), JSON)
    assert received.signals == (started(span_id=OTHER),)
    assert (received.rejected, received.status) == (1, 200)
    assert json.loads(received.response_body)["partialSuccess"]["rejectedSpans"] == "1"


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "status"),
    [
        (b"{", JSON, None, 400),
        (b"[]", JSON, None, 400),
        (b'{"resourceSpans": 1}', JSON, None, 400),
        (b'{"resourceSpans": [1]}', JSON, None, 400),
        (b'{"resourceSpans": NaN}', JSON, None, 400),
        (b"\xff\xfe{}", JSON, None, 400),
        (b"[" * 100_000, JSON, None, 400),
        (b'{"a":' * 100_000, JSON, None, 400),
        (b"9" * 100_000, JSON, None, 400),
        (b"{}", "text/html", None, 415),
        (b"{}", "", None, 415),
        (b"{}", JSON, "br", 415),
        (b"{}", JSON, "gzip", 400),
        (gzip.compress(b"{}", mtime=0)[:-4], JSON, "gzip", 400),
        (gzip.compress(b"{}", mtime=0) * 2, JSON, "gzip", 400),
        (b" " * (5 << 20), JSON, None, 413),
        (b"\x0a\xff", "application/x-protobuf", None, 400),
        (b"\x0b", "application/x-protobuf", None, 400),
        (b"\xff" * 20, "application/x-protobuf", None, 400),
    ],
)
def test_bad_body_is_refused(
    receiver: Receiver, body: bytes, content_type: str, encoding: str | None, status: int
) -> None:
    with pytest.raises(BadRequest) as caught:
        receiver.receive(body, content_type, encoding)
    assert caught.value.status == status
    assert len(caught.value.message) < 300


def test_unknown_path_is_refused(receiver: Receiver) -> None:
    with pytest.raises(BadRequest, match="/v1/traces or /v1/logs") as caught:
        receiver.receive(b"{}", JSON, path="/v1/metrics")
    assert caught.value.status == 404


@pytest.mark.parametrize("content_type", [JSON, "application/x-protobuf"])
def test_gzip_bomb_is_not_inflated(receiver: Receiver, content_type: str) -> None:
    bomb = gzip.compress(bytes(200 << 20), compresslevel=9)
    assert len(bomb) < receiver.limits.body_bytes
    with pytest.raises(BadRequest, match="inflates to more than") as caught:
        receiver.receive(bomb, content_type, "gzip")
    assert caught.value.status == 413


def test_refusal_is_answered_in_the_request_encoding() -> None:
    body, content_type = BadRequest(400, "no").response(JSON)
    assert (json.loads(body)["message"], content_type) == ("no", JSON)


def test_refused_body_changes_nothing(receiver: Receiver) -> None:
    broken = request(span())[:-2] + b',{"scopeSpans":7}]}'
    with pytest.raises(BadRequest):
        receiver.receive(broken, JSON)
    assert receiver.receive(request(span()), JSON).signals == (started(),)


def test_a_body_of_nothing_but_fields_is_bounded(receiver: Receiver) -> None:
    with pytest.raises(BadRequest, match="more than 400000 fields"):
        receiver.receive(b"\x0a\x00" * (2 << 20), "application/x-protobuf")
