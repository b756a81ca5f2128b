"""The best a card could do with agents that wait for tools: a queue in which KV moves for free.

Every engine's measured rate is held against this one. Slots are all that is scarce: a request takes one, first come
first served, has its prompt computed and then generates; the slot is free again while the agent's tool runs. A step
decodes every generating agent by one token and computes up to ``chunk_tokens`` of prompts at the same time, so it
lasts as long as the longer of the two; the last chunk of a prompt yields the first token.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Final

_LONGEST_MEANS: Final = 5.0

ToolTime = Callable[[int, int], float]
"""Seconds that the tool of agent ``i`` (from 0) takes after its turn ``t`` (from 0)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a card is: slots, a decode step of ``step_ms + step_ms_per_agent * batch``, prefill tokens a second."""

    slots: int = 8
    step_ms: float = 5.2
    step_ms_per_agent: float = 0.26
    prefill_tok_s: float = 40_000.0
    chunk_tokens: int = 512

    def step_s(self, batch: int, prefilled: int) -> float:
        """Seconds of a step that decodes ``batch`` agents and computes ``prefilled`` tokens of prompts."""
        decode_s = (self.step_ms + self.step_ms_per_agent * batch) / 1e3 if batch else 0.0
        return max(decode_s, prefilled / self.prefill_tok_s)


@dataclass(frozen=True, slots=True)
class Workload:
    """Agents that all arrive at once, each with a prompt of its own, and return ``returns`` times from a tool.

    Every turn generates ``generated_tokens``; a return adds ``new_tokens`` to be computed. An agent that is done is
    replaced at once by another, with tool times of its own, until ``lives`` of them have come one after the other.
    """

    agents: int
    prompt_tokens: int = 6000
    returns: int = 4
    generated_tokens: int = 64
    new_tokens: int = 100
    lives: int = 1


@dataclass(frozen=True, slots=True)
class TurnTime:
    """One turn of one agent; instants are seconds since the start.

    ``agent`` counts on beyond the agents of the workload where others replace them.
    """

    agent: int
    turn: int
    arrived_s: float
    first_token_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class IdealRun:
    """Turns in the order in which they ended."""

    turns: tuple[TurnTime, ...]

    @property
    def makespan_s(self) -> float:
        """From the start to the end of the last turn."""
        return self.turns[-1].ended_s

    @property
    def turns_per_s(self) -> float:
        """Turns over the makespan."""
        return len(self.turns) / self.makespan_s

    @property
    def return_ttft_p50_s(self) -> float | None:
        """Median time from an agent's return to its first token; ``None`` where none returns."""
        waits = [turn.first_token_s - turn.arrived_s for turn in self.turns if turn.turn]
        return median(waits) if waits else None

    def between(self, start_s: float, end_s: float) -> IdealRun:
        """The turns that ended after ``start_s`` and not after ``end_s``."""
        return IdealRun(tuple(turn for turn in self.turns if start_s < turn.ended_s <= end_s))


def exponential_tools(seed: int, mean_s: float = 1.868) -> ToolTime:
    """Tool times drawn for each agent and turn by themselves, so that they do not depend on who came first.

    Exponential, cut at five means.
    """

    def seconds(agent: int, turn: int) -> float:
        drawn = Random(f"{seed}/tool/{agent}/{turn}").expovariate(1.0)  # noqa: S311 - a workload, not a secret
        return min(drawn, _LONGEST_MEANS) * mean_s

    return seconds


def ideal_run(workload: Workload, pace: Pace, tool_s: ToolTime, until_s: float = math.inf) -> IdealRun:
    """Serve ``workload`` at ``pace`` with KV that moves for free, to its end or to ``until_s``.

    Needs at least one agent and one slot.
    """
    queue = _Queue(workload, pace, tool_s)
    while queue.now_s < until_s and queue.step():
        pass
    return IdealRun(tuple(queue.ended))


@dataclass(slots=True)
class _Request:
    """A turn on its way: ``prompt_left`` tokens to compute, then ``tokens_left`` to generate."""

    agent: int
    turn: int
    arrived_s: float
    prompt_left: int
    tokens_left: int
    first_token_s: float = 0.0


class _Queue:
    """The state of the simulation between two steps."""

    def __init__(self, workload: Workload, pace: Pace, tool_s: ToolTime) -> None:
        self._workload, self._pace, self._tool_s = workload, pace, tool_s
        self.now_s = 0.0
        self._coming = [(0.0, agent, 0) for agent in range(workload.agents)]
        self._prefilling: deque[_Request] = deque()
        self._decoding: list[_Request] = []
        self.ended: list[TurnTime] = []

    def step(self) -> bool:
        """Admit who is there, do one step, or sleep until somebody comes; false when all is done."""
        self._admit()
        if self._prefilling or self._decoding:
            self._compute()
            return True
        if self._coming:
            self.now_s = self._coming[0][0]
        return bool(self._coming)

    def _admit(self) -> None:
        work = self._workload
        while self._coming and self._coming[0][0] <= self.now_s and self._busy < self._pace.slots:
            arrived_s, agent, turn = heapq.heappop(self._coming)
            prompt = work.new_tokens if turn else work.prompt_tokens
            self._prefilling.append(_Request(agent, turn, arrived_s, prompt, work.generated_tokens))

    @property
    def _busy(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    def _compute(self) -> None:
        prefilled, begun = self._prefill()
        self.now_s += self._pace.step_s(len(self._decoding), prefilled)
        for request in begun:
            request.first_token_s = self.now_s
        generating = [*self._decoding, *begun]
        for request in generating:
            request.tokens_left -= 1
            if not request.tokens_left:
                self._end(request)
        self._decoding = [request for request in generating if request.tokens_left]

    def _prefill(self) -> tuple[int, list[_Request]]:
        """Tokens computed in this step, and the requests whose prompt is complete with it."""
        room = self._pace.chunk_tokens
        begun = []
        while self._prefilling and room:
            request = self._prefilling[0]
            chunk = min(room, request.prompt_left)
            request.prompt_left -= chunk
            room -= chunk
            if not request.prompt_left:
                begun.append(self._prefilling.popleft())
        return self._pace.chunk_tokens - room, begun

    def _end(self, request: _Request) -> None:
        work, agent, turn = self._workload, request.agent, request.turn
        self.ended.append(TurnTime(agent, turn, request.arrived_s, request.first_token_s, self.now_s))
        if turn < work.returns:
            heapq.heappush(self._coming, (self.now_s + self._tool_s(agent, turn), agent, turn + 1))
        elif agent + work.agents < work.agents * work.lives:
            heapq.heappush(self._coming, (self.now_s, agent + work.agents, 0))
