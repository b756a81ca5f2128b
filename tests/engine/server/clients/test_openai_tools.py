"""The openai package calls tools: streamed deltas, several turns, and ids that the tools' spans are matched by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from kvtrace.engine.records import AgentState
from kvtrace.tracer.signals import ToolEnded, ToolStarted

from ..support import Running, running, until
from ..tiny_tools import tiny_tools_settings

pytest.importorskip("llguidance")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"pattern": {"type": "string", "maxLength": 6}, "whole_words": {"type": "boolean"}},
    "required": ["pattern", "whole_words"],
    "additionalProperties": False,
}
GREP: Any = {"type": "function", "function": {"name": "grep", "description": "Search files", "parameters": SCHEMA}}
WAITING = {AgentState.BLOCKED_RESIDENT, AgentState.PARKING, AgentState.PARKED}


@pytest.fixture
def client(smollm2_server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{smollm2_server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def gathered(chunks: Iterator[ChatCompletionChunk]) -> tuple[list[dict[str, Any]], str | None, Any]:
    """Tool calls put together from their deltas, the reason of the end, and the usage."""
    calls: list[dict[str, Any]] = []
    reason, usage = None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for delta in choice.delta.tool_calls or []:
                assert delta.function is not None
                if delta.id is not None:
                    assert delta.index == len(calls)
                    calls.append({"id": delta.id, "name": delta.function.name, "pieces": []})
                if delta.function.arguments:
                    calls[delta.index]["pieces"].append(delta.function.arguments)
    return calls, reason, usage


def agent_of(server: Running, agent: str) -> Any:
    return next((one for one in server.service.engine.state().agents if one.agent == agent), None)


def test_a_streamed_call_and_the_turn_after_it(client: openai.OpenAI, smollm2_server: Running) -> None:
    model = smollm2_server.model
    headers = {"X-Kvtrace-Agent": "openai-tools"}
    messages: list[Any] = [{"role": "user", "content": "Where is the word kv used?"}]
    options: dict[str, Any] = {"model": model, "tools": [GREP], "temperature": 0, "extra_headers": headers}
    stream = client.chat.completions.create(
        messages=messages,
        tool_choice={"type": "function", "function": {"name": "grep"}},
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=60,
        **options,
    )
    (call,), reason, usage = gathered(iter(stream))
    arguments = "".join(call["pieces"])
    assert reason == "tool_calls"
    assert call["name"] == "grep"
    assert len(call["pieces"]) > 2, "the arguments came piece by piece"
    jsonschema.validate(json.loads(arguments), SCHEMA)

    # The engine knows by itself that the agent waits, and a span that has nothing but the call's id is its.
    until(lambda: agent_of(smollm2_server, "openai-tools").state in WAITING)
    assert agent_of(smollm2_server, "openai-tools").tool == "grep"
    now = smollm2_server.service.engine.state().time_unix_ns
    unmatched = smollm2_server.service.engine.state().totals.unmatched_signals
    smollm2_server.service.engine.signal(ToolStarted("e" * 32, "f" * 16, now + 1, "grep-by-id", call_id=call["id"]))
    until(lambda: agent_of(smollm2_server, "openai-tools").tool == "grep-by-id")
    smollm2_server.service.engine.signal(ToolEnded("e" * 32, "f" * 16, now + 2, "grep-by-id", call_id=call["id"]))
    until(lambda: agent_of(smollm2_server, "openai-tools").state not in WAITING)
    assert smollm2_server.service.engine.state().totals.unmatched_signals == unmatched

    function = {"name": "grep", "arguments": arguments}
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call["id"], "content": "kv.py"},
    ]
    answer = client.chat.completions.create(messages=messages, tool_choice="none", max_tokens=6, **options)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content
    details = answer.usage.prompt_tokens_details if answer.usage is not None else None
    assert details is not None
    # Prompt and call of the first turn are the second one's prefix to the token; the call's last token has no KV yet.
    before = usage.prompt_tokens + usage.completion_tokens
    assert (details.cached_tokens or 0) >= before - 17


@pytest.fixture(scope="module")
def tiny(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tiny_tools_settings(tiny_folder("llama"), tmp_path_factory.mktemp("tools"))) as server:
        yield server


def ask_tiny(server: Running, **options: Any) -> Any:
    """A random model's answer: whatever form it has comes from the grammar."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": "-"}], **({"max_tokens": 150} | options)
        )


@pytest.mark.parametrize("parallel", [True, False])
def test_several_calls_have_ids_of_their_own_and_can_be_forbidden(tiny: Running, parallel: bool) -> None:
    # The end of the answer is made unlikely, so that only the grammar or the limit ends it.
    answer = ask_tiny(
        tiny, tools=[GREP], tool_choice="required", parallel_tool_calls=parallel, logit_bias={"1": -100}, temperature=0
    )
    calls = answer.choices[0].message.tool_calls
    assert (len(calls) > 1) == parallel
    assert len({call.id for call in calls}) == len(calls)
    assert answer.choices[0].finish_reason == ("length" if parallel else "tool_calls")


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_each_choice_is_held_to_the_schema_whether_greedy_or_drawn(tiny: Running, temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Lima"]}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    held = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    answer = ask_tiny(tiny, response_format=held, n=3, temperature=temperature, seed=7)
    assert len(answer.choices) == 3
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), schema)


def test_tools_that_must_not_be_called_are_not(tiny: Running) -> None:
    answer = ask_tiny(tiny, tools=[GREP], tool_choice="none", temperature=1.5, seed=3, max_tokens=60)
    assert answer.choices[0].message.tool_calls is None
    assert "<tool_call>" not in answer.choices[0].message.content


def test_a_hostile_schema_is_a_400_that_names_the_field(tiny: Running) -> None:
    schema = {"$ref": "https://example.org/schema.json"}
    held = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refusal:
        ask_tiny(tiny, response_format=held)
    assert refusal.value.param == "response_format.json_schema.schema"
    assert "points outside" in refusal.value.message
