"""Agents of a benchmark's plan at work on the real engine in virtual time: seconds of a card in moments. Torch-free."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from math import inf
from typing import Final

from kvtrace.tracer.signals import ToolEnded, ToolStarted

from ..bench.agents.client import TurnRecord
from ..bench.agents.watcher import Moved
from ..bench.agents.workload import AgentPlan
from ..config import EngineConfig
from ..geometry import GPU_BLOCK_TOKENS, KVGeometry
from ..loop import EngineCore
from ..records import Totals
from ..sequence import Sampling
from ..sequence import Sequence as Request
from ..state import EngineInfo
from .machine import Machine
from .virtual import VirtualClock, VirtualMover, VirtualRunner

QWEN3_8B: Final = KVGeometry(layers=36, kv_heads=8, head_dim=128, element_bytes=2, block_tokens=GPU_BLOCK_TOKENS)
_WATCHED_S: Final = 0.25
_SEEN: Final = ("agent", "state", "vram_bytes", "host_bytes")
_LEAST_S: Final = 1e-4


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What came of a run: its turns in the order of their ends, bytes moved, the engine's counts.

    ``busy_share`` is the part of the run in which the device computed.
    """

    turns: tuple[TurnRecord, ...]
    moved: Moved
    totals: Totals
    busy_share: float


