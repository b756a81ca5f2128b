"""The Collector's table in chDB, behind ClickHouse's HTTP interface: for tests of what reads it.

Spans stand here once and are written twice, as the Collector's file exporter and as its ClickHouse exporter would.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kvtrace.analysis.normal import SpanRecord
from kvtrace.analysis.testing import otlp_line, otlp_span
from kvtrace.tracer import attributes as names

PASSWORD = "s:e/cret"
DATABASE = "observed"
_COLUMNS = """
Timestamp DateTime64(9, 'UTC'), TraceId String, SpanId String, ParentSpanId String, TraceState String,
SpanName LowCardinality(String), SpanKind LowCardinality(String), ServiceName LowCardinality(String),
ResourceAttributes Map(LowCardinality(String), String), ScopeName String, ScopeVersion String,
SpanAttributes Map(LowCardinality(String), String), Duration UInt64, StatusCode LowCardinality(String),
StatusMessage String, Events Nested(Timestamp DateTime64(9), Name LowCardinality(String),
Attributes Map(LowCardinality(String), String)), Links Nested(TraceId String, SpanId String, TraceState String,
Attributes Map(LowCardinality(String), String))
"""
_OPERATIONS = {
    "tool": names.OPERATION_EXECUTE_TOOL,
    "model": names.OPERATION_CHAT,
    "agent": names.OPERATION_INVOKE_AGENT,
    "human": names.OPERATION_HUMAN_WAIT,
}


@dataclass(frozen=True, slots=True)
class Span:
    """A span on its way through the Collector; an instant that is ``None`` is 0 there."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    resource: Mapping[str, Any] = field(default_factory=dict)
    failed: bool = False


def as_span(record: SpanRecord) -> Span:
    """A span of which a record might be read."""
    told: dict[str, Any] = {
        names.GEN_AI_OPERATION_NAME: _OPERATIONS.get(record.kind),
        names.AGENT_ID: record.agent_id,
        names.PARENT_AGENT_ID: record.parent_agent_id,
        names.GEN_AI_AGENT_ID: record.agent_label,
        names.GEN_AI_AGENT_NAME: record.agent_name,
        names.GEN_AI_CONVERSATION_ID: record.conversation_id,
        names.GEN_AI_TOOL_NAME: record.name if record.kind == "tool" else None,
        names.GEN_AI_TOOL_CALL_ID: record.call_id,
        names.GEN_AI_USAGE_INPUT_TOKENS: record.input_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: record.output_tokens,
        names.QUEUED_INTERVALS: record.queued_unix_ns and json.loads(record.queued_unix_ns),
        names.SUSPENDED_INTERVALS: record.suspended_unix_ns and json.loads(record.suspended_unix_ns),
    }
    if record.kind == "model" and record.confidence == "derived":
        # An older instrumentation names no operation, but who served what.
        told |= {names.GEN_AI_OPERATION_NAME: None, names.GEN_AI_AGENT_NAME: None}
        told |= {
            "gen_ai.system": "openai",
            names.GEN_AI_REQUEST_MODEL: "m",
            names.GEN_AI_RESPONSE_FINISH_REASONS: ["stop"],
        }
    return Span(
        record.name,
        record.trace_id,
        record.span_id,
        record.parent_span_id or "",
        record.start_ns,
        record.end_ns,
        {key: value for key, value in told.items() if value is not None},
        {names.HOST_NAME: "h", names.PROCESS_PID: record.process + 1},
        failed=record.error is not None,
    )


def as_line(span: Span) -> str:
    """A line of the file exporter."""
    written = otlp_span(None, None, None, span=0, name=span.name, attributes=span.attributes)
    written |= {
        "name": span.name,
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_span_id,
        "startTimeUnixNano": str(span.start_ns or 0),
        "endTimeUnixNano": str(span.end_ns or 0),
        "status": {"code": 2} if span.failed else {},
    }
    return otlp_line([written], span.resource)


def _as_row(span: Span) -> str:
    """A row of the ClickHouse exporter: every value is a text, and a length without a sign."""
    start_ns, end_ns = span.start_ns or 0, span.end_ns or 0
    row = {
        "Timestamp": f"{datetime.fromtimestamp(start_ns // 10**9, UTC):%Y-%m-%d %H:%M:%S}.{start_ns % 10**9:09d}",
        "TraceId": span.trace_id,
        "SpanId": span.span_id,
        "ParentSpanId": span.parent_span_id,
        "SpanName": span.name,
        "ResourceAttributes": {key: _as_text(value) for key, value in span.resource.items()},
        "SpanAttributes": {key: _as_text(value) for key, value in span.attributes.items()},
        "Duration": (end_ns - start_ns) % 2**64,
        "StatusCode": "Error" if span.failed else "Unset",
    }
    return json.dumps(row)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class Chdb:
    """chDB as a server's only database; it keeps one session at a time."""

    def __init__(self) -> None:
        self._session: Any = import_module("chdb.session").Session()
        self._client = ""
        self._temporary: list[str] = []
        self._session.query(f"create database if not exists {DATABASE}")

    def close(self) -> None:
        """Let go of it."""
        self._session.close()

    def fill(self, spans: Iterable[Span], table: str = "otel_traces") -> None:
        """Have the table hold these spans and no others."""
        name = f"{DATABASE}.{table}"
        self._session.query(f"drop table if exists {name}")
        self._session.query(
            f"create table {name} ({_COLUMNS}) engine = MergeTree order by (ServiceName, SpanName, toDateTime(Timestamp))"
        )
        rows = "\n".join(map(_as_row, spans))
        self._session.query(
            f"insert into {name} settings input_format_import_nested_json = 1 format JSONEachRow\n{rows}"
        )

    def answer(self, statement: str, asked: dict[str, str]) -> bytes:
        """Answer one request, with the settings it came with."""
        client = asked.pop("session_id")
        if client != self._client:
            for table in self._temporary:
                self._session.query(f"drop temporary table if exists {table}")
            self._client, self._temporary = client, []
        form = asked.pop("default_format")
        asked.pop("wait_end_of_query")
        self._session.query(f"set {', '.join(f'{key} = {value}' for key, value in asked.items())}")
        self._temporary += re.findall(r"^create temporary table (\w+)", statement)
        return bytes(self._session.query(statement, form).bytes())


@contextmanager
def serving(chdb: Chdb) -> Iterator[int]:
    """Port on which ``chdb`` answers as ClickHouse's HTTP interface does."""

    failure: type[Exception] = import_module("chdb").ChdbError

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            statement = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, code, body = 200, "", b""
            if self.headers["X-ClickHouse-Key"] != PASSWORD:
                status, code, body = 403, "516", b"Code: 516. DB::Exception: Authentication failed"
            else:
                try:
                    body = chdb.answer(statement, dict(parse_qsl(urlsplit(self.path).query)))
                except failure as error:
                    status, body = 500, str(error).encode()
                    code = (re.findall(r"Code: (\d+)", str(error)) or ["0"])[0]
            self.send_response(status)
            if code:
                self.send_header("X-ClickHouse-Exception-Code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
