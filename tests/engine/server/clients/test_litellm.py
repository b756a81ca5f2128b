"""litellm, where it is installed (``pip install 'kvtrace[clients]'``), as the proxy for Claude Code uses it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support import Running, running
from ..tiny_tools import tiny_tools_settings

# Importing it would fetch a list of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm = pytest.importorskip("litellm", exc_type=ImportError)
pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}},
    "required": ["colour"],
    "additionalProperties": False,
}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tiny_tools_settings(tiny_folder("llama"), tmp_path_factory.mktemp("tools"))) as one:
        yield one


def ask(server: Running, text: str = "-", **options: Any) -> Any:
    return litellm.completion(
        model=f"openai/{server.model}",
        base_url=f"{server.url}/v1",
        api_key="none",
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_tokens=80,
        **options,
    )


@pytest.mark.filterwarnings("ignore")  # of its own making
def test_a_tool_is_called(server: Running) -> None:
    answer = ask(server, tools=[PAINT], tool_choice={"type": "function", "function": {"name": "paint"}})
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "paint"
    assert json.loads(call.function.arguments)["colour"] in ("red", "green")


@pytest.mark.filterwarnings("ignore")
def test_a_stream_adds_up_to_the_same(server: Running) -> None:
    whole = ask(server).choices[0].message.content
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(server, stream=True)]
    assert "".join(pieces) == whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", [2_000, 2_000_000])
def test_a_prompt_that_is_too_long_is_known_as_such(server: Running, words: int) -> None:
    """Agents built on it then shorten their history, and give up on any other bad request."""
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(server, "x " * words)
