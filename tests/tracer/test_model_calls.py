from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvtrace.tracer import COUNTS, agent, current_generation, generation, traced_tool
from kvtrace.tracer.testing import Captured, ManualClock, capture


def test_everything_the_caller_tells_is_recorded() -> None:
    clock = ManualClock()
    with capture(clock=clock) as captured:
        with agent("a", id="a"), generation("small", provider="kvtrace") as call:
            clock.advance(0.25)
            call.first_token()
            clock.advance(1)
            call.first_token()
            call.usage(10, 20, cache_read_tokens=5, prefilled_tokens=5, reprefilled_tokens=0)
            call.finish("tool_calls")
            call.response_model("small-1")
            call.queued([(1, 2)])
            call.queued([(3, 4), (5, 6)])
            call.tool_calls([("search", "c1")])
        start, end = captured.records[1], captured.spans[0]
    assert (end.name, end.kind, end.end_unix_ns) == ("chat small", 3, end.start_unix_ns + 1_250_000_000)
    assert start.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.provider.name": "kvtrace",
        "kvtrace.agent.id": "a",
        "gen_ai.agent.name": "a",
    }
    assert end.attributes == start.attributes | {
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 5,
        "kvtrace.prefilled_tokens": 5,
        "kvtrace.reprefilled_tokens": 0,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "gen_ai.response.model": "small-1",
        "kvtrace.queued.unix_ns": [1, 2, 3, 4, 5, 6],
        "kvtrace.response.tool_call_ids": ["c1"],
    }


@traced_tool
def search() -> None:
    pass


@traced_tool
def read() -> None:
    pass


def call_ids(captured: Captured) -> list[Any]:
    return [span.attributes.get("gen_ai.tool.call.id") for span in captured.spans if "execute_tool" in span.name]


def test_tools_take_the_call_ids_of_the_response(captured: Captured) -> None:
    with agent("a"):
        with generation("m") as call:
            call.tool_calls([("search", "s1"), ("read", "r1"), ("search", "s2")])
        read()
        search()
        search()
        search()
    assert call_ids(captured) == ["r1", "s1", "s2", None]
    assert [signal.call_id for signal in captured.signals[:2]] == ["r1", "r1"]


def test_newer_response_replaces_the_calls_of_the_older(captured: Captured) -> None:
    with agent("a"):
        for call_id in ("old", "new"):
            with generation("m") as call:
                call.tool_calls([("search", call_id)])
        search()
    assert call_ids(captured) == ["new"]


def test_no_agent_takes_calls_of_another(captured: Captured) -> None:
    with agent("a"), generation("m") as call:
        call.tool_calls([("search", "of a")])
    with agent("b"):
        search()
    search()
    assert call_ids(captured) == [None, None]


@pytest.mark.parametrize(
    "call",
    [
        {"id": "c", "type": "function", "function": {"name": "search", "arguments": "{}"}},
        {"id": "c", "type": "tool_use", "name": "search", "input": {}},
        SimpleNamespace(id="c", function=SimpleNamespace(name="search")),
        SimpleNamespace(id="c", name="search"),
        ("search", "c"),
        "c",
    ],
)
def test_calls_of_every_client_are_understood(captured: Captured, call: Any) -> None:
    with agent("a"):
        with generation("m") as response:
            response.tool_calls([call])
        search()
    assert call_ids(captured) == ["c"]


def test_nonsense_from_the_caller_is_counted_not_raised(captured: Captured) -> None:
    with agent("a"), generation("m") as call:
        call.tool_calls(5)  # type: ignore[arg-type]
        call.queued([(1, 2, 3)])  # type: ignore[list-item]
        call.tool_calls([object()])
    assert COUNTS.internal_errors == 2
    assert len(captured.spans) == 2


def test_decorated_model_calls_find_their_handle(captured: Captured) -> None:
    @generation("m")
    def answer(text: str) -> str:
        current_generation().usage(1, 2)
        return text

    @generation("m")
    async def answer_later() -> None:
        current_generation().usage(3, 4)

    @generation("m")
    def stream() -> Iterator[str]:
        current_generation().first_token()
        yield "a"
        current_generation().usage(5, 6)

    assert answer("x") == "x"
    asyncio.run(answer_later())
    assert list(stream()) == ["a"]
    current_generation().usage(7, 8)
    assert [span.attributes["gen_ai.usage.input_tokens"] for span in captured.spans] == [1, 3, 5]


def test_failed_model_call_is_an_error(captured: Captured) -> None:
    with pytest.raises(ValueError, match="secret"), generation("m"):
        raise ValueError("secret")
    (span,) = captured.spans
    assert (span.status, span.attributes["error.type"]) == (2, "ValueError")


def test_late_words_after_the_end_change_nothing(captured: Captured) -> None:
    with generation("m") as call:
        pass
    call.usage(1, 2)
    call.first_token()
    assert "gen_ai.usage.input_tokens" not in captured.spans[0].attributes
