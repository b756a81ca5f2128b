"""The openai package's Responses API, and openai-agents by its default, against the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled

from ..support import Running, running
from ..tiny_tools import tiny_tools_settings

pytest.importorskip("llguidance")

PAINT: Any = {
    "type": "function",
    "name": "paint",
    "parameters": {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]},
    "strict": False,
}
NAMED: Any = {"type": "function", "name": "paint"}


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tiny_tools_settings(tiny_folder("llama"), tmp_path_factory.mktemp("tools"))) as one:
        yield one


@pytest.fixture
def client(server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


def test_text_whole_and_streamed_is_the_same(client: Any, server: Running) -> None:
    options: dict[str, Any] = {"model": server.model, "input": "hello", "max_output_tokens": 9, "temperature": 0}
    whole = client.responses.create(**options)
    assert whole.status == "incomplete"
    assert whole.usage is not None
    assert whole.usage.output_tokens == 9
    with client.responses.stream(**options) as stream:
        events = list(stream)
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    final = events[-1].response
    assert events[-1].type == "response.incomplete"
    assert "".join(pieces) == final.output_text == whole.output_text
    assert final.id != whole.id


def test_a_call_and_its_result(client: Any, server: Running) -> None:
    asked: list[Any] = [{"role": "user", "content": "go"}]
    options: dict[str, Any] = {"model": server.model, "tools": [PAINT], "max_output_tokens": 100, "temperature": 0}
    headers = {"X-Kvtrace-Agent": "responses"}
    first = client.responses.create(input=asked, tool_choice=NAMED, extra_headers=headers, **options)
    (call,) = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments)["colour"] in ("red", "green")
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
    second = client.responses.create(input=[*asked, *first.output, answer], tool_choice="none", **options)
    assert second.output_text
    # The second request named nobody: the id of the call did.
    assert [record.agent for record in server.records[-2:]] == ["responses", "responses"]
    assert server.records[-1].endpoint == "responses"


def test_what_is_refused_has_its_field(client: Any, server: Running) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.responses.create(model=server.model, input="hello", previous_response_id="resp_1")
    assert refusal.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError, match="the context holds 400"):
        client.responses.create(model=server.model, input="x" * 2000)


def test_openai_agents_work_by_their_default(server: Running) -> None:
    painted: list[str] = []

    @function_tool
    def paint(colour: Literal["red", "green"]) -> str:
        """Paint the wall."""
        painted.append(colour)
        return f"painted {colour}"

    async def work() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            agent = Agent(
                name="painter",
                model=OpenAIResponsesModel(server.model, client),
                model_settings=ModelSettings(temperature=0, max_tokens=100, tool_choice="paint"),
                tools=[paint],
                tool_use_behavior="stop_on_first_tool",
            )
            return str((await Runner.run(agent, "go", max_turns=2)).final_output)

    set_tracing_disabled(True)
    assert asyncio.run(work()) == f"painted {painted[0]}"
    assert len(painted) == 1