class Simulation:
    """One engine and its agents. Agents are added with :meth:`join`, then :meth:`run` lets them live.

    Args:
        config: of the engine; ``pipelined`` as on a GPU unless it says otherwise.
        machine: what steps and copies cost.
        geometry: of the KV.
    """

    def __init__(self, config: EngineConfig, machine: Machine, geometry: KVGeometry = QWEN3_8B) -> None:
        self.clock = VirtualClock()
        self._machine = machine
        self._runner = VirtualRunner(machine, self.clock, len(geometry.parts))
        self._mover = VirtualMover(machine, self.clock, self._runner, geometry)
        info = EngineInfo(model=machine.name, device="simulated", weights_bytes=0)
        self.core = EngineCore(config, geometry, self._runner, self._mover, self.clock, info)
        self.core.attend(self._meanwhile, lambda tokens: None)
        self.turns: list[TurnRecord] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._asking: dict[int, tuple[_Agent, TurnRecord]] = {}
        self._moved = Moved()

    def join(self, plan: AgentPlan, then: Callable[[], None] = lambda: None, *, signals: bool = True) -> None:
        """Let an agent begin ``plan.starts_s`` from now; ``then`` is called when its last turn is over.

        Without ``signals`` nobody tells the engine of its tools: it sees requests of one agent with time between them.
        """
        agent = _Agent(plan, [], then, signals)
        self._at(self.clock.now_s + plan.starts_s, lambda: self._ask(agent, 0))

    def run(self, until_s: float = float("inf")) -> SimulatedRun:
        """Live until every agent is done or the time is up."""
        self._at(self.clock.now_s + _WATCHED_S, self._watch)
        while (len(self._events) > 1 or self.core.has_work()) and self.clock.now_s < until_s:
            self._do_what_is_due()
            self._advance()
        link = self.core.snapshot().link
        self._moved.out_bytes, self._moved.in_bytes = link.out_total_bytes, link.in_total_bytes
        totals = self.core.snapshot().totals
        assert totals is not None
        # What was launched and is not over does not count.
        busy_s = self._runner.busy_s - max(self._runner.busy_until_s - self.clock.now_s, 0.0)
        return SimulatedRun(tuple(self.turns), self._moved, totals, busy_s / max(self.clock.now_s, 1e-9))

    def cut_off(self, *, spans_end: bool) -> None:
        """Stop everybody where they are, as a client does that goes away: requests are aborted, no agent goes on.

        ``spans_end``: calls under way are cancelled, which ends their spans; a client that was killed ends none.
        """
        for number in self._asking:
            self.core.abort(number)
        self._asking.clear()
        self._events.clear()
        for session in self.core.sessions.agents.values() if spans_end else ():
            for (trace, span), call in tuple(session.open.items()):
                self.core.signal(ToolEnded(trace, span, self.clock.unix_ns(), call.tool or "tool", session.agent))

    def _advance(self) -> None:
        before_s = self.clock.now_s
        if self.core.has_work():
            self.clock.now_s += self._machine.step_host_ms / 1e3
            result = self.core.step()
            for number, token in result.tokens:
                self._take(number, token)
            for sequence in result.finished:
                self._end(sequence)
            if result.progressed and self.clock.now_s > before_s:
                return
        # Nothing can run before something happens: somebody comes, or a copy that was waited for ends.
        if not self.core.has_work() or self.clock.now_s <= before_s:
            self.clock.wait_until(min(self._events[0][0], before_s + (_LEAST_S if self.core.has_work() else 1e9)))

    def _do_what_is_due(self) -> None:
        while self._events and self._events[0][0] <= self.clock.now_s:
            heapq.heappop(self._events)[2]()

    def _meanwhile(self, timeout_s: float) -> None:
        """The engine waits for the device: let time pass to whatever comes next, whose doing need not wait for the step."""
        coming = [self._runner.next_end_s(), self._mover.last_end_s(), *(event[0] for event in self._events[:1])]
        soonest = min((instant_s for instant_s in coming if instant_s > self.clock.now_s), default=inf)
        self.clock.wait_until(soonest if soonest < inf else self.clock.now_s + timeout_s)
        self._do_what_is_due()

    def _at(self, instant_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (instant_s, next(self._numbers), action))

    def _ask(self, agent: _Agent, turn: int) -> None:
        plan = agent.plan
        agent.context += plan.new_ids(turn)
        record = TurnRecord(plan.name, turn, len(agent.context), self.clock.now_s)
        record.tool_s = call.seconds if (call := plan.turns[turn].call) is not None else 0.0

        def arrive() -> None:
            if turn:
                self.clock.now_s += self._machine.return_host_ms / 1e3
            sampling = Sampling(max_tokens=plan.turns[turn].generated_tokens, ignore_eos=True)
            self._asking[self.core.submit(plan.name, agent.context, sampling).id] = (agent, record)

        self._at(record.sent_s + self._machine.request_ms / 1e3, arrive)

    def _take(self, number: int, token: int) -> None:
        record = self._asking[number][1]
        record.output_ids.append(token)
        record.ended_s = self.clock.now_s + self._machine.request_ms / 1e3
        record.first_token_s = record.first_token_s or record.ended_s

    def _end(self, request: Request) -> None:
        agent, record = self._asking.pop(request.id)
        usage = request.usage
        record.output_tokens = usage.output_tokens
        record.cached_tokens = usage.cached_device_tokens + usage.cached_host_tokens
        record.host_tokens, record.reprefilled_tokens = usage.cached_host_tokens, usage.reprefilled_tokens
        record.queued_s, record.restoring_s = usage.queued_s, usage.restoring_s
        record.error = request.error
        self.turns.append(record)
        agent.context += record.output_ids
        call = agent.plan.turns[record.turn].call
        if call is None or record.ended_s is None:
            agent.then()
            return
        name, ended_s = agent.plan.name, record.ended_s
        span = (f"{name}/{record.turn}", "tool")
        if agent.signals:
            self._signal(ended_s, lambda now: ToolStarted(*span, now, call.tool, name))
            self._signal(ended_s + call.seconds, lambda now: ToolEnded(*span, now, call.tool, name))
        self._at(ended_s + call.seconds, lambda: self._ask(agent, record.turn + 1))

    def _signal(self, instant_s: float, signal: Callable[[int], ToolStarted | ToolEnded]) -> None:
        """Send a signal; it is at the engine a little later."""
        sent_ns = 1_000_000_000 + round(instant_s * 1e9)
        self._at(instant_s + self._machine.request_ms / 2e3, lambda: self.core.signal(signal(sent_ns)))

    def _watch(self) -> None:
        # Not its events: turning hundreds of them into dicts took two thirds of a simulation's time.
        snapshot = self.core.snapshot()
        agents = [{name: getattr(agent, name) for name in _SEEN} for agent in snapshot.agents]
        self._moved.see({"agents": agents, "tiers": asdict(snapshot.tiers)}, "", _WATCHED_S)
        self._at(self.clock.now_s + _WATCHED_S, self._watch)


@dataclass(slots=True)
class _Agent:
    plan: AgentPlan
    context: list[int]
    then: Callable[[], None]
    signals: bool


def simulate(
    plans: Sequence[AgentPlan], config: EngineConfig, machine: Machine, silent: Collection[str] = ()
) -> SimulatedRun:
    """Let every agent of ``plans`` live from its first request to its last; no signals come from those in ``silent``."""
    simulation = Simulation(config, machine)
    for plan in plans:
        simulation.join(plan, signals=plan.name not in silent)
    return simulation.run()


def simulate_steadily(
    renew: Callable[[int], AgentPlan], agents: int, seconds: float, config: EngineConfig, machine: Machine
) -> SimulatedRun:
    """Keep ``agents`` agents at work for ``seconds``: whoever finishes is replaced by ``renew(index)``."""
    simulation = Simulation(config, machine)
    numbers = count()

    def place() -> None:
        simulation.join(renew(next(numbers)), place)

    for _ in range(agents):
        place()
    return simulation.run(seconds)
