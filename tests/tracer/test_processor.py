from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode, Tracer

from kvtrace.tracer import KvtraceSpanProcessor, ToolEnded, ToolStarted, agent, traced_tool
from kvtrace.tracer.processor import KvtraceSpanExporter
from kvtrace.tracer.testing import Captured, capture, read_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.tracer.conftest import Program

CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.tool.call.id": "c1"}
AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "planner"}


@pytest.fixture
def provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(KvtraceSpanProcessor())
    return provider


@pytest.fixture
def recorded(provider: TracerProvider) -> Iterator[Captured]:
    with capture(tracer_provider=provider) as captured:
        yield captured


@pytest.fixture
def theirs(provider: TracerProvider) -> Tracer:
    return provider.get_tracer("some.library", "1.2")


def test_start_is_on_disk_and_signalled_before_the_tool_runs(theirs: Tracer, recorded: Captured) -> None:
    with agent("a", id="a"), theirs.start_as_current_span("execute_tool search", attributes=TOOL) as span:
        assert recorded.records[-1].end_unix_ns is None
        started = recorded.signals[-1]
        assert isinstance(started, ToolStarted)
        assert (started.tool, started.agent, started.call_id) == ("search", "a", "c1")
        assert recorded.records[-1].attributes["kvtrace.agent.id"] == "a"
        assert recorded.records[-1].span_id == f"{span.get_span_context().span_id:016x}"
    ended = recorded.signals[-1]
    assert isinstance(ended, ToolEnded)
    assert (ended.span_id, ended.agent, ended.error) == (started.span_id, "a", None)


@pytest.mark.parametrize(
    "attributes",
    [
        TOOL,
        {"openinference.span.kind": "TOOL", "tool.name": "search"},
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "search"},
    ],
)
def test_tools_of_every_convention_are_signalled(
    theirs: Tracer, recorded: Captured, attributes: dict[str, str]
) -> None:
    theirs.start_span("a span", attributes=attributes).end()
    assert [(type(signal), signal.tool) for signal in recorded.signals] == [
        (ToolStarted, "search"),
        (ToolEnded, "search"),
    ]


def test_own_spans_are_written_once(recorded: Captured) -> None:
    with agent("a"):
        traced_tool(lambda: None)()
    assert len(recorded.records) == 4
    assert len(recorded.signals) == 2


def test_both_kinds_of_spans_nest_in_the_file(theirs: Tracer, recorded: Captured) -> None:
    with theirs.start_as_current_span("outer"):
        traced_tool(lambda: theirs.start_span("inner").end())()
    inner, tool, outer = recorded.spans
    assert (inner.parent_id, tool.parent_id, outer.parent_id) == (tool.span_id, outer.span_id, None)


CONTENT = {
    "gen_ai.input.messages": "secret words",
    "gen_ai.output.messages": "secret words",
    "gen_ai.system_instructions": "secret words",
    "gen_ai.tool.call.arguments": "secret words",
    "gen_ai.tool.call.result": "secret words",
    "gen_ai.prompt.0.content": "secret words",
    "input.value": "secret words",
    "llm.input_messages.0.message.content": "secret words",
    "traceloop.entity.input": "secret words",
    "langfuse.observation.input": "secret words",
    "logfire.msg": "secret words",
    "db.statement": "secret words",
    "attribute.of.next.year": "secret words",
}


def test_content_of_others_stays_out_by_default(theirs: Tracer, recorded: Captured) -> None:
    def fail() -> None:
        with theirs.start_as_current_span("chat m", attributes=CHAT | CONTENT) as span:
            span.set_attribute("output.value", "secret words")
            span.set_attribute("gen_ai.usage.input_tokens", 7)
            raise ValueError("secret words")

    with pytest.raises(ValueError, match="secret"):
        fail()
    (file,) = recorded.directory.rglob("*.jsonl")
    assert "secret" not in file.read_text()
    attributes = recorded.spans[0].attributes
    assert attributes["gen_ai.usage.input_tokens"] == 7
    assert attributes["error.type"] == "ValueError"
    assert recorded.spans[0].status == 2


def test_content_of_others_is_kept_for_who_asks(provider: TracerProvider, theirs: Tracer) -> None:
    with capture(tracer_provider=provider, capture_content=True) as captured:
        theirs.start_span("chat m", attributes=CHAT | CONTENT | {"input.value": "x" * 100_000}).end()
        attributes = captured.spans[0].attributes
    assert set(attributes) >= set(CONTENT)
    assert len(attributes["input.value"]) == 8192


def test_agents_of_others_own_what_is_below_them(theirs: Tracer, recorded: Captured) -> None:
    with theirs.start_as_current_span("invoke_agent planner", attributes=AGENT):
        theirs.start_span("chat m", attributes=CHAT).end()
        traced_tool(lambda: None, name="ours")()
        with theirs.start_as_current_span("invoke_agent helper", attributes=AGENT | {"gen_ai.agent.name": "helper"}):
            theirs.start_span("execute_tool search", attributes=TOOL).end()
    by_name = {span.name: span for span in recorded.spans}
    planner, helper = by_name["invoke_agent planner"], by_name["invoke_agent helper"]
    owner = {name: span.attributes["kvtrace.agent.id"] for name, span in by_name.items()}
    assert owner["chat m"] == owner["execute_tool ours"] == owner["invoke_agent planner"] == planner.span_id
    assert owner["execute_tool search"] == owner["invoke_agent helper"] == helper.span_id
    assert helper.attributes["kvtrace.agent.parent.id"] == planner.span_id
    assert "kvtrace.agent.parent.id" not in planner.attributes


