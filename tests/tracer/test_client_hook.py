"""Whose request is it: the real OpenAI client against a local server that also receives the tools' signals."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from email.message import Message
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
import httpx2
import openai
import pytest

from kvtrace.tracer import COUNTS, agent, event_hook, generation, instrument_client, traced_tool
from kvtrace.tracer.engine_link import flush_engine, link_engine
from kvtrace.tracer.receive_server import SignalHandler, SignalServer
from kvtrace.tracer.signals import Signal, ToolEnded, ToolStarted

if TYPE_CHECKING:
    from kvtrace.tracer.testing import Captured


class ModelHandler(SignalHandler):
    """Answers chat completions with a tool call that bears the agent's name, and receives signals."""

    server: ModelServer

    def do_POST(self) -> None:  # noqa: N802 - the name in the base class
        if self.path != "/v1/chat/completions":
            super().do_POST()
            return
        request = json.loads(self._body())
        user = request["messages"][0]["content"]
        with self.server.lock:
            self.server.requests.append((user, self.headers))
        call = {"id": f"call-of-{user}", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        choice = {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        }
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
        self.answer(200, json.dumps(answer).encode(), "application/json")


class ModelServer(SignalServer):
    """A model and an engine in one."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Message]] = []
        self.signals: list[Signal] = []
        self.lock = threading.Lock()
        super().__init__(self.signals.append, handler=ModelHandler)

    @property
    def agents(self) -> list[tuple[str, str]]:
        return [(user, unquote(headers.get("X-Kvtrace-Agent", "nobody"))) for user, headers in self.requests]


@pytest.fixture
def server(captured: Captured) -> Iterator[ModelServer]:
    model = ModelServer()
    with model:
        link_engine(model.url, "test")
        try:
            yield model
        finally:
            link_engine(None, "")


def settings(server: ModelServer) -> dict[str, Any]:
    return {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}


def messages(user: str) -> Any:
    return [{"role": "user", "content": user}]


@traced_tool
async def search() -> None:
    await asyncio.sleep(0.01)


async def live(client: openai.AsyncOpenAI, name: str, turns: int) -> None:
    async with agent(name, id=name):
        for _ in range(turns):
            async with generation(model="tiny") as call:
                answer = await client.chat.completions.create(model="tiny", messages=messages(name))
                call.tool_calls(answer.choices[0].message.tool_calls or ())
            await search()


def test_ten_agents_at_once_are_told_apart(server: ModelServer) -> None:
    names = [f"agent {number} ü" for number in range(10)]

    async def main() -> None:
        async with instrument_client(openai.AsyncOpenAI(**settings(server))) as client:
            await asyncio.gather(*(live(client, name, 3) for name in names))

    asyncio.run(main())
    assert flush_engine(5)
    assert sorted(server.agents) == sorted((name, name) for name in names for _ in range(3))
    assert len(server.signals) == 60
    for signal in server.signals:
        assert signal.tool == "search"
        assert signal.agent in names
        assert signal.call_id == f"call-of-{signal.agent}"
    started = [signal.agent for signal in server.signals if isinstance(signal, ToolStarted)]
    ended = [signal.agent for signal in server.signals if isinstance(signal, ToolEnded)]
    assert sorted(map(str, started)) == sorted(map(str, ended)) == sorted(name for name in names for _ in range(3))


def test_sync_client_and_its_copies_bear_the_agent(server: ModelServer) -> None:
    with instrument_client(openai.OpenAI(**settings(server))) as client:
        assert instrument_client(client) is client
        with agent("worker", id="a-1"):
            client.chat.completions.create(model="tiny", messages=messages("first"))
            client.with_options(timeout=5).chat.completions.create(model="tiny", messages=messages("copy"))
        client.chat.completions.create(model="tiny", messages=messages("outside"))
    assert server.agents == [("first", "a-1"), ("copy", "a-1"), ("outside", "nobody")]
    headers = server.requests[0][1]
    assert "kvtrace.agent.id=a-1" in headers["baggage"]
    assert headers["traceparent"].startswith("00-")


def test_header_that_the_caller_set_stays(server: ModelServer) -> None:
    with instrument_client(openai.OpenAI(**settings(server))) as client, agent("worker", id="a-1"):
        client.chat.completions.create(
            model="tiny", messages=messages("mine"), extra_headers={"X-Kvtrace-Agent": "chosen"}
        )
    assert server.agents == [("mine", "chosen")]


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_plain_clients_take_the_hook(server: ModelServer, library: Any) -> None:
    body = {"messages": messages("plain")}
    url = f"{server.url}/v1/chat/completions"

    async def ask() -> None:
        async with library.AsyncClient(event_hooks={"request": [event_hook]}) as client:
            (await client.post(url, json=body)).raise_for_status()

    with agent("worker", id="a-1"):
        with library.Client(event_hooks={"request": [event_hook]}) as client:
            client.post(url, json=body).raise_for_status()
        with instrument_client(library.Client()) as client:
            client.post(url, json=body).raise_for_status()
        asyncio.run(ask())
    assert server.agents == [("plain", "a-1")] * 3


def test_hooks_that_were_there_stay() -> None:
    seen: list[Any] = []
    with httpx.Client(event_hooks={"request": [seen.append], "response": [seen.append]}) as client:
        instrument_client(instrument_client(client))
        assert client.event_hooks == {"request": [seen.append, event_hook], "response": [seen.append]}


def test_what_has_no_hooks_is_refused() -> None:
    with pytest.raises(TypeError, match=r"of object: .*tracer\.headers\(\)"):
        instrument_client(object())


def test_hook_never_raises(captured: Captured) -> None:
    with agent("worker"):
        event_hook(None)
    assert COUNTS.internal_errors == 1
