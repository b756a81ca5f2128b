"""LangChain's ChatOpenAI, where it is installed (``pip install 'kvtrace[clients]'``): tools, streams, structured output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from ..support import Running, running
from ..tiny_tools import tiny_tools_settings

langchain_openai = pytest.importorskip("langchain_openai", exc_type=ImportError)
pytest.importorskip("llguidance")


class Paint(BaseModel):
    """Paint the wall."""

    colour: Literal["red", "green"]
    coats: Literal[1, 2]


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tiny_tools_settings(tiny_folder("llama"), tmp_path_factory.mktemp("tools"))) as one:
        yield one


def chat(server: Running) -> Any:
    return langchain_openai.ChatOpenAI(
        model=server.model,
        base_url=f"{server.url}/v1",
        api_key="none",
        temperature=0,
        max_tokens=100,
        max_retries=0,
        default_headers={"X-Kvtrace-Agent": "langchain"},
    )


def test_a_bound_tool_is_called(server: Running) -> None:
    message = chat(server).bind_tools([Paint], tool_choice="Paint").invoke("Make it red.")
    (call,) = message.tool_calls
    assert call["name"] == "Paint"
    assert call["id"].startswith("call_")
    Paint.model_validate(call["args"])
    assert message.usage_metadata["output_tokens"] > 0


def test_streamed_pieces_of_a_call_add_up(server: Running) -> None:
    pieces = list(chat(server).bind_tools([Paint], tool_choice="Paint").stream("Make it red."))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    (call,) = whole.tool_calls
    Paint.model_validate(call["args"])
    assert len(pieces) > 5


def test_structured_output_keeps_to_its_schema(server: Running) -> None:
    answer = chat(server).with_structured_output(Paint, method="json_schema", strict=True).invoke("Make it red.")
    assert isinstance(answer, Paint)


def test_the_agent_is_the_one_that_the_headers_name(server: Running) -> None:
    chat(server).invoke("hello")
    assert {record.agent for record in server.records} == {"langchain"}