def test_agent_of_ours_owns_the_agents_of_others(theirs: Tracer, recorded: Captured) -> None:
    with agent("a", id="mine"), theirs.start_as_current_span("invoke_agent planner", attributes=AGENT):
        theirs.start_span("execute_tool search", attributes=TOOL).end()
    assert {record.attributes["kvtrace.agent.id"] for record in recorded.records} == {"mine"}


def chat(tracer: Tracer, start: int, end: int, *reasons: str) -> None:
    span = tracer.start_span("chat m", attributes=CHAT, start_time=start)
    span.set_attribute("gen_ai.response.finish_reasons", reasons)
    span.end(end)


def test_tools_nobody_traced_are_inferred_between_model_calls(theirs: Tracer, recorded: Captured) -> None:
    with agent("a", id="a"):
        chat(theirs, 100, 200, "tool_calls")
        chat(theirs, 500, 600, "stop")
        chat(theirs, 900, 950, "stop")
    (tool,) = [span for span in recorded.spans if span.attributes.get("kvtrace.inferred")]
    assert (tool.start_unix_ns, tool.end_unix_ns) == (200, 500)
    assert tool.attributes["gen_ai.operation.name"] == "execute_tool"
    assert tool.attributes["kvtrace.agent.id"] == "a"


@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_traced_tools_leave_nothing_to_infer(theirs: Tracer, recorded: Captured, whose: str) -> None:
    with agent("a"):
        chat(theirs, 100, 200, "tool_calls")
        if whose == "ours":
            traced_tool(lambda: None)()
        else:
            theirs.start_span("execute_tool search", attributes=TOOL).end()
        chat(theirs, 500, 600, "stop")
    assert [span for span in recorded.spans if span.attributes.get("kvtrace.inferred")] == []


def test_waits_of_one_agent_are_not_ended_by_another(theirs: Tracer, recorded: Captured) -> None:
    with agent("a", id="a"):
        chat(theirs, 100, 200, "tool_calls")
    with agent("b", id="b"):
        chat(theirs, 300, 400, "stop")
    with agent("a", id="a"):
        chat(theirs, 500, 600, "stop")
    (tool,) = [span for span in recorded.spans if span.attributes.get("kvtrace.inferred")]
    assert (tool.start_unix_ns, tool.end_unix_ns) == (200, 500)


def test_pending_spans_of_logfire_are_no_spans(theirs: Tracer, recorded: Captured) -> None:
    theirs.start_span("x", attributes={"logfire.span_type": "pending_span"}).end()
    assert recorded.records == []


def test_failed_tools_signal_their_error(theirs: Tracer, recorded: Captured) -> None:
    span = theirs.start_span("execute_tool search", attributes=TOOL)
    span.set_status(Status(StatusCode.ERROR, "secret words"))
    span.end()
    assert isinstance(recorded.signals[1], ToolEnded)
    assert recorded.signals[1].error == "error"


def test_disabled_processor_writes_nothing(provider: TracerProvider, theirs: Tracer) -> None:
    with capture(tracer_provider=provider, disabled=True) as captured:
        theirs.start_span("execute_tool search", attributes=TOOL).end()
        assert (captured.records, captured.signals) == ([], [])


def test_spans_that_never_end_do_not_pile_up(
    theirs: Tracer, recorded: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.tracer.processor._MOST_OPEN", 3)
    spans = [theirs.start_span("x") for _ in range(10)]
    for span in spans:
        span.end()
    assert len(recorded.records) == 20


def test_exporter_writes_complete_spans_of_others() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(KvtraceSpanExporter()))
    with capture(tracer_provider=provider) as captured:
        traced_tool(lambda: None)()
        provider.get_tracer("theirs").start_span("chat m", attributes=CHAT | CONTENT).end()
        assert [span.name for span in captured.spans] == ["execute_tool <lambda>", "chat m"]
        assert len(captured.records) == 3
        assert "secret" not in str(captured.records)


def test_open_spans_of_a_parent_end_once_after_a_fork(program: Program, tmp_path: Path) -> None:
    done = program("""
import os
from opentelemetry.sdk.trace import TracerProvider
from kvtrace.tracer import KvtraceSpanProcessor
provider = TracerProvider()
provider.add_span_processor(KvtraceSpanProcessor())
tracer = provider.get_tracer("theirs")
with tracer.start_as_current_span("outer"):
    pid = os.fork()
    tracer.start_span("inner").end()
if pid:
    os.waitpid(pid, 0)
""")
    assert done.returncode == 0, done.stderr
    ended = [record for record in read_records(tmp_path) if record.end_unix_ns]
    assert sorted(record.name for record in ended) == ["inner", "inner", "outer"]
    pids = {record.resource["process.pid"] for record in ended if record.name == "inner"}
    assert len(pids) == 2


def test_exporter_is_known_by_name_to_every_program(program: Program, tmp_path: Path) -> None:
    done = program(
        """
from opentelemetry.sdk._configuration import _OTelSDKConfigurator
_OTelSDKConfigurator().configure()
from opentelemetry import trace
trace.get_tracer("theirs").start_span("chat m", attributes={"gen_ai.operation.name": "chat"}).end()
trace.get_tracer_provider().shutdown()
""",
        OTEL_TRACES_EXPORTER="kvtrace",
    )
    assert done.returncode == 0, done.stderr
    (record,) = read_records(tmp_path)
    assert record.name == "chat m"
