"""Whose a request is, and what its agent's KV does between two of them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import tracer
from kvtrace.engine.records import AgentRecord, AgentState
from kvtrace.engine.server.identity import Identities
from kvtrace.tracer.testing import capture

from .support import Running, chat_body, until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
USER = {"role": "user", "content": "hi"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "call_1", "type": "function"}]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "42"}


@pytest.fixture
def identities() -> Identities:
    found = Identities()
    found.handed_out("caller", ["call_1"])
    return found


def test_the_first_hint_that_is_there_names_the_agent(identities: Identities) -> None:
    hints: dict[str, Any] = {"cache_key": "key", "user": "someone", "messages": [USER, CALL, RESULT]}
    baggage = {"baggage": "a=b,kvtrace.agent.id=from%20baggage"}
    headers = {"x-kvtrace-agent": "from%20header", **baggage, **TRACEPARENT}
    assert identities.find(headers, **hints) == "from header"
    assert identities.find({**baggage, **TRACEPARENT}, **hints) == "from baggage"
    assert identities.find(TRACEPARENT, **hints) == "key"
    assert identities.find(TRACEPARENT, user="someone", messages=[USER, CALL, RESULT]) == "caller"
    assert identities.find(TRACEPARENT, user="someone", messages=[USER]) == "someone"
    assert identities.find(TRACEPARENT, messages=[USER]) == TRACE
    assert identities.find({}, messages=[USER]).startswith("anonymous-")


def test_odd_baggage_is_read_as_far_as_it_goes_and_fills_no_log(
    identities: Identities, caplog: pytest.LogCaptureFixture
) -> None:
    assert identities.find({"baggage": ",=;=,%%%, kvtrace.agent.id = a+b%2Cc ;p=1,d=e"}) == "a b,c"
    assert len(identities.find({"baggage": "kvtrace.agent.id=" + "x" * 9000})) == 256
    assert identities.find({"baggage": "kvtrace.agent.id=;a,not.kvtrace.agent.id=z"}).startswith("anonymous-")
    assert not caplog.records


def test_what_the_tracer_sends_is_read_back(identities: Identities) -> None:
    with capture(), tracer.agent("searcher", id="agent ü/%/7"):
        headers = {name.lower(): value for name, value in tracer.headers().items()}
    assert identities.find(headers) == "agent ü/%/7"
    del headers["x-kvtrace-agent"]
    assert identities.find(headers) == "agent ü/%/7"


def test_a_conversation_is_known_by_what_was_said_before(identities: Identities) -> None:
    first = identities.find({}, messages=[USER])
    answered = [USER, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "and?"}]
    assert identities.find({}, messages=answered) == first
    further = [*answered, {"role": "assistant", "content": "so"}, {"role": "user", "content": "well"}]
    assert identities.find({}, messages=further) == first
    assert identities.find({}, messages=[{"role": "user", "content": "other"}, *answered[1:]]) != first
    assert identities.find({}) != identities.find({})


@given(st.dictionaries(st.sampled_from(["x-kvtrace-agent", "baggage", "traceparent"]), st.text(max_size=40)))
def test_any_header_names_somebody(headers: dict[str, str]) -> None:
    assert 0 < len(Identities().find(headers, messages=[{"role": "assistant", "tool_calls": 7}])) <= 256


def _agent(server: Running, name: str) -> AgentRecord | None:
    return next((one for one in server.service.engine.state().agents if one.agent == name), None)


def _state(server: Running, name: str) -> AgentState | None:
    found = _agent(server, name)
    return None if found is None else found.state


def test_the_header_names_the_agent_in_the_engine(tiny_server: Running) -> None:
    body = chat_body(tiny_server.model, "hello", ignore_eos=True)
    answer = tiny_server.http.post("/v1/chat/completions", json=body, headers={"X-Kvtrace-Agent": "the%20one"}).json()
    assert answer["usage"]["kvtrace"]["agent"] == "the one"
    # An answer without tool calls: a person is next.
    until(lambda: _state(tiny_server, "the one") is AgentState.HUMAN)


@pytest.fixture
def engine_of(tiny_server: Running, tmp_path: Path) -> Iterator[None]:
    """The tracer of this process signals its tools to the server."""
    tracer.configure(directory=tmp_path, service_name="test", engine=tiny_server.url)
    yield
    tracer.configure(directory=tmp_path, service_name="test", engine="")


@pytest.mark.usefixtures("engine_of")
def test_a_traced_tool_parks_its_agent_over_http(tiny_server: Running) -> None:
    seen: list[AgentRecord] = []

    @tracer.traced_tool
    def grep() -> str:
        until(lambda: (found := _agent(tiny_server, "parker")) is not None and found.tool == "grep")
        until(
            lambda: any(
                one.agent == "parker" and one.kind == "park" for one in tiny_server.service.engine.state().events
            )
        )
        found = _agent(tiny_server, "parker")
        assert found is not None
        seen.append(found)
        return "done"

    with tracer.agent("parker", id="parker"):
        prompt = list(range(5, 65))
        first = tiny_server.http.post(
            "/v1/completions",
            json={"model": tiny_server.model, "prompt": prompt, "max_tokens": 4, "ignore_eos": True},
            headers=tracer.headers(),
        ).json()
        assert first["usage"]["kvtrace"]["agent"] == "parker"
        assert grep() == "done"
        until(lambda: (found := _agent(tiny_server, "parker")) is not None and found.tool is None)
    assert seen[0].state in (AgentState.PARKING, AgentState.PARKED, AgentState.BLOCKED_RESIDENT)
    assert seen[0].parks >= 1


def _span(**fields: Any) -> bytes:
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "execute_tool"}},
        {"key": "gen_ai.tool.name", "value": {"stringValue": "grep"}},
        {"key": "kvtrace.agent.id", "value": {"stringValue": "traced"}},
    ]
    span = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "execute_tool grep", "attributes": attributes, **fields}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()


def test_spans_of_any_exporter_are_received(tiny_server: Running) -> None:
    tiny_server.complete(list(range(5, 45)), prompt_cache_key="traced")
    headers = {"Content-Type": "application/json"}
    start = str(time.time_ns())
    answer = tiny_server.http.post("/v1/traces", content=_span(startTimeUnixNano=start), headers=headers)
    assert (answer.status_code, answer.json()) == (200, {})
    until(lambda: (found := _agent(tiny_server, "traced")) is not None and found.tool == "grep")
    ended = _span(startTimeUnixNano=start, endTimeUnixNano=str(time.time_ns()))
    assert tiny_server.http.post("/v1/traces", content=ended, headers=headers).status_code == 200
    until(lambda: (found := _agent(tiny_server, "traced")) is not None and found.tool is None)
    assert tiny_server.http.post("/v1/logs", content=b'{"resourceLogs": []}', headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff\xff", "application/x-protobuf", 400),
        (b"x", "text/plain", 415),
        (b" " * (5 << 20), "application/json", 413),
    ],
)
def test_what_is_no_span_is_refused(tiny_server: Running, content: bytes, content_type: str, status: int) -> None:
    headers = {"Content-Type": content_type}
    assert tiny_server.http.post("/v1/traces", content=content, headers=headers).status_code == status
    # The same without a length: no more than the limit is ever held.
    pieces = (content[at : at + 65536] for at in range(0, len(content), 65536))
    assert tiny_server.http.post("/v1/traces", content=pieces, headers=headers).status_code == status


def test_agents_never_see_each_others_text(tiny_server: Running) -> None:
    """Wrong hints: many conversations under one name, each answered as if it were alone."""
    alone = {
        text: tiny_server.chat(text, ignore_eos=True).json()["choices"][0]["message"]["content"] for text in "abcdef"
    }
    answers: dict[str, str] = {}

    def ask(text: str) -> None:
        answer = tiny_server.chat(text, ignore_eos=True, user="everybody").json()
        answers[text] = answer["choices"][0]["message"]["content"]

    threads = [threading.Thread(target=ask, args=(text,)) for text in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == alone


def test_more_agents_than_fit_say_what_they_would_say_alone(
    tiny_server: Running, own_model: Callable[[str], Any]
) -> None:
    """Ten agents of 100 tokens and more share a pool for 768, take turns, and are parked between them."""
    said: list[tuple[list[int], list[int]]] = []
    contexts = {number: random.Random(number).choices(range(5, 250), k=100) for number in range(10)}
    before = tiny_server.service.engine.state().link

    def take_turn(number: int) -> None:
        agent, prompt = f"crowd-{number}", contexts[number]
        response = tiny_server.complete(prompt, return_token_ids=True, prompt_cache_key=agent, max_tokens=6)
        answer = response.json()["choices"][0]["token_ids"]
        said.append((prompt, answer))
        tiny_server.service.engine.turn_ended(agent, {f"call-{number}-{len(prompt)}": "grep"})
        contexts[number] = [*prompt, *answer, *(5 + (number + at) % 200 for at in range(15))]

    with ThreadPoolExecutor(10) as pool:
        for _ in range(3):
            list(pool.map(take_turn, range(10)))
    until(lambda: tiny_server.service.engine.state().link.out_total_bytes > before.out_total_bytes)
    until(lambda: tiny_server.service.engine.state().link.in_total_bytes > before.in_total_bytes)
    assert len(said) == 30
    model = own_model("llama")
    for prompt, answer in said:
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, eos_token_id=None)
        assert answer == expected[0, len(prompt) :].tolist()
