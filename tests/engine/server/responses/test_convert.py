"""What the Responses API says is what the chat API is asked."""

from __future__ import annotations

from typing import Any

import pytest

from kvtrace.engine.server.grammar import FieldRefused
from kvtrace.engine.server.responses.convert import chat_request
from kvtrace.engine.server.responses.schemas import ResponsesRequest
from kvtrace.engine.server.schemas import ChatRequest


def chat(**fields: Any) -> ChatRequest:
    return chat_request(ResponsesRequest.model_validate({"model": "m", "input": "hello"} | fields))


def call(number: int, name: str = "grep") -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": "{}"}


def result(number: int, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": text}


def chat_call(number: int) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": "grep", "arguments": "{}"}}


def test_a_text_is_the_users() -> None:
    assert chat().messages == [{"role": "user", "content": "hello"}]
    assert chat(instructions="Be brief.").messages[0] == {"role": "system", "content": "Be brief."}


def test_what_the_assistant_did_in_one_turn_is_one_message() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Find it."}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        call(1),
        call(2),
        result(1, "a.py"),
        result(2, "b.py"),
        call(3),
        result(3, "c.py"),
        {"role": "user", "content": "Thanks."},
    ]
    assert chat(input=items).messages == [
        {"role": "user", "content": [{"type": "input_text", "text": "Find it."}]},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look."}],
            "reasoning_content": "Hm.",
            "tool_calls": [chat_call(1), chat_call(2)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a.py"},
        {"role": "tool", "tool_call_id": "call_2", "content": "b.py"},
        {"role": "assistant", "content": None, "tool_calls": [chat_call(3)]},
        {"role": "tool", "tool_call_id": "call_3", "content": "c.py"},
        {"role": "user", "content": "Thanks."},
    ]


def test_instructions_at_the_beginning_are_one_message() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "No jokes."}]},
        {"role": "system", "content": "English."},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "later"},
    ]
    system, user, later = chat(instructions="Be brief.", input=items).messages
    assert "".join(part["text"] for part in system["content"]) == "Be brief.\n\nNo jokes.\n\nEnglish."
    assert (user["role"], later["role"]) == ("user", "developer")
    assert chat(instructions="a", input=[{"role": "system", "content": "b"}]).messages[0]["content"] == "a\n\nb"


def test_settings_keep_their_meaning() -> None:
    schema = {"type": "object"}
    got = chat(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        tools=[
            {"type": "function", "name": "f", "parameters": schema, "strict": True},
            {"type": "web_search"},
            {"type": "custom", "name": "patch"},
        ],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        prompt_cache_key="key",
    )
    assert got.max_tokens == 7
    assert (got.temperature, got.top_p) == (0.5, 0.9)
    assert got.tools == [{"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}]
    assert got.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert got.parallel_tool_calls is False
    assert got.reasoning_effort == "low"
    assert got.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert got.prompt_cache_key == "key"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ],
)
def test_what_cannot_be_done_is_refused_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldRefused) as refusal:
        chat(**fields)
    assert refusal.value.param == param
