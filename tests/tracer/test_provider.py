from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

from kvtrace.tracer import COUNTS, agent, flush, generation, traced_tool
from kvtrace.tracer.testing import capture, read_records

if TYPE_CHECKING:
    from tests.tracer.conftest import Program


@traced_tool
def tool(fail: bool = False) -> None:
    if fail:
        raise ValueError("secret words")


def provider_with(sampler: Sampler | None = None) -> tuple[TracerProvider, InMemorySpanExporter]:
    provider, exporter = TracerProvider(sampler=sampler, shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def ids_of(spans: tuple[ReadableSpan, ...]) -> set[tuple[str, str]]:
    return {(f"{c.trace_id:032x}", f"{c.span_id:016x}") for span in spans if (c := span.get_span_context())}


def test_users_provider_gets_the_same_spans() -> None:
    provider, exporter = provider_with()
    with capture(tracer_provider=provider) as captured, agent("a", id="a"):
        with generation("m") as call:
            call.usage(1, 2)
        tool()
        with pytest.raises(ValueError, match="secret"):
            tool(fail=True)
        records = captured.spans
    exported = exporter.get_finished_spans()
    assert {(record.trace_id, record.span_id) for record in records} < ids_of(exported)
    chat, good, bad, _ = exported
    assert (chat.kind, good.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL)
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.usage.output_tokens"] == 2
    assert (bad.status.status_code, bad.status.description, bad.events) == (StatusCode.ERROR, None, ())
    assert [record.attributes for record in records] == [
        json.loads(json.dumps(dict(span.attributes or {}))) for span in exported[:3]
    ]
    assert [(record.start_unix_ns, record.end_unix_ns) for record in records] == [
        (span.start_time, span.end_time) for span in exported[:3]
    ]
    assert "secret words" not in "".join(span.to_json() for span in exported)


def test_users_own_spans_nest_with_ours() -> None:
    provider, exporter = provider_with()
    tracer = provider.get_tracer("user")
    nesting = traced_tool(lambda: tracer.start_span("inner").end(), name="nesting")
    with capture(tracer_provider=provider) as captured:
        with tracer.start_as_current_span("outer"):
            nesting()
        ours = captured.spans[0]
    inner, middle, outer = exporter.get_finished_spans()
    assert inner.parent is not None
    assert middle.parent is not None
    assert (inner.parent.span_id, middle.parent.span_id) == (middle.context.span_id, outer.context.span_id)
    assert ours.parent_id == f"{outer.context.span_id:016x}"


def test_sampler_that_drops_all_silences_nothing_of_ours() -> None:
    provider, exporter = provider_with(ALWAYS_OFF)
    with capture(tracer_provider=provider) as captured:
        with agent("a"):
            tool()
        inner, outer = captured.spans
        assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)
        assert len(captured.records) == 4
        assert len(captured.signals) == 2
    assert exporter.get_finished_spans() == ()


class Failing(SpanProcessor):
    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        raise RuntimeError("start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("end")


def test_failing_processor_of_the_user_stays_there() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Failing())
    with capture(tracer_provider=provider) as captured:
        tool()
        assert len(captured.spans) == 1
    assert COUNTS.internal_errors == 1


def test_sdk_that_is_switched_off_silences_nothing_of_ours(program: Program, tmp_path: Path) -> None:
    done = program(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
from kvtrace.tracer import agent, subscribe, traced_tool
seen = []
subscribe(seen.append)
tool = traced_tool(lambda: None)
with agent("a"):
    tool()
assert len(seen) == 2
""",
        OTEL_SDK_DISABLED="true",
    )
    assert done.returncode == 0, done.stderr
    inner, outer = [record for record in read_records(tmp_path) if record.end_unix_ns]
    assert (inner.parent_id, inner.trace_id) == (outer.span_id, outer.trace_id)


def test_no_provider_is_made_without_an_endpoint(program: Program) -> None:
    done = program("""
import sys
from opentelemetry import trace
from kvtrace.tracer import configure, flush, shutdown, traced_tool
configure()
traced_tool(lambda: None)()
assert type(trace.get_tracer_provider()) is trace.ProxyTracerProvider
assert flush() is True
shutdown()
assert not [name for name in sys.modules if name.startswith("opentelemetry.exporter")]
assert "opentelemetry.sdk" not in sys.modules
""")
    assert done.returncode == 0, done.stderr


def test_provider_set_later_is_used_from_then_on(program: Program) -> None:
    done = program("""
from opentelemetry import trace
from kvtrace.tracer import agent, traced_tool
tool = traced_tool(lambda: None)
with agent("a"):
    tool()
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tool()
assert [span.name for span in exporter.get_finished_spans()] == ["execute_tool <lambda>"]
""")
    assert done.returncode == 0, done.stderr


class _Receiver(BaseHTTPRequestHandler):
    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.bodies.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    bodies: list[tuple[str, bytes]] = []
    _Receiver.bodies = bodies
    with HTTPServer(("127.0.0.1", 0), _Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def test_agents_starting_at_once_share_one_export(
    program: Program, receiver: tuple[str, list[tuple[str, bytes]]]
) -> None:
    url, bodies = receiver
    done = program(
        """
import threading
from kvtrace.tracer import agent, traced_tool
tool = traced_tool(lambda: None)
gate = threading.Barrier(8)
def run(n):
    gate.wait()
    with agent(f"agent {n}"):
        tool()
threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"invoke_agent agent {n}".encode() in b"".join(body for _, body in bodies) for n in range(8))


@pytest.mark.parametrize("by", ["environment", "argument"])
def test_endpoint_gets_spans_before_exit(
    program: Program, receiver: tuple[str, list[tuple[str, bytes]]], by: str
) -> None:
    url, bodies = receiver
    argument = f"endpoint={url!r}" if by == "argument" else ""
    done = program(
        f"""
from kvtrace.tracer import configure, traced_tool
configure({argument})
traced_tool(lambda: None, name="exported")()
""",
        **({"OTEL_EXPORTER_OTLP_ENDPOINT": url} if by == "environment" else {}),
    )
    assert done.returncode == 0, done.stderr
    assert [path for path, _ in bodies] == ["/v1/traces"]
    assert b"execute_tool exported" in bodies[0][1]


def test_endpoint_leaves_the_users_provider_in_place(
    program: Program, receiver: tuple[str, list[tuple[str, bytes]]]
) -> None:
    url, bodies = receiver
    done = program(
        """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
mine = TracerProvider()
trace.set_tracer_provider(mine)
from kvtrace.tracer import traced_tool
traced_tool(lambda: None)()
assert trace.get_tracer_provider() is mine
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=url,
    )
    assert done.returncode == 0, done.stderr
    assert bodies == []


def test_dead_receiver_does_not_hold_up_the_exit(program: Program, tmp_path: Path) -> None:
    done = program(
        """
from kvtrace.tracer import shutdown, traced_tool
tool = traced_tool(lambda: None)
for _ in range(2000):
    tool()
shutdown(timeout_s=0.2)
""",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )
    assert done.returncode == 0, done.stderr
    assert len(read_records(tmp_path)) == 4000


def test_flush_without_an_sdk_has_nothing_to_do() -> None:
    if type(trace.get_tracer_provider()) is trace.ProxyTracerProvider:
        assert flush() is True
