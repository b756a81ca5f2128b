"""An agent of the openai-agents package works in several steps with tools, on the embedded model.

A 135M model solves nothing: what is claimed is that every step was a well-formed call of a tool that exists, with
arguments that keep to its schema, that the loop came to its end, and that no step computed its past again.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, Literal

import openai
import pytest
from agents import (
    Agent,
    FunctionToolResult,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
    set_tracing_disabled,
)

from ..support import Running

pytest.importorskip("llguidance")

STEPS = 3
seen: list[str] = []


@function_tool
def paint(colour: Literal["red", "green"], coats: Literal[1, 2]) -> str:
    """Paint the wall."""
    assert colour in ("red", "green")
    assert coats in (1, 2)
    seen.append("paint")
    return f"painted {colour}"


@function_tool
def look(dry: bool) -> str:
    """Look at the wall."""
    assert isinstance(dry, bool)
    seen.append("look")
    return "looks good"


def enough(_: RunContextWrapper[Any], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    return ToolsToFinalOutputResult(is_final_output=len(seen) >= STEPS, final_output=results[-1].output)


async def work(server: Running) -> tuple[str, str]:
    """The outputs of a run whose steps must each call some tool, and of its continuation, which need not."""
    headers = {"X-Kvtrace-Agent": "painter"}
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, default_headers=headers
    ) as client:
        agent = Agent(
            name="painter",
            instructions="Paint, then look.",
            model=OpenAIChatCompletionsModel(server.model, client),
            model_settings=ModelSettings(
                temperature=0, max_tokens=40, parallel_tool_calls=False, tool_choice="required"
            ),
            tools=[paint, look],
            tool_use_behavior=enough,
            reset_tool_choice=False,
        )
        run = await Runner.run(agent, "Make the wall red.", max_turns=STEPS)
        free = agent.clone(model_settings=ModelSettings(temperature=0, max_tokens=6), tool_use_behavior="run_llm_again")
        asked: list[Any] = [*run.to_input_list(), {"role": "user", "content": "Say ok."}]
        return str(run.final_output), str((await Runner.run(free, asked, max_turns=2)).final_output)


def test_every_step_is_a_well_formed_call(smollm2_server: Running) -> None:
    set_tracing_disabled(True)
    seen.clear()
    worked, said = asyncio.run(work(smollm2_server))
    assert len(seen) == STEPS
    assert worked == "looks good" or worked.startswith("painted ")
    assert said
    steps = [record for record in smollm2_server.records if record.agent == "painter"]
    assert [step.outcome for step in steps[:STEPS]] == ["tool_calls"] * STEPS
    assert [list(step.tool_calls.values()) for step in steps[:STEPS]] == [[name] for name in seen]
    for before, after in pairwise(steps):
        cached = after.usage.cached_device_tokens + after.usage.cached_host_tokens
        # But for a block that is not full, and the closing mark, which an answer that is done leaves to the template.
        assert cached >= before.usage.prompt_tokens + before.usage.output_tokens - 17
        assert after.usage.reprefilled_tokens == 0
