from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach, get_current

from kvtrace.tracer import (
    COUNTS,
    Agent,
    PropagatingExecutor,
    ToolStarted,
    agent,
    current_agent,
    headers,
    human_wait,
    propagate,
    traced_tool,
)
from kvtrace.tracer.identity import carried_agent
from kvtrace.tracer.testing import Captured, Record


@traced_tool
def tool() -> None:
    pass


def named(captured: Captured, name: str) -> list[Record]:
    return [span for span in captured.spans if span.name == name]


def test_agent_span_and_its_tools_carry_the_id_at_start(captured: Captured) -> None:
    with agent("planner", conversation="talk") as planner:
        tool()
    for record in captured.records:
        assert record.attributes["kvtrace.agent.id"] == planner.id
        assert record.attributes["gen_ai.agent.name"] == "planner"
        assert record.attributes["gen_ai.conversation.id"] == "talk"
    assert named(captured, "invoke_agent planner")[0].attributes["gen_ai.operation.name"] == "invoke_agent"


def test_every_run_has_an_id_of_its_own(captured: Captured) -> None:
    ids = []
    for _ in range(2):
        with agent("planner") as planner:
            ids.append(planner.id)
    with agent("planner", id="mine") as planner:
        ids.append(planner.id)
    assert len(set(ids)) == 3
    assert ids[2] == "mine"


def test_sub_agent_names_its_parent(captured: Captured) -> None:
    with agent("boss", id="b"), agent("worker", id="w") as worker:
        assert worker.parent_id == "b"
        tool()
    assert named(captured, "invoke_agent worker")[0].attributes["kvtrace.agent.parent.id"] == "b"
    assert "kvtrace.agent.parent.id" not in named(captured, "invoke_agent boss")[0].attributes
    assert named(captured, "execute_tool tool")[0].attributes["kvtrace.agent.id"] == "w"


def test_context_is_as_before_after_a_run(captured: Captured) -> None:
    before = get_current()
    with pytest.raises(ValueError, match="x"), agent("planner"):
        raise ValueError("x")
    assert get_current() is before
    assert current_agent() is None
    assert named(captured, "invoke_agent planner")[0].attributes["error.type"] == "ValueError"


def test_agent_decorates_functions_of_all_kinds(captured: Captured) -> None:
    def identity() -> str:
        now = current_agent()
        assert now is not None
        return now.id

    async def later() -> str:
        return identity()

    def steps() -> Iterator[str]:
        yield identity()
        yield identity()

    decorator = agent("planner")
    assert decorator(identity)() != asyncio.run(decorator(later)())
    seen: list[str] = []
    for step in decorator(steps)():
        assert carried_agent(get_current()) is None
        seen.append(step)
    assert len(set(seen)) == 1
    assert len(named(captured, "invoke_agent planner")) == 3


def test_async_with_works_too(captured: Captured) -> None:
    async def main() -> None:
        async with agent("planner", id="p"), human_wait():
            pass

    asyncio.run(main())
    assert [span.name for span in captured.spans] == ["human_wait", "invoke_agent planner"]


def test_opening_an_open_block_is_refused(captured: Captured) -> None:
    block = agent("planner")
    with block, pytest.raises(RuntimeError, match="already open"), block:
        pass
    assert len(captured.spans) == 1


def test_ten_gathered_agents_keep_their_own_tools(captured: Captured) -> None:
    @traced_tool
    async def wait(n: int) -> None:
        await asyncio.sleep(0.001 * (n % 3))

    async def run(n: int) -> None:
        async with agent(f"agent {n}", id=str(n)):
            for _ in range(3):
                await asyncio.gather(wait(n), asyncio.to_thread(tool))

    async def main() -> None:
        await asyncio.gather(*(run(n) for n in range(10)))

    asyncio.run(main())
    owners = {span.span_id: span.attributes["kvtrace.agent.id"] for span in captured.spans}
    tools = [span for span in captured.spans if span.name.startswith("execute_tool")]
    assert len(tools) == 60
    assert all(owners[span.parent_id or ""] == span.attributes["kvtrace.agent.id"] for span in tools)
    started = [signal for signal in captured.signals if isinstance(signal, ToolStarted)]
    assert sorted(int(signal.agent or -1) for signal in started) == sorted(list(range(10)) * 6)


