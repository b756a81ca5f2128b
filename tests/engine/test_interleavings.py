"""Random interleavings of requests, tools, aborts and copies: the answers are those of a machine without limits."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtrace.engine import placement, tiers
from kvtrace.engine.config import PolicyMode
from kvtrace.engine.placement import FLUSH_COPIES
from kvtrace.engine.sequence import Sequence
from kvtrace.tracer.signals import ToolStarted

from .support import World, check_answer, tokens

AGENTS = [f"agent-{number}" for number in range(5)]
SYSTEM = tokens(37, seed=99)
STOPS = (1, 2, 3)
"""A few tokens end an answer, which nobody foresees: the step in flight then computes one position too many."""


@dataclass
class Agent:
    """A client that appends to one growing context, as agents do."""

    name: str
    context: list[int]
    request: Sequence | None = None
    tools: list[ToolStarted] = field(default_factory=list)

    def collect(self) -> None:
        """Take a finished answer into the context."""
        if self.request is not None and self.request.finish_reason is not None:
            check_end(self.request)
            self.context = list(self.request.tokens)
            self.request = None


def check_end(request: Sequence) -> None:
    if request.finish_reason not in ("abort", "error"):
        check_answer(request)


class Interleavings(RuleBasedStateMachine):
    """Agents that come, wait, vanish and return in any order."""

    @initialize(
        policy=st.sampled_from(PolicyMode),
        device_blocks=st.integers(9, 30),
        host_blocks=st.sampled_from([0, 1, 2, 5, 20, 200]),
        slots=st.integers(1, 4),
        step_tokens=st.sampled_from([4, 16, 23, 64, 256]),
        seed=st.integers(0, 1000),
        failures=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
        most_delay=st.sampled_from([0, 2, 12]),
        pipelined=st.booleans(),
        step_copies=st.sampled_from([1, 4, 1000]),
        fences=st.sampled_from([0.0, 0.5, 1.0]),
        stops=st.sampled_from([0, 3, 12]),
        mixed_step_tokens=st.sampled_from([None, 4, 12]),
        flush=st.sampled_from([2, FLUSH_COPIES]),
    )
    def build(
        self,
        policy: PolicyMode,
        device_blocks: int,
        host_blocks: int,
        slots: int,
        step_tokens: int,
        seed: int,
        failures: float,
        most_delay: int,
        pipelined: bool,
        step_copies: int,
        fences: float,
        stops: int,
        mixed_step_tokens: int | None,
        flush: int,
    ) -> None:
        self.patch = pytest.MonkeyPatch()
        for module in (placement, tiers):
            self.patch.setattr(module, "FLUSH_COPIES", flush)
        self.world = World(
            *(policy, device_blocks, host_blocks, slots, step_tokens, seed, most_delay, failures),
            pipelined=pipelined,
            step_copies=step_copies,
            fences=fences,
            stop_ids=tuple(range(stops)),
            mixed_step_tokens=mixed_step_tokens,
        )
        self.agents = {name: Agent(name, SYSTEM + tokens(index, index)) for index, name in enumerate(AGENTS)}
        self.most = device_blocks * 16
        self.branches: list[Sequence] = []

    @rule(name=st.sampled_from(AGENTS), grow=st.integers(0, 40), max_tokens=st.integers(1, 40))
    def submit(self, name: str, grow: int, max_tokens: int) -> None:
        agent = self.agents[name]
        agent.collect()
        if agent.request is not None:
            return
        agent.context += tokens(grow, len(agent.context))
        if len(agent.context) + max_tokens - 1 > self.most:
            agent.context = SYSTEM + tokens(len(agent.context) % 17, 3)
        agent.request = self.world.submit(name, agent.context, max_tokens)
        agent.tools.clear()

    @rule(name=st.sampled_from(AGENTS), length=st.sampled_from([16, 32, 37]))
    def start_over(self, name: str, length: int) -> None:
        """A new task from a prompt that others have used: often a full hit."""
        agent = self.agents[name]
        agent.collect()
        if agent.request is None:
            agent.context = SYSTEM[:length]
            agent.request = self.world.submit(name, agent.context, max_tokens=3)

    @rule(name=st.sampled_from(AGENTS), keep=st.integers(1, 90), grow=st.integers(0, 20), copies=st.integers(1, 3))
    def branch(self, name: str, keep: int, grow: int, copies: int) -> None:
        """The same agent asks besides, once or as several samples, from some earlier point of its history."""
        context = self.agents[name].context[:keep] + tokens(grow, keep)
        if len(context) + 8 <= self.most:
            self.branches += [self.world.submit(name, context, max_tokens=8) for _ in range(copies)]

    @rule(late=st.booleans())
    def break_a_step(self, late: bool) -> None:
        setattr(self.world.runner, "fail_late" if late else "fail", RuntimeError("device on fire"))

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.world.step(count)
        for agent in self.agents.values():
            agent.collect()

    @rule(name=st.sampled_from(AGENTS))
    def start_tool(self, name: str) -> None:
        self.agents[name].tools.append(self.world.tool_starts(name))

    @precondition(lambda self: any(agent.tools for agent in self.agents.values()))
    @rule(data=st.data())
    def end_tool(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, agent in self.agents.items() if agent.tools]))
        self.world.tool_ends(self.agents[name].tools.pop(0))

    @rule(name=st.sampled_from(AGENTS))
    def abort(self, name: str) -> None:
        request = self.agents[name].request
        if request is not None:
            self.world.core.abort(request.id)
            self.agents[name].collect()

    @rule(name=st.sampled_from(AGENTS), calls=st.integers(0, 2))
    def end_turn(self, name: str, calls: int) -> None:
        self.world.core.turn_ended(name, {f"{name}-{number}": None for number in range(calls)})

    @rule(seconds=st.sampled_from([0.001, 1.0, 4000.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.pass_s(seconds)

    @invariant()
    def nothing_is_lost_or_double(self) -> None:
        self.world.core.check()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.world.run()
        finally:
            self.patch.undo()
        for branch in self.branches:
            check_end(branch)
        for agent in self.agents.values():
            request = agent.request
            agent.collect()
            assert request is None or request.finish_reason is not None


Interleavings.TestCase.settings = settings(
    max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestInterleavings = Interleavings.TestCase


def work(world: World, agents: int, turns: int, seed: int, prompt: int = 60) -> list[Sequence]:
    """Agents that share a system prompt work their turns, each tool for a random number of steps."""
    source = random.Random(seed)
    contexts = {
        name: SYSTEM + tokens(prompt, seed=number) for number, name in enumerate(f"a{i}" for i in range(agents))
    }
    requests = {name: world.submit(name, context, source.randint(3, 30)) for name, context in contexts.items()}
    left = dict.fromkeys(contexts, turns)
    back: dict[str, tuple[int, ToolStarted]] = {}
    done: list[Sequence] = []
    for now in range(4000):
        world.step()
        for name in [name for name, request in requests.items() if request.finish_reason is not None]:
            request = requests.pop(name)
            check_answer(request)
            done.append(request)
            contexts[name] = request.tokens + tokens(source.randint(1, 25), seed=now)
            left[name] -= 1
            if left[name]:
                back[name] = (now + source.choice([0, 1, 3, 60]), world.tool_starts(name))
        for name in [name for name, (due, _) in back.items() if due <= now]:
            world.tool_ends(back.pop(name)[1])
            if source.random() < 0.5:
                world.step()
            requests[name] = world.submit(name, contexts[name], source.randint(3, 30))
        if not requests and not back:
            world.run()
            return done
    raise AssertionError("the agents did not get done")


@pytest.mark.parametrize("policy", [PolicyMode.SWAP, PolicyMode.EAGER, PolicyMode.AUTO])
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    device_blocks=st.integers(16, 40),
    delay=st.sampled_from([0, 3, 15]),
    pipelined=st.booleans(),
    fences=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_enough_host_prefills_nothing_twice(
    policy: PolicyMode, seed: int, device_blocks: int, delay: int, pipelined: bool, fences: float
) -> None:
    world = World(
        *(policy, device_blocks, 600),
        seed=seed,
        most_delay=delay,
        pipelined=pipelined,
        fences=fences,
        stop_ids=STOPS,
    )
    done = work(world, agents=7, turns=3, seed=seed)
    assert len(done) == 21
    totals = world.core.snapshot().totals
    assert (totals.reprefilled_tokens, totals.dropped_blocks) == (0, 0)
    assert sum(request.usage.reprefilled_tokens for request in done) == 0


@pytest.mark.parametrize("policy", [PolicyMode.RECOMPUTE, PolicyMode.KEEP])
def test_small_pool_without_host_prefills_again(policy: PolicyMode) -> None:
    world = World(policy, device_blocks=20)
    work(world, agents=7, turns=3, seed=1)
    totals = world.core.snapshot().totals
    assert totals.reprefilled_tokens > 0
    assert totals.dropped_blocks > 0
    assert world.mover.moved == {"out": 0, "in": 0}


@pytest.mark.parametrize("policy", list(PolicyMode))
def test_large_pool_never_prefills_again(policy: PolicyMode) -> None:
    world = World(policy, device_blocks=600, host_blocks=600)
    work(world, agents=7, turns=3, seed=2)
    assert world.core.snapshot().totals.reprefilled_tokens == 0


@settings(max_examples=30, deadline=None)
@given(
    policy=st.sampled_from([PolicyMode.SWAP, PolicyMode.EAGER, PolicyMode.AUTO]),
    host_blocks=st.sampled_from([0, 1, 7, 30]),
    seed=st.integers(0, 10_000),
    failures=st.sampled_from([0.0, 0.2, 1.0]),
    pipelined=st.booleans(),
    fences=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_short_or_broken_host_only_costs_work(
    policy: PolicyMode, host_blocks: int, seed: int, failures: float, pipelined: bool, fences: float
) -> None:
    world = World(
        *(policy, 18, host_blocks),
        seed=seed,
        failures=failures,
        pipelined=pipelined,
        fences=fences,
        stop_ids=STOPS,
    )
    assert len(work(world, agents=6, turns=3, seed=seed)) == 18
