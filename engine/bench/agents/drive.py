"""Let the agents of a plan work against a server, each in a task of its own, their tools traced and signalled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import cache

import aiohttp

from kvtrace.tracer import agent, generation, headers, traced_tool

from .client import ANSWER_TIMEOUT_S, CompletionClient, Context, TurnRecord
from .workload import AgentPlan, ToolCall

Listener = Callable[[TurnRecord], None]
_RETRY_S = 1.0  # a server that refuses everybody would be asked thousands of times a second


async def run_agents(
    plans: Sequence[AgentPlan], url: str, model: str, *, key: str | None = None, on_turn: Listener | None = None
) -> list[TurnRecord]:
    """Run every plan to its end and return its turns in the order in which they ended.

    A server that does not return token ids gets made-up ones back in an agent's next prompt, and cannot find their KV.
    """
    # The first prompts, by far the longest, are written before anybody sends one: all of them are sent at once.
    contexts = [_first_context(plan) for plan in plans]

    async def everybody(one: AgentRun) -> None:
        await asyncio.gather(*(one.live(plan, context) for plan, context in zip(plans, contexts, strict=True)))

    return await _against(url, model, key, on_turn, everybody)


async def run_steadily(
    renew: Callable[[int], AgentPlan],
    agents: int,
    seconds: float,
    url: str,
    model: str,
    *,
    key: str | None = None,
    on_turn: Listener | None = None,
) -> list[TurnRecord]:
    """Keep ``agents`` agents at work for ``seconds``: whoever finishes is replaced by ``renew(index)``.

    What is under way when the time is up is cut off and not in the turns returned.
    """

    async def for_a_while(one: AgentRun) -> None:
        numbers = iter(range(1 << 30))

        async def place() -> None:
            while True:
                plan = renew(next(numbers))
                if not await one.live(plan, _first_context(plan)):
                    await asyncio.sleep(_RETRY_S)

        places = [asyncio.create_task(place()) for _ in range(agents)]
        try:
            done, _ = await asyncio.wait(places, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in places:
                task.cancel()
            await asyncio.gather(*places, return_exceptions=True)

    return await _against(url, model, key, on_turn, for_a_while)


class AgentRun:
    """Agents of one run; ``turns`` grows as their requests end."""

    def __init__(self, client: CompletionClient, on_turn: Listener | None) -> None:
        self._client = client
        self._on_turn = on_turn
        self.turns: list[TurnRecord] = []

    async def live(self, plan: AgentPlan, context: Context) -> bool:
        """One agent from its first request, for ``context``, to its last; it gives up, and says so, after one that failed."""
        await asyncio.sleep(plan.starts_s)
        with agent(plan.name, id=agent_id(plan.name)):
            for number, turn in enumerate(plan.turns):
                if number:
                    context.extend(plan.new_ids(number))
                record = TurnRecord(plan.name, number, context.tokens, time.monotonic())
                with generation("bench") as call:
                    await self._client.complete(context, turn.generated_tokens, record, headers())
                    call.usage(input_tokens=record.prompt_tokens, output_tokens=record.output_tokens)
                record.tool_s = turn.call.seconds if turn.call is not None else 0.0
                self.turns.append(record)
                if self._on_turn is not None:
                    self._on_turn(record)
                if record.error is not None:
                    return False
                context.extend(record.output_ids or plan.stand_in_ids(number))
                if turn.call is not None:
                    await _tool(turn.call.tool)(turn.call)
        return True


def agent_id(name: str) -> str:
    """What the server calls the agent of that plan."""
    return f"bench-{name}"


def _first_context(plan: AgentPlan) -> Context:
    context = Context()
    context.extend(plan.new_ids(0))
    return context


@cache
def _tool(name: str) -> Callable[[ToolCall], Awaitable[None]]:
    @traced_tool(name=name)
    async def wait(call: ToolCall) -> None:
        await asyncio.sleep(call.seconds)

    return wait


async def _against(
    url: str,
    model: str,
    key: str | None,
    on_turn: Listener | None,
    work: Callable[[AgentRun], Awaitable[None]],
) -> list[TurnRecord]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=ANSWER_TIMEOUT_S)
    authorization = {"Authorization": f"Bearer {key}"} if key else {}
    connections = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connections, headers=authorization) as session:
        run = AgentRun(CompletionClient(session, url, model), on_turn)
        await work(run)
        return run.turns