def in_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_bare_thread_belongs_to_the_only_live_agent(captured: Captured) -> None:
    with agent("planner", id="p"):
        in_thread(tool)
    assert named(captured, "execute_tool tool")[0].attributes["kvtrace.agent.id"] == "p"


def test_bare_thread_among_two_agents_is_unknown(captured: Captured) -> None:
    with agent("boss", id="b"), agent("worker", id="w"):
        in_thread(tool)
    assert named(captured, "execute_tool tool")[0].attributes["kvtrace.agent.id"] == "unknown"
    assert [signal.agent for signal in captured.signals] == [None, None]
    assert COUNTS.unknown_agents == 1


def test_pool_helper_keeps_agent_and_parent(captured: Captured) -> None:
    with PropagatingExecutor(ThreadPoolExecutor(2)) as pool:
        for name in "abc":
            with agent(name, id=name):
                pool.submit(tool).result()
                list(pool.map(lambda _: tool(), range(2)))
    owners = {span.span_id: span.attributes["kvtrace.agent.id"] for span in captured.spans}
    tools = named(captured, "execute_tool tool")
    assert [span.attributes["kvtrace.agent.id"] for span in tools].count("b") == 3
    assert all(owners[span.parent_id or ""] == span.attributes["kvtrace.agent.id"] for span in tools)


def test_propagated_function_gives_the_thread_back_clean(captured: Captured) -> None:
    with agent("planner"):
        function = propagate(tool)
    before = get_current()
    function()
    assert get_current() is before


def test_agent_is_read_from_incoming_baggage(captured: Captured) -> None:
    token = attach(baggage.set_baggage("kvtrace.agent.id", "remote"))
    try:
        tool()
    finally:
        detach(token)
    assert captured.spans[0].attributes["kvtrace.agent.id"] == "remote"


def test_headers_name_agent_and_trace(captured: Captured) -> None:
    assert headers() == {}
    with agent("planner", id="Ägent 1"):
        sent = headers()
    span = captured.spans[0]
    assert sent["X-Kvtrace-Agent"] == "%C3%84gent%201"
    assert "kvtrace.agent.id=" in sent["baggage"]
    assert sent["traceparent"] == f"00-{span.trace_id}-{span.span_id}-01"


def test_plain_ids_go_into_headers_as_they_are(captured: Captured) -> None:
    with agent("planner", id="team/a:7+b"):
        assert headers()["X-Kvtrace-Agent"] == "team/a:7+b"


def test_headers_find_the_only_live_agent(captured: Captured) -> None:
    found: list[dict[str, str]] = []
    with agent("planner", id="p"):
        in_thread(lambda: found.append(headers()))
    assert found[0]["X-Kvtrace-Agent"] == "p"
    assert found[0]["baggage"] == "kvtrace.agent.id=p"


def test_human_wait_records_its_reason(captured: Captured) -> None:
    with agent("planner", id="p"), human_wait("approval"):
        pass
    span = named(captured, "human_wait")[0]
    assert span.attributes["gen_ai.operation.name"] == "kvtrace.human_wait"
    assert span.attributes["kvtrace.human_wait.reason"] == "approval"
    assert captured.signals == []


def test_call_ids_of_an_agent_are_its_own() -> None:
    first, second = Agent("1"), Agent("2")
    first.expect_calls([("search", "a"), ("read", "b"), ("search", "c")])
    assert second.take_call("search") is None
    assert [first.take_call(name) for name in ("search", "search", "search", "read")] == ["a", "c", None, "b"]
