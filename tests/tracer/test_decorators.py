from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from kvtrace.tracer import (
    COUNTS,
    Signal,
    ToolEnded,
    ToolStarted,
    agent,
    current_agent,
    generation,
    headers,
    human_wait,
    subscribe,
    traced_tool,
    unsubscribe,
)
from kvtrace.tracer.testing import Captured, ManualClock, capture, read_records


def tool(call: str = "") -> str:
    return call


def test_signals_bracket_the_call() -> None:
    clock = ManualClock()
    with capture(clock=clock) as captured, agent("a", id="a", conversation="talk"):

        @traced_tool(name="slow", call_id="c1")
        def slow() -> None:
            assert [type(signal) for signal in captured.signals] == [ToolStarted]
            clock.advance(2)

        slow()
        span = captured.spans[0]
    whose = {"tool": "slow", "agent": "a", "conversation": "talk", "call_id": "c1"}
    ids = {"trace_id": span.trace_id, "span_id": span.span_id}
    assert captured.signals == [
        ToolStarted(**ids, time_unix_ns=span.start_unix_ns, **whose),
        ToolEnded(**ids, time_unix_ns=span.start_unix_ns + 2_000_000_000, **whose),
    ]


def test_start_is_on_disk_before_the_signal(captured: Captured) -> None:
    seen: list[int] = []
    subscribe(lambda signal: seen.append(len(captured.records)))
    traced_tool(tool)()
    assert seen == [1, 2]


def test_failing_tool_signals_its_error(captured: Captured) -> None:
    with pytest.raises(ZeroDivisionError):
        traced_tool(lambda: 1 / 0)()
    assert isinstance(captured.signals[1], ToolEnded)
    assert captured.signals[1].error == "ZeroDivisionError"


def test_raising_sink_is_counted_and_said_once(captured: Captured, caplog: pytest.LogCaptureFixture) -> None:
    def broken(signal: Signal) -> None:
        raise RuntimeError("secret")

    subscribe(broken)
    with caplog.at_level(logging.WARNING):
        assert traced_tool(tool)("x") == "x"
    assert COUNTS.sink_errors == 2
    assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    assert len(captured.signals) == 2


def test_unsubscribed_sinks_hear_nothing(captured: Captured) -> None:
    seen: list[Signal] = []
    subscribe(seen.append)
    subscribe(seen.append)
    traced_tool(tool)()
    assert len(seen) == 2
    unsubscribe(seen.append)
    traced_tool(tool)()
    assert len(seen) == 2


def test_call_id_can_be_computed_from_the_arguments(captured: Captured) -> None:
    traced_tool(tool, call_id=lambda call: call)("c7")
    assert captured.spans[0].attributes["gen_ai.tool.call.id"] == "c7"


def test_decorating_again_changes_options_not_spans(captured: Captured) -> None:
    once = traced_tool(name="search", tool_type="datastore")(tool)
    traced_tool(once, call_id="c1")("x")

    class Tools:
        @traced_tool
        def method(self) -> int:
            return 5

    assert traced_tool(Tools().method, call_id="c2")() == 5
    assert [
        (span.name, span.attributes["gen_ai.tool.call.id"], span.attributes["gen_ai.tool.type"])
        for span in captured.spans
    ] == [("execute_tool search", "c1", "datastore"), ("execute_tool method", "c2", "function")]


def test_decorating_again_keeps_wrappers_of_others(captured: Captured) -> None:
    def shouting(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def wrapper(*args: Any) -> str:
            return function(*args).upper()

        return wrapper

    assert traced_tool(shouting(traced_tool(tool)))("x") == "X"
    assert len(captured.spans) == 2


def test_consumer_time_is_set_apart_in_generators() -> None:
    clock = ManualClock()

    @traced_tool
    def steps() -> Iterator[int]:
        clock.advance(1)
        yield 1
        clock.advance(1)
        yield 2

    with capture(clock=clock) as captured:
        start = clock.unix_ns()
        for _ in steps():
            clock.advance(10)
        attributes = captured.spans[0].attributes
    second = 1_000_000_000
    gaps = [1, 11, 12, 22]
    assert attributes["kvtrace.suspended.unix_ns"] == [start + gap * second for gap in gaps]
    assert attributes["kvtrace.yielded"] == 2


def test_endless_generators_have_bounded_records() -> None:
    clock = ManualClock()

    @traced_tool
    def steps() -> Iterator[int]:
        yield from range(2000)

    with capture(clock=clock) as captured:
        for _ in steps():
            clock.advance(1)
        attributes = captured.spans[0].attributes
    assert attributes["kvtrace.yielded"] == 2000
    assert len(attributes["kvtrace.suspended.unix_ns"]) == 1024


def test_disabled_tracing_runs_tools_and_leaves_nothing() -> None:
    with capture(disabled=True) as captured:
        with agent("a", id="a") as me, generation("m") as call, human_wait():
            call.usage(1, 2)
            call.first_token()
            call.tool_calls([("tool", "c")])
            assert current_agent() is me
            assert headers()["X-Kvtrace-Agent"] == "a"
            assert traced_tool(tool)("x") == "x"
            assert list(traced_tool(iter)([1])) == [1]
        assert current_agent() is None
        assert (captured.records, captured.signals) == ([], [])


def test_internal_fault_runs_the_tool_untraced(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> str:
        raise RuntimeError

    monkeypatch.setattr("kvtrace.tracer.spans.OpenSpan._encode_start", broken)
    with agent("a") as me:
        assert me.name == "a"
        assert traced_tool(tool)("x") == "x"
    assert captured.records == []
    assert COUNTS.internal_errors == 2


def test_recordings_leave_everything_as_it_was(captured: Captured) -> None:
    with agent("outer"):
        with capture() as inner:
            traced_tool(tool)()
            assert len(inner.spans) == 1
            folder = inner.directory
        assert not folder.exists()
        traced_tool(tool)()
    assert [span.name for span in captured.spans] == ["execute_tool tool", "invoke_agent outer"]
    assert len(captured.signals) == 2


def test_span_across_two_recordings_ends_in_the_first() -> None:
    def steps() -> Iterator[int]:
        yield 1

    with capture() as captured:
        running = traced_tool(steps)()
        next(running)
        with capture() as other:
            list(running)
            assert other.records == []
        assert len(captured.spans) == 1
        assert read_records(captured.directory) == captured.records


@pytest.mark.parametrize("wrong", [int, 3, None])
def test_what_cannot_be_traced_is_refused(wrong: object) -> None:
    if wrong is None:
        with pytest.raises(TypeError, match="cannot trace"):
            traced_tool()(wrong)  # type: ignore[call-overload]
    else:
        with pytest.raises(TypeError, match="cannot trace"):
            traced_tool(wrong)  # type: ignore[call-overload]


def test_cancelled_and_closed_calls_say_so(captured: Captured) -> None:
    @traced_tool
    async def wait() -> None:
        await asyncio.sleep(5)

    @traced_tool
    def steps() -> Generator[int, None, None]:
        yield 1

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    generator = steps()
    next(generator)
    generator.close()
    assert [span.attributes["kvtrace.outcome"] for span in captured.spans] == ["cancelled", "closed"]


def test_disabled_tracing_keeps_the_users_exception() -> None:
    error = ValueError("mine")

    def fail() -> None:
        raise error

    with capture(disabled=True), pytest.raises(ValueError, match="mine") as raised:
        traced_tool(fail)()
    assert raised.value is error
    assert raised.value.__context__ is None
