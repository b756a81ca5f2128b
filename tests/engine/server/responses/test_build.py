"""The events of a response tell everything that the finished response holds, in an order that clients can follow."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from kvtrace.engine.sequence import Usage
from kvtrace.engine.server.responses.build import ResponseBuilder
from kvtrace.engine.server.tools.deltas import ContentDelta, Delta, ReasoningDelta, ToolCallDelta

HEAD: dict[str, Any] = {
    "id": "resp_1", "created_at": 1, "model": "m", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
}  # fmt: skip
USAGE = Usage(prompt_tokens=10, output_tokens=4, cached_device_tokens=3, cached_host_tokens=2)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def builder() -> ResponseBuilder:
    numbers = itertools.count()
    return ResponseBuilder(HEAD, lambda prefix: f"{prefix}_{next(numbers)}")


@st.composite
def outputs(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["content", "reasoning", "call", "more"]), max_size=12)):
        text = draw(st.text(min_size=1, max_size=3))
        if kind == "call" or (kind == "more" and not (deltas and isinstance(deltas[-1], ToolCallDelta))):
            deltas.append(ToolCallDelta(calls, id=f"call_{calls}", name="f"))
            calls += 1
        elif kind == "more":
            deltas.append(ToolCallDelta(calls - 1, arguments=text))
        else:
            deltas.append(ContentDelta(text) if kind == "content" else ReasoningDelta(text))
    return deltas


def replayed(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output, put together from the events as a client does."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "content_part.added":
                items[-1]["content"].append(dict(event["part"]))
            case "output_text.delta" | "reasoning_text.delta":
                items[-1]["content"][0]["text"] += event["delta"]
            case "function_call_arguments.delta":
                items[-1]["arguments"] += event["delta"]
            case "output_item.done":
                assert event["item"] == items[-1] | {"status": "completed"}
                items[-1]["status"] = "completed"
        if "item_id" in event:
            assert event["item_id"] == items[-1]["id"]
    return items


@given(deltas=outputs(), cut=st.booleans())
def test_events_add_up_to_the_response(deltas: list[Delta], cut: bool) -> None:
    one = builder()
    events = [*one.begin(), *one.take(deltas), *one.end("length" if cut else "stop", USAGE)]
    assert replayed(events) == one.body["output"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == ("response.incomplete" if cut else "response.completed")
    assert events[-1]["response"] == one.body
    if len(deltas) < 5:  # its check of a whole union takes long
        for event in events:
            EVENTS.validate_python(event)
    OpenAIResponse.model_validate(one.body)


@given(deltas=outputs())
def test_nothing_is_lost(deltas: list[Delta]) -> None:
    one = builder()
    one.take(deltas)
    one.end("stop", USAGE)
    output = one.body["output"]
    for kind, delta_type in (("message", ContentDelta), ("reasoning", ReasoningDelta)):
        wanted = "".join(delta.text for delta in deltas if isinstance(delta, delta_type))
        assert "".join(item["content"][0]["text"] for item in output if item["type"] == kind) == wanted
    wanted = "".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta))
    assert "".join(item["arguments"] for item in output if item["type"] == "function_call") == wanted


def test_a_failure_is_the_last_event() -> None:
    one = builder()
    one.begin()
    (event,) = one.fail("the step failed", "engine_error")
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "engine_error", "message": "the step failed"}
    assert event["response"]["status"] == "failed"


def test_usage_counts_what_was_cached_in_either_tier() -> None:
    one = builder()
    one.end("stop", USAGE)
    assert one.body["usage"]["input_tokens_details"]["cached_tokens"] == 5
    assert one.body["usage"]["total_tokens"] == 14
